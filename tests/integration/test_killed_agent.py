"""The agent is killed at one moment after the other of a job's life: nothing survives it.

The job goes through everything that an agent does: it starts a spawner and a zygote, forks
workers that have children of their own, stops a round in which a stubborn worker has to be
killed, restarts, and ends well. The moments are the lines of its journal as they appear, and
before there is one, what else can be seen of it.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable

import pytest

from .conftest import Job, StartJob, command_of

LIFE = """
import os, signal, sys

signal.signal(signal.SIGTERM, signal.SIG_IGN)
if os.fork() == 0:
    os.setsid()
    while True:
        signal.pause()
if os.environ["HOLDFAST_ROUND"] == "1":
    if os.environ["RANK"] == "1":
        sys.exit(3)
    while True:
        signal.pause()
"""
LINES = 31
"""About as many as the journal of such a job has."""
LEAST = LINES - 4
"""So many it has in any case."""
ATTEMPTS = 10
"""A job whose agent gets further than the moment, before it is killed, is started again."""


def start_life(start_job: StartJob, *words: str) -> Job:
    options = ("--nproc-per-node=2", "--max-restarts=1", "--shutdown-timeout=0.1")
    return start_job(*options, *words, script=LIFE)


def kill_when(start: Callable[[], Job], has_come: Callable[[Job], bool]) -> None:
    """Kill the agent of a job as soon as the moment has come; what it started has to go too."""
    for _ in range(ATTEMPTS):
        job = start()
        while not has_come(job) and job.process.poll() is None:
            time.sleep(0)
        job.process.kill()
        status = job.wait()
        job.expect_nothing_left()
        if status == -signal.SIGKILL:
            return
    pytest.fail(f"each of {ATTEMPTS} jobs was over before its agent could be killed")


@pytest.mark.parametrize(
    "line",
    [
        pytest.param(line, marks=[pytest.mark.thorough] * (line % 3 > 0))
        for line in range(1, LEAST + 1)
    ],
)
def test_nothing_survives_a_kill_at_a_line_of_the_journal(start_job: StartJob, line: int) -> None:
    kill_when(lambda: start_life(start_job), lambda job: job.journal_lines() >= line)


@pytest.mark.thorough(but=("8", "16", "24"))
@pytest.mark.parametrize("line", range(7, LEAST + 1, 9))
def test_nothing_survives_a_kill_at_a_line_of_the_journal_of_a_cold_job(
    start_job: StartJob, line: int
) -> None:
    kill_when(lambda: start_life(start_job, "--no-warm"), lambda job: job.journal_lines() >= line)


def test_the_moments_cover_the_whole_life(start_job: StartJob) -> None:
    """Else the tests above would have no job left to kill, or never reach the restart."""
    job = start_life(start_job)
    assert job.wait() == 0
    assert LEAST <= job.journal_lines() <= LINES + 4


@pytest.mark.parametrize("processes", [1, 2, 3])
def test_nothing_survives_a_kill_while_the_first_processes_appear(
    start_job: StartJob, processes: int
) -> None:
    """The agent itself, then its spawner, then the zygote."""
    kill_when(lambda: start_life(start_job), lambda job: len(job.running()) >= processes)


def test_nothing_survives_a_kill_as_soon_as_there_is_a_log_directory(start_job: StartJob) -> None:
    kill_when(lambda: start_life(start_job), lambda job: (job.folder / "logs").exists())


def test_nothing_survives_a_kill_while_modules_are_preloaded(start_job: StartJob) -> None:
    """The zygote sits in somebody's import, which has started a process of its own."""
    job = start_with_slow_import(start_job)
    job.process.kill()
    job.wait()
    job.expect_nothing_left()


def test_a_killed_spawner_is_reported_while_modules_are_preloaded(start_job: StartJob) -> None:
    job = start_with_slow_import(start_job)
    os.kill(job.spawner(), signal.SIGKILL)
    assert job.wait() == 1
    assert "the spawner" in job.stderr
    job.expect_nothing_left()


def test_a_killed_zygote_costs_nothing_but_the_warm_start(start_job: StartJob) -> None:
    script = """
        import os, signal, sys, time
        rank, number = os.environ["RANK"], os.environ["HOLDFAST_ROUND"]
        open(f"pid.{number}.{rank}", "w").write(str(os.getppid()))
        while not os.path.exists("go"):
            time.sleep(0.002)
        sys.exit(3 if number == "1" and rank == "1" else 0)
    """
    job = start_job("--nproc-per-node=2", "--max-restarts=1", script=script)
    job.until_files("pid.1.0", "pid.1.1")
    os.kill(zygote_of(job), signal.SIGKILL)
    job.until(lambda: "workers start cold" in job.stderr, "the agent to notice")
    (job.folder / "go").touch()
    assert job.wait() == 0, job.stderr
    assert (job.folder / "pid.2.1").exists()
    job.expect_nothing_left()


def start_with_slow_import(start_job: StartJob) -> Job:
    """A job that is preloading and never done: an import waits for a child of its own."""
    endless = """
        import signal, subprocess
        child = subprocess.Popen(["sleep", "1000"])
        open("importing", "w").close()
        child.wait()
    """
    job = start_job(
        "--preload=endless",
        script="print('never reached')",
        files={"modules/endless.py": endless},
        env={"PYTHONPATH": "modules"},
    )
    job.until_files("importing")
    return job


def zygote_of(job: Job) -> int:
    """The process whose command still names its own script."""
    for pid in job.running():
        if b"zygote.py" in command_of(pid):
            return pid
    raise AssertionError("there is no zygote")
