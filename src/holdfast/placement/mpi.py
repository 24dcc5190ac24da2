"""Open MPI's mpirun, and hydra: the mpiexec of MPICH and Intel MPI. One rank on each node.

Open MPI
- mpirun numbers its daemons; the one on its own host is 0, whether or not a rank runs there. Each
  rank knows its daemon's number. With one rank on each node, in order, the daemon of rank 0 is as
  many places before this rank's as its rank says.
- Open MPI 4 tells each rank the list of the hosts of daemons. Open MPI 5 (PRRTE) tells the host of
  mpirun only, in the name of the job: that is where rank 0 is, if daemon 0 has it. Elsewhere the
  first host of the allocation is, if there is one, and else the user has to say.

Hydra
- It tells a rank its number and nothing of hosts. Inside an allocation the first host is that of
  rank 0; elsewhere rank 0 can tell the others through hydra (`pmi`), or a host file says so, or the
  user.
- `srun --mpi=pmi2` sets the same variables. Where Slurm's step counts the same ranks, it is
  Slurm's.
"""

from __future__ import annotations

import re

from holdfast.placement.batch_systems import hosts, place_of
from holdfast.placement.model import (
    COMMAND,
    Circumstances,
    Placement,
    PlacementRefusal,
    as_id,
    contradiction,
    port_of_name,
    several_on_a_node,
)
from holdfast.placement.node_lists import daemons

_OWN_DAEMON = re.compile(r"[^;]*\.(\d{1,6});")
_DAEMONS = ("OMPI_MCA_orte_local_daemon_uri", "PMIX_SERVER_URI41", "PMIX_SERVER_URI4")
_LAUNCHED_ON = re.compile(r"(?:prterun|prte)-(.+)-\d+@\d+")
_LOCAL_SIZES = ("MPI_LOCALNRANKS", "PALS_LOCAL_SIZE", "PMI_LOCAL_SIZE")
_JOBS = ("PALS_APID", "PMI_JOBID", "SLURM_JOB_ID", "PBS_JOBID", "LSB_JOBID")


