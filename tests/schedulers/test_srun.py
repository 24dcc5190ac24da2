"""`srun holdfast run` with no flags about where it runs, on a real cluster."""

from __future__ import annotations

from pathlib import Path

import pytest

from .placed_job import ENDED_WELL, PlacedJob

IN_TIME = "--time=1"
REQUEUING = """
srun {line}
status=$?
echo "ended with $status"
[ $status -ne 75 ] || scontrol requeue $SLURM_JOB_ID
exit $status
"""
"""As docs/guides/slurm.md has it: Slurm does not queue a job again that ended by itself while it
was being preempted."""


def test_srun_needs_no_flags(job: PlacedJob) -> None:
    command = job.start("srun", "--nodes=3", *job.words())
    job.until_stepping(3)
    assert job.hosts_of(1) == ["host1", "host2", "host3"]
    assert job.finish(command) == 0
    assert "step 0: 3 nodes, this is node 2, meeting at host1:" in command.stderr
    job.check()


def test_a_killed_worker_is_restarted_where_it_was(job: PlacedJob) -> None:
    command = job.start("srun", "--nodes=2", *job.words("--max-restarts=1"))
    first = job.until_stepping(2)
    job.kill_worker(first, rank=1)
    second = job.until_stepping(2, after=first)
    assert job.hosts_of(second) == job.hosts_of(first)
    assert job.finish(command) == 0
    job.check()


def test_a_step_that_is_told_so_outlives_a_lost_node(job: PlacedJob) -> None:
    options = ("--nodes=3", "--no-kill", "--kill-on-bad-exit=0")
    command = job.start("srun", *options, *job.words("--nnodes=2:3"))
    first = job.until_stepping(3)
    job.cluster.lose(job.cluster.node("host3"))
    second = job.until_stepping(2, after=first)
    assert job.hosts_of(second) == ["host1", "host2"]
    job.say("finish")
    job.until(lambda: command.stderr.count(ENDED_WELL) == 2, "the end of both agents")
    job.check()


def test_two_jobs_on_the_same_nodes_do_not_clash(job: PlacedJob, tmp_path: Path) -> None:
    other = PlacedJob(job.cluster, _folder(tmp_path / "other"), job.holdfast)
    one = ("srun", "--nodes=2", "--nodelist=host1,host2", "--ntasks-per-node=1")
    first, second = job.start(*one, *job.words()), other.start(*one, *other.words())
    job.until_stepping(2)
    other.until_stepping(2)
    assert job.finish(first) == 0
    assert other.finish(second) == 0
    job.check()
    other.check()


def test_two_steps_of_one_job_do_not_clash(job: PlacedJob, tmp_path: Path) -> None:
    other = PlacedJob(job.cluster, _folder(tmp_path / "other"), job.holdfast)
    step = "srun --nodes=2 --ntasks=2 --ntasks-per-node=1 --overlap"
    script = f"{step} {job.line()} &\n{step} {other.line()} &\nwait -n && wait -n\n"
    number = job.submit(script, "--nodes=2", "--ntasks-per-node=2")
    job.until_stepping(2)
    other.until_stepping(2)
    job.say("finish")
    other.say("finish")
    job.cluster.until_state(number, "COMPLETED", "FAILED")
    assert job.cluster.job(number)["JobState"] == "COMPLETED", job.record()
    job.check()
    other.check()


def _folder(path: Path) -> Path:
    path.mkdir()
    return path


def test_no_command_of_slurms_is_needed_on_the_nodes(job: PlacedJob) -> None:
    words = ["srun", "--nodes=2", "env", f"PATH={job.holdfast.parent}", *job.words()]
    command = job.start(*words)
    job.until_stepping(2)
    assert job.finish(command) == 0


def test_a_heterogeneous_job_is_one_job(job: PlacedJob) -> None:
    script = f"srun --het-group=0,1 {job.line()}\n"
    shape = "#SBATCH --nodes=1 --ntasks=1\n#SBATCH hetjob\n#SBATCH --nodes=2 --ntasks=2\n"
    number = job.submit(shape + script)
    job.until_stepping(3)
    job.say("finish")
    job.cluster.until_state(number, "COMPLETED", "FAILED")
    assert job.cluster.job(number)["JobState"] == "COMPLETED", job.record()
    job.check()


