"""Which variables of a scheduler workers do not get."""

from __future__ import annotations

import pytest

from holdfast.placement.scheduler_variables import REMOVED, describing_ranks

from .environments import paths, variables

OF_JAX = (
    ("SLURM_JOB_ID", "SLURM_STEP_NODELIST", "SLURM_NTASKS", "SLURM_PROCID", "SLURM_LOCALID"),
    ("OMPI_MCA_orte_hnp_uri",),
)
"""Where all of one line are there, JAX (0.10) forms its world from them."""
OF_MPI = ("PMI_RANK", "PMI_FD", "PMIX_RANK", "PMIX_NAMESPACE", "OMPI_MCA_ess", "SLURM_STEPID")
"""With these, MPI takes a process for one of mpirun's or srun's."""
OF_OTHERS = (
    "OMPI_COMM_WORLD_LOCAL_RANK",  # DeepSpeed, Accelerate
    "MPI_LOCALRANKID",  # Accelerate
    "MV2_COMM_WORLD_LOCAL_RANK",  # Accelerate
    "SLURM_NTASKS",  # Lightning
    "PALS_LOCAL_RANKID",
)


def left(environment: dict[str, str]) -> set[str]:
    return environment.keys() - set(describing_ranks(environment))


@pytest.mark.parametrize("name", [path.stem for path in paths()])
def test_no_library_finds_a_world_in_what_is_left(name: str) -> None:
    kept = left(variables(name))
    assert not [signs for signs in OF_JAX if kept >= set(signs)]
    assert not kept & {*OF_MPI, *OF_OTHERS}


def test_what_describes_the_job_stays() -> None:
    kept = left(variables("slurm-requeued-srun-node1"))
    assert kept >= {"SLURM_JOB_ID", "SLURM_JOB_NAME", "SLURM_JOB_NODELIST", "SLURM_RESTART_COUNT"}
    assert kept >= {"SLURM_CPUS_ON_NODE", "SLURMD_NODENAME", "SLURM_SUBMIT_DIR"}
    assert {"SLURM_ARRAY_TASK_ID"} <= left(variables("slurm-array-srun-element0"))
    assert left({"PBS_JOBID": "", "LSB_JOBID": ""}) == {"PBS_JOBID", "LSB_JOBID"}


def test_what_is_a_setting_stays() -> None:
    settings = ("OMPI_MCA_btl", "PMIX_PREFIX", "PMIX_MCA_gds", "I_MPI_FABRICS", "SLURM_CONF")
    assert left(dict.fromkeys(settings, "")) == set(settings)


def test_our_own_variables_and_everybody_elses_stay() -> None:
    others = ("PATH", "RANK", "HOLDFAST_ROUND", "PET_NODE_RANK", "CUDA_VISIBLE_DEVICES")
    assert describing_ranks(dict.fromkeys(others, "")) == ()


def test_every_decision_has_its_reason() -> None:
    assert all(row.reason for row in REMOVED)
