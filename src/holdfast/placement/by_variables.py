"""Schedulers that say all that is needed in variables of their own, as data.

Each node of these has an address of its own, so all meet on the usual port.
"""

from __future__ import annotations

from msgspec import Struct

from holdfast.placement.model import Circumstances, Placement, as_id

NAME = "a service"


class Row(Struct, frozen=True, kw_only=True):
    """The variables of one scheduler."""

    scheduler: str
    nodes: str
    """Also the sign by which it is known."""
    rank: str
    host: str
    """Of a list of lines, the first is meant."""
    workers: str = ""
    run_id: str = ""


ROWS = (
    Row(
        scheduler="SkyPilot",
        nodes="SKYPILOT_NUM_NODES",
        rank="SKYPILOT_NODE_RANK",
        host="SKYPILOT_NODE_IPS",
        workers="SKYPILOT_NUM_GPUS_PER_NODE",
        run_id="SKYPILOT_TASK_ID",
    ),
    Row(
        scheduler="dstack",
        nodes="DSTACK_NODES_NUM",
        rank="DSTACK_NODE_RANK",
        host="DSTACK_MASTER_NODE_IP",
        workers="DSTACK_GPUS_PER_NODE",
        run_id="DSTACK_RUN_NAME",
    ),
    Row(
        scheduler="LeaderWorkerSet",
        nodes="LWS_GROUP_SIZE",
        rank="LWS_WORKER_INDEX",
        host="LWS_LEADER_ADDRESS",
    ),
)


def detect(circumstances: Circumstances) -> Placement | None:
    """Where one of them placed this node. Raises `UsageError` for what cannot work."""
    for row in ROWS:
        if circumstances.text(row.nodes):
            return _read(row, circumstances)
    return None


def _read(row: Row, circumstances: Circumstances) -> Placement:
    rank, count = circumstances.place(row.rank, row.nodes)
    hosts = circumstances.text(row.host).split()
    name = circumstances.text(row.run_id) if row.run_id else ""
    workers = circumstances.number(row.workers) if row.workers else None
    sources = {"nodes": row.nodes, "rank": row.rank, "endpoint": row.host, "run_id": row.run_id}
    return Placement(
        scheduler=row.scheduler,
        where=f"{row.scheduler} {name}".strip(),
        nodes=(count, count),
        rank=rank,
        workers=workers or None,
        host=hosts[0] if hosts else "",
        is_host=rank == 0,
        run_id=as_id(name) if name else "",
        sources={**sources, **({"workers": row.workers} if workers else {})},
    )
