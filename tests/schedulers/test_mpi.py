"""`mpirun holdfast run` with Open MPI's mpirun and with hydra, over real hosts."""

from __future__ import annotations

import shutil
import signal

import pytest

from .placed_job import ENDED_WELL, PlacedJob
from .remote_shell import remote_shell

OPEN_MPI, HYDRA = "mpirun.openmpi", "mpiexec.hydra"


@pytest.fixture(autouse=True)
def needs_both() -> None:
    lacking = [name for name in (OPEN_MPI, HYDRA) if shutil.which(name) is None]
    if lacking:
        pytest.skip(f"needs {', '.join(lacking)} (make test-schedulers installs it)")


def open_mpi(job: PlacedJob, count: int, *options: str, patient: bool = False) -> list[str]:
    shell = remote_shell(job.cluster, job.folder / "shell", patient)
    hosts = job.folder / "hosts"
    hosts.write_text("".join(f"{node.name} slots=2\n" for node in job.cluster.nodes[:count]))
    words = [OPEN_MPI, "--allow-run-as-root", "--mca", "plm_rsh_agent", str(shell)]
    return [*words, "--hostfile", str(hosts), *options]


def hydra(job: PlacedJob, count: int, *options: str) -> list[str]:
    shell = remote_shell(job.cluster, job.folder / "shell")
    names = ",".join(node.name for node in job.cluster.nodes[:count])
    words = [HYDRA, "-launcher", "ssh", "-launcher-exec", str(shell), "-hosts", names]
    return [*words, "-n", str(count), "-ppn", "1", *options]


def one_on_each(count: int) -> tuple[str, ...]:
    return ("-n", str(count), "--map-by", "ppr:1:node")


# --- Open MPI -------------------------------------------------------------------------------


def test_open_mpi_needs_no_flags(job: PlacedJob) -> None:
    command = job.start(*open_mpi(job, 3, *one_on_each(3)), *job.words())
    job.until_stepping(3)
    assert job.hosts_of(1) == ["host1", "host2", "host3"]
    assert job.finish(command) == 0
    assert "3 nodes, this is node 2, meeting at host1:" in command.stderr
    job.check()


def test_open_mpi_that_is_told_so_outlives_a_lost_node(job: PlacedJob) -> None:
    mpirun = open_mpi(job, 3, *one_on_each(3), "--enable-recovery", patient=True)
    command = job.start(*mpirun, *job.words("--nnodes=2:3"))
    first = job.until_stepping(3)
    job.cluster.lose(job.cluster.node("host3"))
    second = job.until_stepping(2, after=first)
    assert job.hosts_of(second) == ["host1", "host2"]
    assert "ends the whole job" not in command.stderr
    job.say("finish")
    job.until(lambda: command.stderr.count(ENDED_WELL) == 2, "the end of both agents")
    command.process.send_signal(signal.SIGTERM)  # It waits for the lost rank for ever.
    job.status(command)
    job.check()


def test_open_mpi_that_is_not_told_so_ends_the_job_and_leaves_nothing(job: PlacedJob) -> None:
    command = job.start(*open_mpi(job, 3, *one_on_each(3)), *job.words("--nnodes=2:3"))
    job.until_stepping(3)
    assert command.stderr.count("unless it gets --enable-recovery") == 1
    job.cluster.lose(job.cluster.node("host3"))
    assert job.status(command) != 0


def test_one_rank_per_core_is_refused_with_the_command_that_works(job: PlacedJob) -> None:
    command = job.start(*open_mpi(job, 2, "-n", "4"), *job.words())
    assert job.status(command) == 2
    assert "mpirun -n 2 --map-by ppr:1:node holdfast run" in command.stderr


# --- hydra ----------------------------------------------------------------------------------


def test_hydra_needs_no_flags(job: PlacedJob) -> None:
    command = job.start(*hydra(job, 3), *job.words("--max-restarts=1"))
    first = job.until_stepping(3)
    job.kill_worker(first, rank=1)
    second = job.until_stepping(3, after=first)
    assert job.hosts_of(second) == ["host1", "host2", "host3"]
    assert job.finish(command) == 0
    job.check()


def test_hydra_ends_the_job_with_a_lost_node_and_nothing_is_left(job: PlacedJob) -> None:
    command = job.start(*hydra(job, 3), *job.words("--nnodes=2:3"))
    job.until_stepping(3)
    assert command.stderr.count("cannot be told otherwise") == 1
    job.cluster.lose(job.cluster.node("host3"))
    assert job.status(command) != 0
