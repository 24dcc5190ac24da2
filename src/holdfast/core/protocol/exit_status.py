"""What `holdfast run` ends with: one number for each way in which a node's part can end.

Rules
1. Without an engine that placed the node, a status says what happened: 0 to 4, or 128 and the
   number of the signal, as shells have it.
2. An engine acts on a status. One that takes the worst of all nodes for the job's gets 0 from a
   node that was asked to leave while the job goes on: nothing is wrong. One that runs a node again
   unless it ended with 0 never gets 0 from such a node.
3. A job that was asked to leave as a whole is not done and has not failed: run it again. Engines
   get `RUN_AGAIN` for that, which nothing else ends with.
4. Whoever presses Ctrl-C wants an end: 130, everywhere.

Kept free of imports: the command asks for these before it loads anything else. The table for users
is `docs/reference/exit-statuses.md`; a test compares the two.
"""

from __future__ import annotations

SUCCEEDED = 0
FAILED = 1
USAGE = 2
NOT_FORMED = 3
UNFIT = 4
"""The node did not pass its own check (`--check`), and stays out."""
RUN_AGAIN = 75
"""What `sysexits.h` has for "temporary failure; try again later"."""
BY_SIGNAL = 128
"""Added to the number of the signal that ended the job, as shells do."""

WORST_COUNTS = ("Slurm", "Open MPI", "MPI (hydra)", "PBS", "LSF", "jsrun")
"""They take the worst status of all nodes for the job's, or end the job for it."""
RUNS_AGAIN_UNLESS_0 = (
    *("Slurm array", "Kubernetes Job", "Kubeflow Trainer", "Kubeflow PyTorchJob"),
    *("LeaderWorkerSet", "SageMaker", "AWS Batch", "SkyPilot", "dstack"),
)
"""They take 0 for "this node has done its part", and everything else for "not yet"."""


def of_node(status: int, asked: str, engine: str = "") -> int:
    """What a node ends with, whose outcome has this status.

    `asked` says who was asked to leave, if that is how it ended: "node" where the job goes on
    without this one, "job" where all of it was (`model.Outcome`). `engine` is who placed the
    node, by the name that `placement` has for it.
    """
    if not asked or not (engine in WORST_COUNTS or engine in RUNS_AGAIN_UNLESS_0):
        return status
    if asked == "node" and engine in WORST_COUNTS:
        return SUCCEEDED
    return RUN_AGAIN
