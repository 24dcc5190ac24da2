"""The exit statuses of `holdfast run`: one for each way in which a node's part can end.

Rules
1. Without a scheduler that started the node, a status says what happened: 0 to 4, or 128 and the
   number of the signal, as in shells.
2. A scheduler acts on a status. One that takes the worst of all nodes for the job's gets 0 from a
   node that was asked to leave while the job goes on: nothing is wrong. One that runs a node again
   unless it ended with 0 never gets 0 from such a node.
3. A job that was asked to leave as a whole is not done and has not failed: run it again. Schedulers
   get `RUN_AGAIN` for that, and for nothing else.
4. Ctrl-C means an end: 130, everywhere.

Kept free of imports: the command asks for these before it loads anything else. The table for users
is `docs/reference/exit-statuses.md`; a test compares the two.
"""

from __future__ import annotations

SUCCEEDED = 0
FAILED = 1
USAGE = 2
NOT_FORMED = 3
UNFIT = 4
"""The node did not pass its own check (`--check`), and takes no part."""
RUN_AGAIN = 75
"""What `sysexits.h` has for "temporary failure; try again later"."""
BY_SIGNAL = 128
"""Added to the number of the signal that ended the job, as shells do."""

WORST_COUNTS = ("Slurm", "Open MPI", "MPI (hydra)", "PBS", "LSF")
"""Schedulers that take the worst status of all nodes for the job's, or end the job for it."""
RUNS_AGAIN_UNLESS_0 = (
    *("Slurm array", "Kubernetes Job", "Kubeflow Trainer", "Kubeflow PyTorchJob"),
    *("LeaderWorkerSet", "SageMaker", "AWS Batch", "SkyPilot", "dstack"),
)
"""Schedulers that take 0 for "this node has done its part", and any other for "not yet"."""


def of_node(status: int, asked: str, scheduler: str = "") -> int:
    """The exit status of a node whose outcome has this status.

    `asked` is the party that was asked to leave, if that is how it ended: "node" where the job goes
    on without this one, "job" where all of it was (`model.Outcome`). `scheduler` is the one of
    the node, by its name in `placement`.
    """
    if not asked or not (scheduler in WORST_COUNTS or scheduler in RUNS_AGAIN_UNLESS_0):
        return status
    if asked == "node" and scheduler in WORST_COUNTS:
        return SUCCEEDED
    return RUN_AGAIN