def test_a_job_that_was_requeued_meets_anew(job: PlacedJob) -> None:
    number = job.submit(f"srun {job.line()}\n", "--nodes=2", "--requeue", "--open-mode=append")
    first = job.until_stepping(2)
    before = {worker.pid for worker in job.workers(first)}
    job.cluster.run(["scontrol", "requeue", number])
    job.until(lambda: _new_workers(job, before) == 2, "two new workers")
    job.say("finish")
    job.cluster.until_state(number, "COMPLETED", "FAILED")
    assert job.cluster.job(number)["JobState"] == "COMPLETED", job.record()
    assert "restart 1: 2 nodes" in job.output


def _new_workers(job: PlacedJob, before: set[int]) -> int:
    return len({w.pid for w in job.story.workers() if w.steps} - before)


def test_scancel_ends_all_of_it_and_leaves_nothing(job: PlacedJob) -> None:
    number = job.submit(f"srun {job.line()}\n", "--nodes=3")
    job.until_stepping(3)
    job.cluster.run(["scancel", number])
    job.cluster.until_state(number, "CANCELLED")
    job.until(lambda: not job.cluster.left(), "an empty node")
    assert "was interrupted" in job.output


def test_a_signal_before_the_time_limit_lets_the_job_come_back(job: PlacedJob) -> None:
    script = REQUEUING.format(line=job.line())
    # Slurm sends it up to 30 s earlier; never while the agents start, before they take signals.
    options = ("--nodes=2", IN_TIME, "--signal=USR1@25", "--requeue", "--open-mode=append")
    number = job.submit(script, *options)
    first = job.until_stepping(2)
    before = {worker.pid for worker in job.workers(first)}
    job.until(lambda: _new_workers(job, before) == 2, "two new workers")
    assert "ended with 75" in job.output
    job.say("finish")
    job.cluster.until_state(number, "COMPLETED", "FAILED")
    assert job.cluster.job(number)["JobState"] == "COMPLETED", job.record()


def test_a_time_limit_asks_all_nodes_to_leave_and_nothing_is_left(job: PlacedJob) -> None:
    number = job.submit(f"srun {job.line()}\n", "--nodes=2", IN_TIME)
    job.until_stepping(2)
    job.cluster.until_state(number, "TIMEOUT")
    job.until(lambda: not job.cluster.left(), "empty nodes")
    assert "DUE TO TIME LIMIT" in job.output
    assert "the job was interrupted: SIGTERM" in job.output
    job.check()


def test_a_preempted_job_is_told_leaves_and_comes_back(job: PlacedJob) -> None:
    options = ("--nodes=2", "--exclusive", "--requeue", "--open-mode=append", "--partition=work")
    number = job.submit(REQUEUING.format(line=job.line()), *options)
    first = job.until_stepping(2)
    before = {worker.pid for worker in job.workers(first)}
    host = job.hosts_of(first)[1]
    urgent = job.start("srun", "--partition=urgent", f"--nodelist={host}", "--exclusive", "true")
    assert job.status(urgent) == 0
    job.until(lambda: _new_workers(job, before) == 2, "two new workers")
    job.say("finish")
    job.cluster.until_state(number, "COMPLETED", "FAILED")
    assert job.cluster.job(number)["JobState"] == "COMPLETED", job.record()


def test_a_job_that_was_shrunk_goes_on_with_the_rest(job: PlacedJob) -> None:
    options = ("--nodes=3", "--ntasks-per-node=1", "--no-kill")
    number = job.submit(
        f"srun --no-kill --kill-on-bad-exit=0 {job.line('--nnodes=2:3')}\n", *options
    )
    first = job.until_stepping(3)
    said = job.cluster.run(["scontrol", "update", f"JobId={number}", "NumNodes=2"])
    assert said.status == 0, said.stderr
    second = job.until_stepping(2, after=first)
    assert job.hosts_of(second) == ["host1", "host2"]
    job.say("finish")
    job.until(lambda: job.output.count(ENDED_WELL) == 2, "the end of both agents")
    job.check()


@pytest.mark.parametrize(
    ("command", "message"),
    [
        (("salloc", "--nodes=2"), "has 2 nodes, but this was not started by srun"),
        (("srun", "--nodes=2", "--ntasks-per-node=2"), "2"),
    ],
)
def test_what_cannot_work_is_refused_with_the_command_that_does(
    job: PlacedJob, command: tuple[str, ...], message: str
) -> None:
    started = job.start(*command, *job.words())
    assert job.status(started) == 2
    assert message in started.stderr
    assert "srun --nodes=2 --ntasks=2 --ntasks-per-node=1" in started.stderr
