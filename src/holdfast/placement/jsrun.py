"""jsrun, inside an allocation of LSF: one resource set with one task on each node.

The first host of such an allocation is often the launch node, on which jsrun itself runs and no
task does: there are more hosts then than tasks. Rank 0 knows its own name, and has the last word.
"""

from __future__ import annotations

from holdfast.core.protocol.bounds import NUMBER_MOST
from holdfast.placement.hosts_of_allocation import check_first, unique
from holdfast.placement.model import (
    COMMAND,
    Circumstances,
    Placement,
    PlacementRefusal,
    as_id,
    port_of_numbers,
    several_on_a_node,
)

NAME = "jsrun"
_HOST_FILES = ("LSB_DJOB_RANKFILE", "LSB_DJOB_HOSTFILE")


def detect(circumstances: Circumstances) -> Placement:
    """Where jsrun placed this node. Raises `UsageError` for what cannot work."""
    rank, count = circumstances.place("JSM_NAMESPACE_RANK", "JSM_NAMESPACE_SIZE")
    local = circumstances.number("JSM_NAMESPACE_LOCAL_SIZE", least=1) or 1
    one_each = f"jsrun -n {max(count // local, 1)} -r 1 -a 1 -c ALL_CPUS -g ALL_GPUS {COMMAND}"
    if local > 1:
        raise several_on_a_node("jsrun", local, one_each)
    job = circumstances.number("LSB_JOBID", most=NUMBER_MOST) or 0
    variable = circumstances.first_set(*_HOST_FILES)
    names = unique(circumstances.lines(circumstances.text(variable)))
    host = (names[1:] if len(names) > count else names)[:1]
    if host and rank == 0:
        check_first(circumstances, host[0], names, variable)
    return Placement(
        scheduler=NAME,
        where=f"jsrun in LSF job {job}",
        nodes=(count, count),
        rank=rank,
        host=host[0] if host else "",
        port=port_of_numbers(job),
        is_host=rank == 0,
        run_id=as_id("lsf", job),
        sources={
            "nodes": "JSM_NAMESPACE_SIZE",
            "rank": "JSM_NAMESPACE_RANK",
            "endpoint": f"{variable}, port from LSB_JOBID",
            "run_id": "LSB_JOBID",
        },
        cannot_meet=None if host else PlacementRefusal(NAME, *_nowhere(one_each)),
    )


def _nowhere(command: str) -> tuple[str, str]:
    return (
        "no file of LSF says on which host rank 0 is, so the nodes do not know where to meet",
        f"HOLDFAST_RDZV_ENDPOINT=HOST:29400 {command}",
    )
