"""Slurm: one task of `srun` on each node.

Rules
- A *step* is what `srun` started. An allocation without one runs its script on one node only, so
  more than one node needs `srun`. The shells of batch scripts and of `salloc` have step ids too,
  which are above all numbers that `srun` gives.
- A step over all groups of a heterogeneous job has one list and one count of nodes already. Its
  list may be sorted, so the first node is the first one of group 0.
- A job that was requeued keeps its id: its restarts are part of the name under which nodes meet.
- The node that the agent is on must be the one that its number says, or the list is in another
  order than the numbers (`srun a : b` sorts it, `--distribution=arbitrary` does not follow it), and
  nobody but node 0 knows where node 0 is.
"""

from __future__ import annotations

import re

from holdfast.core.protocol.bounds import NUMBER_MOST
from holdfast.core.protocol.errors import UsageError
from holdfast.placement.model import (
    COMMAND,
    Circumstances,
    Placement,
    PlacementRefusal,
    contradiction,
    port_of_numbers,
    several_on_a_node,
)
from holdfast.placement.node_lists import expand

_NOT_BY_SRUN = 0xFFFFFFF0
"""Steps from here on are Slurm's own: batch scripts, interactive shells, prologues."""


def slurm(circumstances: Circumstances) -> Placement | None:
    """Where Slurm placed this node. Raises `UsageError` for what cannot work."""
    job = circumstances.number("SLURM_JOB_ID", most=NUMBER_MOST) or 0
    step = circumstances.number("SLURM_STEP_ID", most=NUMBER_MOST)
    if step is None or step >= _NOT_BY_SRUN:
        return _without_step(circumstances, job)
    _refuse_several_tasks(circumstances)
    rank, count = circumstances.place("SLURM_NODEID", "SLURM_STEP_NUM_NODES")
    where = f"Slurm job {job}, step {step}"
    if count > 1 and circumstances.text("SLURM_PTY_PORT"):
        raise UsageError(
            f"{where} is a terminal on one of its {count} nodes: the others would be waited for",
            f"{_srun(circumstances, count, 'srun --overlap')} (or --nnodes 1, for this node alone)",
        )
    restarts = circumstances.number("SLURM_RESTART_COUNT") or 0
    workers, workers_source = _workers(circumstances)
    host, source = _first_node(circumstances, rank, count)
    # Each element of an array ends for itself, and can be queued again for itself.
    is_element = count == 1 and circumstances.text("SLURM_ARRAY_TASK_ID")
    return Placement(
        scheduler="Slurm array" if is_element else "Slurm",
        where=f"{where}, restart {restarts}" if restarts else where,
        nodes=count,
        rank=rank,
        workers=workers,
        host=host,
        port=port_of_numbers(job, step),
        is_host=rank == 0,
        run_id=f"slurm-{job}.{step}.{restarts}",
        sources={
            "nodes": "SLURM_STEP_NUM_NODES",
            "rank": "SLURM_NODEID",
            "workers": workers_source,
            "endpoint": f"the first of {source}, port from SLURM_JOB_ID and SLURM_STEP_ID",
            "run_id": "SLURM_JOB_ID, SLURM_STEP_ID and SLURM_RESTART_COUNT",
        },
        cannot_meet=_order_unknown(circumstances, rank),
    )


def _without_step(circumstances: Circumstances, job: int) -> Placement:
    """A batch script, a shell of `salloc`, or a machine reached from one of these."""
    count = _nodes_of_job(circumstances)
    if count > 1:
        raise UsageError(
            f"Slurm job {job} has {count} nodes, but this was not started by srun, "
            "so it runs on one of them only",
            f"{_srun(circumstances, count)} (or --nnodes 1, for this node alone)",
        )
    workers, workers_source = _workers(circumstances)
    return Placement(
        scheduler="Slurm",
        where=f"Slurm job {job}",
        nodes=1,
        rank=0,
        workers=workers,
        sources={"nodes": "SLURM_JOB_NUM_NODES", "workers": workers_source},
    )


def _nodes_of_job(circumstances: Circumstances) -> int:
    groups = circumstances.number("SLURM_HET_SIZE", most=1000) or 0
    counts = [
        circumstances.number(f"SLURM_JOB_NUM_NODES_HET_GROUP_{n}") or 0 for n in range(groups)
    ]
    return max(sum(counts), circumstances.number("SLURM_JOB_NUM_NODES") or 1)


def _srun(circumstances: Circumstances, nodes: int, srun: str = "srun") -> str:
    """The command that starts one agent on each node of the allocation."""
    groups = circumstances.number("SLURM_HET_SIZE", most=1000) or 0
    if groups > 1:
        which = ",".join(map(str, range(groups)))
        return f"{srun} --het-group={which} --ntasks-per-node=1 {COMMAND}"
    return f"{srun} --nodes={nodes} --ntasks={nodes} --ntasks-per-node=1 {COMMAND}"


def _refuse_several_tasks(circumstances: Circumstances) -> None:
    # `2(x3),1` is 2 tasks on each of three nodes, and 1 on another.
    counts = re.findall(r"(?:^|,)(\d{1,6})", circumstances.text("SLURM_STEP_TASKS_PER_NODE"))
    place = circumstances.number("SLURM_LOCALID") or 0
    most = max([*map(int, counts), place + 1])
    if most > 1:
        nodes = circumstances.number("SLURM_STEP_NUM_NODES", least=1) or 1
        raise several_on_a_node("srun", most, _srun(circumstances, nodes))


def _workers(circumstances: Circumstances) -> tuple[int | None, str]:
    """As many as there are GPUs for this step here, of which fewer may be visible; and what says
    so."""
    count = circumstances.number("SLURM_GPUS_ON_NODE") or None
    visible = [entry for entry in circumstances.text("CUDA_VISIBLE_DEVICES").split(",") if entry]
    if count and 0 < len(visible) < count:
        return len(visible), "CUDA_VISIBLE_DEVICES"
    return count, "SLURM_GPUS_ON_NODE"


def _first_node(circumstances: Circumstances, rank: int, count: int) -> tuple[str, str]:
    """The name of node 0, empty where the list does not tell, and the list."""
    variable = circumstances.first_set("SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST")
    names = expand(circumstances.text(variable)) if variable else []
    if len(names) != count:
        raise contradiction(
            f"{variable or 'SLURM_STEP_NODELIST'} names {len(names)} nodes, "
            f"but SLURM_STEP_NUM_NODES={count}"
        )
    first_group = circumstances.text("SLURM_JOB_NODELIST_HET_GROUP_0")
    if first_group and set(expand(first_group)) < set(names):
        return expand(first_group)[0], "SLURM_JOB_NODELIST_HET_GROUP_0"
    own = circumstances.text("SLURMD_NODENAME")
    return "" if own in names and names[rank] != own else names[0], variable


def _order_unknown(circumstances: Circumstances, rank: int) -> PlacementRefusal:
    """Node 0, at least, can say what the others need to know."""
    own = circumstances.text("SLURMD_NODENAME")
    host = own if rank == 0 else "HOST"
    return PlacementRefusal(
        "Slurm",
        f"this is {own}, and node {rank}, but in SLURM_STEP_NODELIST it is another: the list is in "
        "another order than the ranks, so the nodes do not know where to meet",
        f"name the host of node 0: HOLDFAST_RDZV_ENDPOINT={host}:29400 srun … {COMMAND}",
    )
