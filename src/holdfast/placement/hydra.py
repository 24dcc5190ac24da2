"""Hydra: the mpiexec of MPICH and of Intel MPI, and others that speak PMI. One rank on each node.

Rules
- Hydra tells a rank its number and nothing of hosts. Inside an allocation the first host is that of
  rank 0; elsewhere rank 0 can tell the others through hydra, or a host file says so, or the user.
- `srun --mpi=pmi2` sets the same variables. Where Slurm's step counts the same ranks, it is
  Slurm's.
"""

from __future__ import annotations

from holdfast.placement.hosts_of_allocation import check_first, hosts, own_name
from holdfast.placement.model import (
    COMMAND,
    Circumstances,
    Placement,
    PlacementRefusal,
    as_id,
    port_of_name,
    several_on_a_node,
)

NAME = "MPI (hydra)"
AT_A_LOSS = (
    "this mpiexec ends the whole job when it loses a node, and cannot be told otherwise: "
    "run it again, or use srun or Open MPI's mpirun"
)
LOCAL_SIZES = ("MPI_LOCALNRANKS", "PALS_LOCAL_SIZE", "PMI_LOCAL_SIZE")
JOBS = ("PALS_APID", "PMI_JOBID", "SLURM_JOB_ID", "PBS_JOBID", "LSB_JOBID")


def detect(circumstances: Circumstances) -> Placement | None:
    """Where mpiexec placed this node. Raises `UsageError` for what cannot work."""
    if not circumstances.text("PMI_RANK") or _is_by_srun(circumstances):
        return None
    rank, count = circumstances.place("PMI_RANK", "PMI_SIZE")
    local = circumstances.number(circumstances.first_set(*LOCAL_SIZES), least=1) or 1
    if local > 1:
        nodes = max(count // local, 1)
        raise several_on_a_node("mpiexec", local, f"mpiexec -n {nodes} -ppn 1 {COMMAND}")
    names, source = hosts(circumstances)
    host = names[0] if names else ""
    if rank == 0:
        check_first(circumstances, host, names, source)
    variable = circumstances.first_set(*JOBS)
    job = circumstances.text(variable)
    if variable == "SLURM_JOB_ID" and (step := circumstances.text("SLURM_STEP_ID")):
        job = f"{job}.{step}"  # Hydra has its proxies started by srun: each mpiexec is a step.
    sources = {"nodes": "PMI_SIZE", "rank": "PMI_RANK", "run_id": variable}
    sources["endpoint"] = f"the first of {source}" + (f", port from {variable}" if job else "")
    if not host:
        sources["endpoint"] = sources["run_id"] = "rank 0 tells it through PMI_FD"
    return Placement(
        scheduler=NAME,
        where=f"MPI job {job}" if job else "MPI job",
        nodes=(count, count),
        rank=rank,
        host=host,
        port=port_of_name(job) if job else None,
        is_host=rank == 0,
        run_id=as_id("mpi", job) if job else "",
        sources=sources,
        at_a_loss=AT_A_LOSS,
        own_host=own_name(circumstances),
        has_pmi=bool(circumstances.text("PMI_FD")),
        cannot_meet=None if host else _unknown(circumstances, rank, count),
    )


def _is_by_srun(circumstances: Circumstances) -> bool:
    same = (("PMI_RANK", "SLURM_PROCID"), ("PMI_SIZE", "SLURM_STEP_NUM_TASKS"))
    agrees = all(circumstances.text(ours) == circumstances.text(slurms) for ours, slurms in same)
    return agrees and not circumstances.text("MPI_LOCALNRANKS")


def _unknown(circumstances: Circumstances, rank: int, nodes: int) -> PlacementRefusal:
    """Rank 0, at least, can say what the others need to know."""
    host = own_name(circumstances) if rank == 0 else ""
    return PlacementRefusal(
        NAME,
        "mpiexec does not say on which host rank 0 is, so the nodes do not know where to meet",
        f"name it: mpiexec -n {nodes} -ppn 1 "
        f"-genv HOLDFAST_RDZV_ENDPOINT {host or 'HOST'}:29400 {COMMAND}",
    )
