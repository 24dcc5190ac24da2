"""A Kubernetes Job with `completionMode: Indexed`: one pod for each index.

Rules
- How many pods there are is in the manifest only; many such Jobs are pods that have nothing to do
  with each other. So nothing is done until the number of nodes is said (HOLDFAST_NNODES).
- A pod is called JOB-INDEX, and by a headless Service named as its `subdomain` it is found by the
  others; its own line in the hosts file has that name in full.
"""

from __future__ import annotations

from holdfast.placement.model import (
    COMMAND,
    HOSTS_FILE,
    Circumstances,
    Placement,
    PlacementRefusal,
    as_id,
)

NAME = "Kubernetes Job"


def detect(circumstances: Circumstances) -> Placement:
    """Where the Job placed this node. Raises `UsageError` for what cannot work."""
    index = circumstances.needed("JOB_COMPLETION_INDEX")
    pod = circumstances.text("HOSTNAME") or circumstances.host_name()
    job = pod.removesuffix(f"-{index}") if pod.endswith(f"-{index}") else ""
    domain = _domain(circumstances, pod)
    host = f"{job}-0.{domain}" if job and domain else ""
    return Placement(
        scheduler=NAME,
        where=f"Kubernetes Job {job}, index {index}" if job else f"Kubernetes Job, index {index}",
        rank=index,
        host=host,
        is_host=index == 0,
        run_id=as_id(job) if job else "",
        sources={
            "rank": "JOB_COMPLETION_INDEX",
            "endpoint": f"pod 0 of the Job, by the domain of this pod in {HOSTS_FILE}",
            "run_id": "HOSTNAME",
        },
        cannot_meet=None if host else _nowhere(),
    )


def _domain(circumstances: Circumstances, pod: str) -> str:
    """The domain behind this pod's name in its own line of the hosts file."""
    for line in circumstances.lines(HOSTS_FILE):
        for name in line.partition("#")[0].split()[1:]:
            if name.startswith(f"{pod}."):
                return name.removeprefix(f"{pod}.")
    return ""


def _nowhere() -> PlacementRefusal:
    return PlacementRefusal(
        NAME,
        "this pod has no domain, so the pods of the Job cannot find each other by name",
        "give the pods a headless Service and its name as their subdomain, "
        f"or set HOLDFAST_RDZV_ENDPOINT=HOST:29400 for {COMMAND}",
    )
