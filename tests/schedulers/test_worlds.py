"""Workers see the world that Holdfast made, not the scheduler's: asked of real JAX and mpi4py."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from .environment import COMMAND, why_not_ready
from .placed_job import PlacedJob
from .slurm_cluster import Command
from .test_mpi import hydra, one_on_each, open_mpi

PROGRAM = Path(__file__).with_name("frameworks_job.py")
NODES, WORKERS = 2, 2


@pytest.fixture(autouse=True)
def needs_frameworks() -> None:
    if reason := why_not_ready():
        pytest.skip(reason)


def run(job: PlacedJob, launcher: list[str]) -> Command:
    words = [str(COMMAND), "run", f"--nproc-per-node={WORKERS}", str(PROGRAM), str(job.shared)]
    command = job.start(*launcher, *words, env={"JAX_PLATFORMS": "cpu"})
    job.status(command)
    return command


def check(job: PlacedJob, command: Command) -> None:
    assert command.process.returncode == 0, job.record()
    worlds = [json.loads(path.read_text()) for path in sorted(job.shared.glob("world.*.json"))]
    size = NODES * WORKERS
    assert len(worlds) == size
    for world in worlds:
        assert world["world"] == size
        assert world["mpi_size"] == 1
        assert world["cluster_seen_by_jax"] == ""
        assert world["jax_processes"] == size
        assert world["sum"] == sum(range(size))


def test_under_srun(job: PlacedJob) -> None:
    check(job, run(job, ["srun", f"--nodes={NODES}", "--mpi=pmi2"]))


def test_under_mpirun_of_open_mpi(job: PlacedJob) -> None:
    check(job, run(job, open_mpi(job, NODES, *one_on_each(NODES))))


def test_under_mpiexec_of_hydra(job: PlacedJob) -> None:
    check(job, run(job, hydra(job, NODES)))
