"""`holdfast slurm submit` on a real cluster."""

from __future__ import annotations

import signal

from holdfast.cli import sentences
from holdfast.core.protocol import exit_status
from holdfast.placement.slurm_batch import OVER_MARK, REGISTER, TOKEN

from .placed_job import PROGRAM, PlacedJob
from .slurm_cluster import Command


def submit(job: PlacedJob, *words: str, run: tuple[str, ...] = ()) -> Command:
    return job.start(job.holdfast, "slurm", "submit", *words, "--", *run, PROGRAM, job.shared)


def number_of(job: PlacedJob, command: Command) -> str:
    job.until(lambda: "submitted job" in command.stderr, "a submitted job")
    return command.stderr.split("submitted job ")[1].partition(";")[0]


def test_an_array_of_nodes_is_submitted_followed_and_ends_well(job: PlacedJob) -> None:
    command = submit(job, "--nodes", "2:3", "--spares", "1")
    number = number_of(job, command)
    job.until_stepping(3)
    job.until(lambda: "standing by" in command.stdout, "a spare")
    assert job.finish(command) == 0
    assert f"job {number} succeeded: all workers succeeded" in command.stderr
    assert "rank 0 of 3 on host" in command.stdout
    job.check()


def test_a_lost_node_brings_back_one_element_and_the_rest_goes_on(job: PlacedJob) -> None:
    command = submit(job, "--nodes", "2:3")
    number = number_of(job, command)
    first = job.until_stepping(3)
    lost = job.cluster.node(job.hosts_of(first)[0])
    job.cluster.lose(lost)
    second = job.until_stepping(2, after=first)
    assert lost.name not in job.hosts_of(second)
    third = job.until_stepping(3, after=second)
    assert lost.name not in job.hosts_of(third)
    assert set(job.hosts_of(second)) < set(job.hosts_of(third))
    assert job.finish(command) == 0
    assert f"job {number} succeeded" in command.stderr
    job.check()


def test_ctrl_c_leaves_the_job_running_and_follow_comes_back(job: PlacedJob) -> None:
    command = submit(job, "--nodes", "2")
    number = number_of(job, command)
    job.until_stepping(2)
    command.process.send_signal(signal.SIGINT)
    assert job.status(command) == 130
    assert f"job {number} goes on" in command.stderr
    assert f"hint: holdfast slurm follow {number}" in command.stderr
    assert f"hint: scancel {number}" in command.stderr
    again = job.start(job.holdfast, "slurm", "follow", number)
    job.until(lambda: ": running" in again.stderr, "the nodes of the job")
    assert job.finish(again) == 0
    assert job.newest() == 1
    job.check()


def test_a_job_that_was_cancelled_stays_cancelled(job: PlacedJob) -> None:
    command = submit(job, "--nodes", "2")
    number = number_of(job, command)
    job.until_stepping(2)
    job.cluster.run(["scancel", number])
    assert job.status(command) == exit_status.FAILED
    assert sentences.ended_unrecorded(number) in command.stderr
    queue = job.cluster.run(["squeue", "--noheader"]).stdout
    assert queue == ""


def test_a_job_that_fails_is_told_and_ends_with_its_status(job: PlacedJob) -> None:
    command = submit(job, "--nodes", "2")
    number = number_of(job, command)
    job.until_stepping(2)
    job.say("fail.host2")
    assert job.status(command) == exit_status.FAILED
    outcome = (job.folder / "holdfast-jobs" / number / OVER_MARK).read_text().strip()
    assert outcome.startswith("failed: ")
    assert " on host2 " in outcome
    assert sentences.ended_as(number, outcome) in command.stderr


def test_a_job_that_was_stopped_ends_with_the_status_of_sigterm(job: PlacedJob) -> None:
    command = submit(job, "--nodes", "2")
    number = number_of(job, command)
    job.until_stepping(2)
    folder = job.folder / "holdfast-jobs" / number
    meeting = ("--rdzv-backend=file", f"--rdzv-endpoint={folder / REGISTER}")
    named = (f"--rdzv-id=slurm-{number}", f"--token-file={folder / TOKEN}")
    stopped = job.cluster.run([job.holdfast, "stop", *meeting, *named])
    assert stopped.status == 0, stopped.stderr
    assert job.status(command) == exit_status.BY_SIGNAL + signal.SIGTERM


def test_a_preempted_element_comes_back_when_there_is_room(job: PlacedJob) -> None:
    command = submit(job, "--nodes", "2:4", "--partition", "work")
    number_of(job, command)
    first = job.until_stepping(4)
    taken = job.hosts_of(first)[-1]
    urgent = job.start(
        "srun", "--partition=urgent", f"--nodelist={taken}", "--exclusive", "sleep", "600"
    )
    second = job.until_stepping(3, after=first)
    assert taken not in job.hosts_of(second)
    urgent.process.terminate()
    third = job.until_stepping(4, after=second)
    assert job.hosts_of(third)[-1] == taken
    assert job.finish(command) == 0
    job.check()


def test_one_allocation_outlives_a_lost_node(job: PlacedJob) -> None:
    command = submit(job, "--nodes", "2:3", "--one-allocation")
    number = number_of(job, command)
    first = job.until_stepping(3)
    batch_host = job.cluster.job(number)["BatchHost"]
    lost = next(host for host in job.hosts_of(first) if host != batch_host)
    job.cluster.lose(job.cluster.node(lost))
    job.until_stepping(2, after=first)
    assert job.finish(command) == 0
    assert f"job {number} succeeded" in command.stderr
    job.check()
