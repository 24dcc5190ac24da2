"""LSF: one task of `blaunch` on each host.

Rules
- The hosts are those of LSB_MCPU_HOSTS (`n1 8 n2 8`), else of the file LSB_DJOB_HOSTFILE. This
  node's place is that of its own name among them.
- The job's script runs on the first host only. What `blaunch` starts has a task id.
"""

from __future__ import annotations

from holdfast.core.protocol.bounds import NUMBER_MOST
from holdfast.core.protocol.errors import UsageError
from holdfast.placement.hosts_of_allocation import rank_among, read_from, unique
from holdfast.placement.model import (
    COMMAND,
    Circumstances,
    Placement,
    as_id,
    port_of_numbers,
)

NAME = "LSF"


def detect(circumstances: Circumstances) -> Placement | None:
    """Where LSF placed this node. Raises `UsageError` for what cannot work."""
    job = circumstances.number("LSB_JOBID", most=NUMBER_MOST) or 0
    element = circumstances.number("LSB_JOBINDEX") or 0
    names, source = _hosts(circumstances)
    if not names:
        return None
    if len(names) > 1 and not circumstances.text("LSF_PM_TASKID"):
        raise UsageError(
            f"LSF job {job} has {len(names)} hosts, but this was not started by blaunch, "
            "so it runs on one of them only",
            f'blaunch -z "{" ".join(names)}" {COMMAND} (or --nnodes 1, for this node alone)',
        )
    rank = rank_among(circumstances, names, source)
    return Placement(
        scheduler=NAME,
        where=f"LSF job {job}",
        nodes=(len(names), len(names)),
        rank=rank,
        host=names[0],
        port=port_of_numbers(job, element),
        is_host=rank == 0,
        run_id=as_id("lsf", f"{job}.{element}" if element else job),
        sources=read_from(source, "LSB_JOBID"),
    )


def _hosts(circumstances: Circumstances) -> tuple[list[str], str]:
    words = circumstances.text("LSB_MCPU_HOSTS").split()
    if words:
        return list(dict.fromkeys(words[::2])), "LSB_MCPU_HOSTS"
    path = circumstances.text("LSB_DJOB_HOSTFILE")
    return (unique(circumstances.lines(path)), "LSB_DJOB_HOSTFILE") if path else ([], "")
