"""What Slurm does to an element of a job, and what it may not be taken for."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from .placed_job import PROGRAM, PlacedJob
from .slurm_cluster import SlurmCluster
from .test_slurm_submit import number_of, submit

SAVING = Path(__file__).with_name("saving_job.py")
FREEZER = Path("/sys/fs/cgroup/freezer")
"""What `proctrack/cgroup` needs of this machine."""


def folder_of(job: PlacedJob, number: str) -> Path:
    return job.folder / "holdfast-jobs" / number


def test_a_node_that_fails_is_not_the_end_of_the_job(job: PlacedJob) -> None:
    """Slurm ends its step with "Node failure", and the shell of the element lives on."""
    command = submit(job, "--nodes", "2:3")
    number = number_of(job, command)
    first = job.until_stepping(3)
    lost = job.hosts_of(first)[1]
    down = ("scontrol", "update", f"NodeName={lost}", "State=DOWN", "Reason=test")
    assert job.cluster.run(down).status == 0
    second = job.until_stepping(2, after=first)
    assert lost not in job.hosts_of(second)
    job.until_stepping(3, after=second)
    assert not (folder_of(job, number) / "over").exists()
    assert job.finish(command) == 0
    assert (folder_of(job, number) / "over").read_text() == "succeeded: all workers succeeded\n"
    job.check()


def test_a_node_without_the_environment_is_not_the_end_of_the_job(job: PlacedJob) -> None:
    """`/var/tmp` is each host's own: one of them has no `holdfast` there at first."""
    there = Path("/var/tmp") / f"holdfast-{os.getpid()}"
    own = [job.cluster.folder / "var" / host.name for host in job.cluster.network.hosts]
    lacking = job.cluster.nodes[0].name
    for folder in own:
        if folder.name != lacking:
            (folder / there.name).symlink_to(job.holdfast)
    command = job.start(there, "slurm", "submit", "--nodes=2:4", "--", PROGRAM, job.shared)
    number = number_of(job, command)
    first = job.until_stepping(3)
    assert lacking not in job.hosts_of(first)
    job.until(lambda: "ended with status 2 before the job did" in command.stdout, "the message")
    assert not (folder_of(job, number) / "over").exists()
    # Another element is queued again, and joins: the job is not over.
    (job.cluster.folder / "var" / lacking / there.name).symlink_to(job.holdfast)
    job.cluster.run(["scontrol", "requeue", _element_on(job, number, job.hosts_of(first)[-1])])
    second = job.until_stepping(2, after=first)
    job.until_stepping(3, after=second)
    assert job.finish(command) == 0
    job.check()


def _element_on(job: PlacedJob, number: str, host: str) -> str:
    said = job.cluster.run(["squeue", "--noheader", f"--jobs={number}", "--format=%i %N"])
    return next(line.split()[0] for line in said.stdout.splitlines() if line.split()[-1] == host)


def test_an_element_that_comes_back_after_the_end_says_that_it_is_over(job: PlacedJob) -> None:
    command = submit(job, "--nodes", "2")
    number = number_of(job, command)
    job.until_stepping(2)
    assert job.finish(command) == 0
    job.cluster.run(["scontrol", "requeue", f"{number}_0"])
    output = folder_of(job, number) / f"{number}_0.out"
    words = "holdfast: the job is over (succeeded: all workers succeeded): nothing is started here"
    job.until(lambda: words in output.read_text(), "the word of the element that came back")


def test_a_comment_with_signs_of_the_shell_arrives_as_it_is(job: PlacedJob) -> None:
    comment = """say "hi" #1 $(touch F) `touch F` \\ 'x'"""
    number = number_of(job, submit(job, "--nodes=1", "--hold", "--comment", comment))
    said = job.cluster.run(["squeue", "--noheader", f"--jobs={number}", "--format=%k"])
    assert said.stdout.rstrip("\n") == comment
    assert not list(job.folder.rglob("F"))


@pytest.fixture
def with_cgroups(
    tmp_path_factory: pytest.TempPathFactory, tmp_path: Path, holdfast: Path
) -> Iterator[PlacedJob]:
    """A cluster of one node whose tasks alone are signalled."""
    if not FREEZER.is_dir():
        pytest.skip(f"needs {FREEZER}")
    cluster = SlurmCluster(tmp_path_factory.mktemp("slurm"), 1, proctrack="proctrack/cgroup")
    try:
        yield PlacedJob(cluster, tmp_path, holdfast)
    finally:
        cluster.close()
        for node in cluster.nodes:  # What its daemon makes for itself, and leaves.
            for folder in sorted(FREEZER.glob(f"slurm_{node.name}/**/"), reverse=True):
                folder.rmdir()


def test_at_the_time_limit_there_is_time_to_save(with_cgroups: PlacedJob) -> None:
    """Slurm sends SIGTERM twice, 2 ms apart; a second one would mean "at once"."""
    job = with_cgroups
    words = ("srun", "--nodes=1", "--time=1", job.holdfast, "run", "--notice=5")
    command = job.start(*words, SAVING, job.shared)
    job.until((job.shared / "asks.0").exists, "a worker that asks")
    assert job.status(command) != 0
    # It is the first job of this cluster. What srun says depends on who tells the step first.
    job.cluster.until_state("1", "TIMEOUT")
    assert (job.shared / "saved.0").exists(), command.stderr
