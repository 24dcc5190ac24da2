"""Kubernetes controllers and training services of clouds: each node has an address of its own, so
all meet on the usual port.

Those that say all that is needed in variables of their own are rows of a table.
"""

from __future__ import annotations

import json

from msgspec import Struct

from holdfast.placement.model import (
    COMMAND,
    HOSTS_FILE,
    Circumstances,
    Placement,
    PlacementRefusal,
    as_id,
    contradiction,
)


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


def by_variables(circumstances: Circumstances) -> Placement | None:
    """Where a scheduler of the table placed this node. Raises `UsageError` for what cannot work."""
    row = next((row for row in ROWS if circumstances.text(row.nodes)), None)
    if row is None:
        return None
    rank, count = circumstances.place(row.rank, row.nodes)
    name, workers = circumstances.text(row.run_id), circumstances.number(row.workers)
    return Placement(
        scheduler=row.scheduler,
        where=f"{row.scheduler} {name}".strip(),
        nodes=count,
        rank=rank,
        workers=workers or None,
        host=next(iter(circumstances.text(row.host).split()), ""),
        is_host=rank == 0,
        run_id=as_id(name) if name else "",
        sources={
            "nodes": row.nodes,
            "rank": row.rank,
            "endpoint": row.host,
            "run_id": row.run_id,
            "workers": row.workers,
        },
    )


def sagemaker(circumstances: Circumstances) -> Placement:
    """Where SageMaker placed this node: the names of all are a list in JSON."""
    text, own = circumstances.text("SM_HOSTS"), circumstances.text("SM_CURRENT_HOST")
    try:
        names = json.loads(text)
    except ValueError:
        names = None
    if not (isinstance(names, list) and names and all(isinstance(name, str) for name in names)):
        raise contradiction(f"SM_HOSTS={text[:80]} is not a list of names")
    names.sort()
    if own not in names and len(names) > 1:
        raise contradiction(f"SM_CURRENT_HOST={own} is not one of SM_HOSTS")
    rank = names.index(own) if len(names) > 1 else 0
    job = circumstances.text("TRAINING_JOB_NAME")
    return Placement(
        scheduler="SageMaker",
        where=f"SageMaker {job}".strip(),
        nodes=len(names),
        rank=rank,
        workers=circumstances.number("SM_NUM_GPUS") or None,
        host=names[0],
        is_host=rank == 0,
        run_id=as_id(job) if job else "",
        sources={
            "nodes": "SM_HOSTS",
            "rank": "the place of SM_CURRENT_HOST in SM_HOSTS",
            "workers": "SM_NUM_GPUS",
            "endpoint": "the first of SM_HOSTS",
            "run_id": "TRAINING_JOB_NAME",
        },
    )


def aws_batch(circumstances: Circumstances) -> Placement:
    """Where AWS Batch placed this node of a job of several: one container on each.

    The main node hosts. Its address is told to all others, and to itself it is not: it looks itself
    up in the hosts file, where the network gives it its address, and else goes by its name.
    """
    main = "AWS_BATCH_JOB_MAIN_NODE_PRIVATE_IPV4_ADDRESS"
    rank, count = circumstances.place("AWS_BATCH_JOB_NODE_INDEX", "AWS_BATCH_JOB_NUM_NODES")
    is_main = rank == (circumstances.number("AWS_BATCH_JOB_MAIN_NODE_INDEX") or 0)
    # What follows the `#` is the node's own part. A job that is tried again keeps its id.
    job = circumstances.text("AWS_BATCH_JOB_ID").partition("#")[0]
    attempt = circumstances.number("AWS_BATCH_JOB_ATTEMPT") or 1
    return Placement(
        scheduler="AWS Batch",
        where=f"AWS Batch job {job}",
        nodes=count,
        rank=rank,
        host=circumstances.own_address() if is_main else circumstances.text(main),
        is_host=is_main,
        run_id=as_id("batch", f"{job}.{attempt}"),
        sources={
            "nodes": "AWS_BATCH_JOB_NUM_NODES",
            "rank": "AWS_BATCH_JOB_NODE_INDEX",
            "endpoint": f"this node, by {HOSTS_FILE}" if is_main else main,
            "run_id": "AWS_BATCH_JOB_ID and AWS_BATCH_JOB_ATTEMPT",
        },
    )


def kubeflow(circumstances: Circumstances) -> Placement | None:
    """Kubeflow Trainer v2, or PyTorchJob before it; None outside of a cluster: set by hand.

    Both say what torchrun reads, in `PET_` variables, and Holdfast reads these as options. So there
    is nothing to fill in: this is how the line at the start and `holdfast where` know who said so.
    """
    if not circumstances.text("KUBERNETES_SERVICE_HOST"):
        return None
    elastic, pod = circumstances.text("PET_RDZV_ENDPOINT"), circumstances.text("HOSTNAME")
    scheduler = "Kubeflow PyTorchJob" if elastic else "Kubeflow Trainer"
    return Placement(scheduler=scheduler, where=f"{scheduler}, pod {pod}" if pod else scheduler)


def indexed_job(circumstances: Circumstances) -> Placement:
    """Where a Kubernetes Job with `completionMode: Indexed` placed this node: a pod for each index.

    How many pods there are is in the manifest only; many such Jobs are pods that have nothing to do
    with each other. So nothing is done until the number of nodes is said (HOLDFAST_NNODES).

    A pod is called JOB-INDEX, and by a headless Service named as its `subdomain` it is found by the
    others; its own line in the hosts file has that name in full.
    """
    index = circumstances.needed("JOB_COMPLETION_INDEX")
    pod = circumstances.text("HOSTNAME") or circumstances.host_name()
    job = pod.removesuffix(f"-{index}") if pod.endswith(f"-{index}") else ""
    words = " ".join(line.partition("#")[0] for line in circumstances.lines(HOSTS_FILE)).split()
    full = next((word for word in words if word.startswith(f"{pod}.")), "")
    return Placement(
        scheduler="Kubernetes Job",
        where=f"Kubernetes Job {job}, index {index}" if job else f"Kubernetes Job, index {index}",
        rank=index,
        host=f"{job}-0{full.removeprefix(pod)}" if job and full else "",
        is_host=index == 0,
        run_id=as_id(job) if job else "",
        sources={
            "rank": "JOB_COMPLETION_INDEX",
            "endpoint": f"pod 0 of the Job, by the domain of this pod in {HOSTS_FILE}",
            "run_id": "HOSTNAME",
        },
        cannot_meet=PlacementRefusal(
            "Kubernetes Job",
            "this pod has no domain, so the pods of the Job cannot find each other by name",
            "give the pods a headless Service and its name as their subdomain, "
            f"or set HOLDFAST_RDZV_ENDPOINT=HOST:29400 for {COMMAND}",
        ),
    )