def open_mpi(circumstances: Circumstances) -> Placement:
    """Where mpirun placed this node. Raises `UsageError` for what cannot work."""
    rank, count = circumstances.place("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE")
    local = circumstances.number("OMPI_COMM_WORLD_LOCAL_SIZE", least=1) or 1
    if local > 1:
        nodes = circumstances.number("OMPI_MCA_orte_num_nodes", least=1) or max(count // local, 1)
        command = f"mpirun -n {nodes} --map-by ppr:1:node {COMMAND}"
        raise several_on_a_node("mpirun", local, command)
    variable = circumstances.first_set("PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid")
    job = circumstances.text(variable)
    host, source = _host_of_rank_0(circumstances, rank)
    own = circumstances.text("PMIX_HOSTNAME") if rank == 0 else ""
    at_a_loss = (
        "mpirun ends the whole job when it loses a node, unless it gets --enable-recovery; "
        "docs/guides/mpi.md says what else it needs"
    )
    return Placement(
        scheduler="Open MPI",
        where=f"Open MPI job {job.rpartition('@')[0] or job}",
        nodes=count,
        rank=rank,
        host=host,
        port=port_of_name(job),
        is_host=rank == 0,
        run_id=as_id("mpi", job),
        sources={
            "nodes": "OMPI_COMM_WORLD_SIZE",
            "rank": "OMPI_COMM_WORLD_RANK",
            "endpoint": f"{source}, port from {variable}",
            "run_id": variable,
        },
        at_a_loss="" if circumstances.text("OMPI_MCA_orte_enable_recovery") == "1" else at_a_loss,
        cannot_meet=_no_host(
            "Open MPI",
            f"mpirun -n {count} --map-by ppr:1:node "
            f"-x HOLDFAST_RDZV_ENDPOINT={own or 'HOST'}:29400",
        ),
    )


def _host_of_rank_0(circumstances: Circumstances, rank: int) -> tuple[str, str]:
    """Its name, and what said so; empty where nothing does."""
    found = (_OWN_DAEMON.match(circumstances.text(variable)) for variable in _DAEMONS)
    place = next((int(one[1]) for one in found if one), -1) - rank
    listing = circumstances.text("OMPI_MCA_orte_node_regex")
    listed = daemons(listing) if listing else []
    if 0 <= place < len(listed):
        return listed[place], "OMPI_MCA_orte_node_regex"
    launcher = _LAUNCHED_ON.fullmatch(circumstances.text("PMIX_NAMESPACE"))
    if place == 0 and launcher:
        return launcher[1], "PMIX_NAMESPACE"
    return _first_of_allocation(circumstances, rank)


def hydra(circumstances: Circumstances) -> Placement | None:
    """Where mpiexec placed this node. Raises `UsageError` for what cannot work."""
    if not circumstances.text("PMI_RANK") or _is_by_srun(circumstances):
        return None
    rank, count = circumstances.place("PMI_RANK", "PMI_SIZE")
    local = circumstances.number(circumstances.first_set(*_LOCAL_SIZES), least=1) or 1
    if local > 1:
        nodes = max(count // local, 1)
        raise several_on_a_node("mpiexec", local, f"mpiexec -n {nodes} -ppn 1 {COMMAND}")
    host, source = _first_of_allocation(circumstances, rank)
    own = _own_name(circumstances)
    variable = circumstances.first_set(*_JOBS)
    job = circumstances.text(variable)
    if variable == "SLURM_JOB_ID" and (step := circumstances.text("SLURM_STEP_ID")):
        job = f"{job}.{step}"  # Hydra has its proxies started by srun: each mpiexec is a step.
    told = "rank 0 tells it through PMI_FD"
    endpoint = source + (f", port from {variable}" if job else "")
    return Placement(
        scheduler="MPI (hydra)",
        where=f"MPI job {job}" if job else "MPI job",
        nodes=count,
        rank=rank,
        host=host,
        port=port_of_name(job) if job else None,
        is_host=rank == 0,
        run_id=as_id("mpi", job) if job else "",
        sources={
            "nodes": "PMI_SIZE",
            "rank": "PMI_RANK",
            "endpoint": endpoint if host else told,
            "run_id": variable if host else told,
        },
        at_a_loss=(
            "this mpiexec ends the whole job when it loses a node, and cannot be told otherwise: "
            "run it again, or use srun or Open MPI's mpirun"
        ),
        host_for_pmi=own if circumstances.text("PMI_FD") else "",
        cannot_meet=_no_host(
            "MPI (hydra)",
            f"mpiexec -n {count} -ppn 1 "
            f"-genv HOLDFAST_RDZV_ENDPOINT {own if rank == 0 else 'HOST'}:29400",
        ),
    )


def _is_by_srun(circumstances: Circumstances) -> bool:
    same = (("PMI_RANK", "SLURM_PROCID"), ("PMI_SIZE", "SLURM_STEP_NUM_TASKS"))
    agrees = all(circumstances.text(ours) == circumstances.text(slurms) for ours, slurms in same)
    return agrees and not circumstances.text("MPI_LOCALNRANKS")


def _first_of_allocation(circumstances: Circumstances, rank: int) -> tuple[str, str]:
    """The first host, where rank 0 is, and what says so; empty where there is no allocation.

    Rank 0 knows its own name: refuse where the others would look for it on another host.
    """
    names, source = hosts(circumstances)
    if not names:
        return "", ""
    own = _own_name(circumstances)
    place = place_of(own, names) if rank == 0 else None
    if place:
        raise contradiction(f"rank 0 is on {own}, but by {source} it would be on {names[0]}")
    return names[0], f"the first of {source}"


def _own_name(circumstances: Circumstances) -> str:
    """This machine's name, as the scheduler has it if that is said."""
    variable = circumstances.first_set("MPIR_CVAR_CH3_INTERFACE_HOSTNAME", "PMIX_HOSTNAME")
    return circumstances.text(variable) or circumstances.host_name()


def _no_host(scheduler: str, command: str) -> PlacementRefusal:
    starter = command.partition(" ")[0]
    return PlacementRefusal(
        scheduler,
        f"{starter} does not say on which host rank 0 is, so the nodes do not know where to meet",
        f"name it: {command} {COMMAND}",
    )
