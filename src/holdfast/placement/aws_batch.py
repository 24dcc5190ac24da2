"""AWS Batch, jobs of several nodes: one container on each.

Rules
- The main node hosts. Its address is told to all others, and to itself it is not: it looks itself
  up in the hosts file, where the network gives it its address, and else goes by its name.
- Of a job's id, what follows the `#` is the node's own part. A job that is tried again keeps its
  id.
"""

from __future__ import annotations

from holdfast.placement.model import HOSTS_FILE, Circumstances, Placement, as_id

NAME = "AWS Batch"
_MAIN = "AWS_BATCH_JOB_MAIN_NODE_PRIVATE_IPV4_ADDRESS"


def detect(circumstances: Circumstances) -> Placement:
    """Where AWS Batch placed this node. Raises `UsageError` for what cannot work."""
    rank, count = circumstances.place("AWS_BATCH_JOB_NODE_INDEX", "AWS_BATCH_JOB_NUM_NODES")
    is_main = rank == (circumstances.number("AWS_BATCH_JOB_MAIN_NODE_INDEX") or 0)
    job = circumstances.text("AWS_BATCH_JOB_ID").partition("#")[0]
    attempt = circumstances.number("AWS_BATCH_JOB_ATTEMPT") or 1
    return Placement(
        scheduler=NAME,
        where=f"AWS Batch job {job}",
        nodes=(count, count),
        rank=rank,
        host=circumstances.own_address() if is_main else circumstances.text(_MAIN),
        is_host=is_main,
        run_id=as_id("batch", f"{job}.{attempt}"),
        sources={
            "nodes": "AWS_BATCH_JOB_NUM_NODES",
            "rank": "AWS_BATCH_JOB_NODE_INDEX",
            "endpoint": f"this node, by {HOSTS_FILE}" if is_main else _MAIN,
            "run_id": "AWS_BATCH_JOB_ID and AWS_BATCH_JOB_ATTEMPT",
        },
    )
