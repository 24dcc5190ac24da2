"""PBS and Torque: one task of `pbsdsh` on each host.

Rules
- The hosts are the lines of PBS_NODEFILE, each taken once. This node's place is that of its own
  name among them: the numbers that PBS gives count virtual nodes, of which a host may have several.
- The job's script is task 1, and runs on the first host only.
- On hosts other than the first the file may not be there, nor in a container. What is not the first
  task cannot do without it: mpiexec is the better starter then, and the one that PBS sites offer.
"""

from __future__ import annotations

from holdfast.core.protocol.errors import UsageError
from holdfast.placement.hosts_of_allocation import rank_among, read_from, unique
from holdfast.placement.model import (
    COMMAND,
    Circumstances,
    Placement,
    as_id,
    contradiction,
    port_of_name,
)

NAME = "PBS"


def detect(circumstances: Circumstances) -> Placement | None:
    """Where PBS placed this node. Raises `UsageError` for what cannot work."""
    job, path = circumstances.text("PBS_JOBID"), circumstances.text("PBS_NODEFILE")
    if not path:
        return None
    names = unique(circumstances.lines(path))
    is_script = circumstances.text("PBS_TASKNUM") in ("", "1")
    if not names and is_script:
        return None
    if not names:
        raise contradiction(f"PBS_NODEFILE={path} names the hosts, and cannot be read here")
    if len(names) > 1 and is_script:
        raise UsageError(
            f"PBS job {job} has {len(names)} hosts, but this is its script, "
            "which runs on the first of them only",
            f"mpiexec -n {len(names)} -ppn 1 {COMMAND} (or --nnodes 1, for this node alone)",
        )
    rank = rank_among(circumstances, names, "PBS_NODEFILE")
    return Placement(
        scheduler=NAME,
        where=f"PBS job {job}",
        nodes=(len(names), len(names)),
        rank=rank,
        host=names[0],
        port=port_of_name(job),
        is_host=rank == 0,
        run_id=as_id("pbs", job),
        sources=read_from("PBS_NODEFILE", "PBS_JOBID"),
    )
