"""Which variables describe the scheduler's own ranks, so that workers must not have them.

The scheduler placed one agent on each node and numbered the agents. A worker that finds these
numbers takes itself for one of them: JAX, MPI, DeepSpeed and others then form a world of the wrong
size, in which several processes have the same rank, and say nothing.

Rules
- What a library is known to take for a process's own rank, for the number of processes, or for the
  way to its peers is removed.
- What describes the job (its id, its nodes, its account) stays: scripts name checkpoints by it.
- What describes a node and misleads no library stays. (docs/guides/schedulers.md lists these.)
- Nothing is rewritten. Holdfast's own variables say who a worker is; the scheduler's words for it
  would be wrong again in the next round, when ranks have moved.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from msgspec import Struct


class Removed(Struct, frozen=True):
    """Variables that workers do not see, and why. A name that ends in `*` stands for many."""

    scheduler: str
    names: tuple[str, ...]
    reason: str


REMOVED: tuple[Removed, ...] = (
    Removed(
        "Slurm",
        (
            "SLURM_PROCID",
            "SLURM_LOCALID",
            "SLURM_NODEID",
            "SLURM_NTASKS",
            "SLURM_NTASKS_*",
            "SLURM_NPROCS",
            "SLURM_NPROCS_*",
            "SLURM_TASKS_PER_NODE",
            "SLURM_TASKS_PER_NODE_*",
            "SLURM_GTIDS",
            "SLURM_TASK_PID",
        ),
        "number the tasks of srun, which are the agents; JAX, Lightning and submitit read them",
    ),
    Removed(
        "Slurm",
        ("SLURM_STEP_*", "SLURM_STEPID"),
        "describe the step of srun; a process that has them is taken for one of its tasks, "
        "by JAX and by Open MPI, which then refuses to start",
    ),
    Removed(
        "Slurm",
        ("SLURM_SRUN_COMM_*", "SLURM_PMIX*", "SLURM_PMI*", "SLURM_MPI_TYPE"),
        "lead to srun, where the agent's rank is the one that is known",
    ),
    Removed(
        "Open MPI",
        (
            "OMPI_COMM_WORLD_*",
            "OMPI_WORLD_*",
            "OMPI_UNIVERSE_SIZE",
            "OMPI_APP_CTX_NUM_PROCS",
            "OMPI_FIRST_RANKS",
            "OMPI_NUM_APP_CTX",
            "OMPI_FILE_LOCATION",
            "OMPI_COMMAND",
            "OMPI_ARGV",
        ),
        "number the ranks of mpirun, which are the agents; JAX, DeepSpeed and Accelerate read them",
    ),
    Removed(
        "Open MPI",
        (
            "OMPI_MCA_orte_*",
            "OMPI_MCA_ess",
            "OMPI_MCA_ess_*",
            "OMPI_MCA_pmix",
            "OMPI_MCA_plm",
            "OMPI_MCA_plm_*",
            "OMPI_MCA_routed",
            "OMPI_MCA_initial_wdir",
            "OMPI_MCA_num_procs",
            "PRTE_*",
        ),
        "lead to mpirun's daemons; JAX forms a world from them, MPI in a worker would join as the "
        "agent's rank, and could not start by itself. Other OMPI_MCA_ settings are the user's",
    ),
    Removed(
        "MPI",
        ("PMI_*", "PMI2_*", "PMIX_*", "MPI_LOCALRANKID", "MPI_LOCALNRANKS", "HYDI_*"),
        "are the way to the process manager (hydra, srun, mpirun), as the agent's rank; mpi4py "
        "and everything else that uses MPI takes it",
    ),
    Removed(
        "MPI",
        ("MV2_COMM_WORLD_*", "MPT_MPI_*", "PALS_*", "ALPS_APP_PE", "FLUX_TASK_*"),
        "number the ranks of other starters: MVAPICH, HPE MPT and PALS, ALPS, Flux",
    ),
    Removed(
        "LSF, PBS",
        ("LSF_PM_TASKID", "PBS_TASKNUM", "PBS_NODENUM", "PBS_VNODENUM"),
        "number the tasks of blaunch and pbsdsh, which are the agents",
    ),
    Removed(
        "Kubernetes",
        ("JOB_COMPLETION_INDEX",),
        "is the pod's number; JAX takes it for the process's",
    ),
)

_EXACT = frozenset(name for row in REMOVED for name in row.names if not name.endswith("*"))
_PREFIXES = tuple(name[:-1] for row in REMOVED for name in row.names if name.endswith("*"))
_SETTINGS = ("PMIX_PREFIX", "PMIX_MCA_")


def describing_ranks(variables: Mapping[str, str] | Iterable[str]) -> tuple[str, ...]:
    """Those of these variables that workers must not have, in order."""
    found = {name for name in variables if name in _EXACT or name.startswith(_PREFIXES)}
    return tuple(sorted(name for name in found if not name.startswith(_SETTINGS)))
