"""SageMaker: one container on each instance, whose names are a list in JSON, in order.

Newer images say the place and the first name in variables of their own as well.
"""

from __future__ import annotations

import json

from holdfast.placement.model import Circumstances, Placement, as_id, contradiction

NAME = "SageMaker"


def detect(circumstances: Circumstances) -> Placement:
    """Where SageMaker placed this node. Raises `UsageError` for what cannot work."""
    names = _names(circumstances)
    if circumstances.text("SM_CURRENT_HOST_RANK"):
        rank, count = circumstances.place("SM_CURRENT_HOST_RANK", "SM_HOST_COUNT")
        sources = {"nodes": "SM_HOST_COUNT", "rank": "SM_CURRENT_HOST_RANK"}
    else:
        own = circumstances.text("SM_CURRENT_HOST")
        if own not in names and len(names) > 1:
            raise contradiction(f"SM_CURRENT_HOST={own} is not one of SM_HOSTS")
        rank, count = names.index(own) if len(names) > 1 else 0, max(len(names), 1)
        sources = {"nodes": "SM_HOSTS", "rank": "the place of SM_CURRENT_HOST in SM_HOSTS"}
    job = circumstances.text("TRAINING_JOB_NAME")
    workers = circumstances.number("SM_NUM_GPUS") or None
    sources |= {"run_id": "TRAINING_JOB_NAME"} | ({"workers": "SM_NUM_GPUS"} if workers else {})
    host, sources["endpoint"] = circumstances.text("SM_MASTER_ADDR"), "SM_MASTER_ADDR"
    if not host:
        host, sources["endpoint"] = (names or [""])[0], "the first of SM_HOSTS"
    return Placement(
        scheduler=NAME,
        where=f"SageMaker {job}".strip(),
        nodes=(count, count),
        rank=rank,
        workers=workers,
        host=host,
        is_host=rank == 0,
        run_id=as_id(job) if job else "",
        sources=sources,
    )


def _names(circumstances: Circumstances) -> list[str]:
    text = circumstances.text("SM_HOSTS")
    try:
        names = json.loads(text) if text else []
    except ValueError:
        names = None
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise contradiction(f"SM_HOSTS={text[:80]} is not a list of names")
    return sorted(names)
