"""Deadlines that are options, and PyTorch's file timer, in real jobs."""

from __future__ import annotations

import time
from pathlib import Path

from ..timers_of_processes import timers_of

# Rank 1 is late as the test says; rank 0 is not, and waits.
LATE = """
import os, time, holdfast

def work():
    while not os.path.exists("never"):
        time.sleep(0.01)

if os.environ["RANK"] == "0" or {is_early}:
    holdfast.progress(1)
work()
"""
TIMED = """
import os, time
from holdfast.elastic import timer

def load():
    time.sleep(600)

timer.configure(timer.FileTimerClient(os.environ["TORCHELASTIC_TIMER_FILE"]))
with timer.expires(after=600, scope="quick"):
    open(f"path.{os.environ['RANK']}", "w").write(os.environ["TORCHELASTIC_TIMER_FILE"])
if os.environ["RANK"] == "1":
    with timer.expires(after=1.0, scope="loading the data"):
        load()
time.sleep(600)
"""


def test_a_worker_without_a_sign_is_ended_for_it(run_job) -> None:
    job = run_job("-n", "2", "--start-timeout=2", script=LATE.format(is_early=False))
    assert job.process.returncode == 1
    words = "the time to its first sign (--start-timeout 2) ran out while it was in work at"
    assert f"holdfast: rank 1: {words} program.py" in job.stderr
    assert "  Cause: deadline, certain\n    who      rank 1 on" in job.stderr


def test_the_whole_run_has_a_time_and_is_not_tried_again(run_job) -> None:
    words = ("-n", "2", "--run-timeout=2", "--max-restarts=5")
    job = run_job(*words, script=LATE.format(is_early=True))
    assert job.process.returncode == 1
    assert "the time of the whole run (--run-timeout 2) ran out while it was in work" in job.stderr
    assert "  Cause: run time used up, certain\n    who      the whole job\n" in job.stderr
    assert "round 2" not in job.stderr
    assert list(job.folder.glob("logs/*/attempt_0/stacks_1.txt"))


def test_a_timer_of_pytorchs_file_timer_ends_its_worker_with_the_scope_named(run_job) -> None:
    job = run_job("-n", "2", script=TIMED, env={"TORCHELASTIC_ENABLE_FILE_TIMER": "1"})
    assert job.process.returncode == 1
    assert "rank 1: the timer of loading the data ran out while it was in load" in job.stderr
    assert "its stack: " in job.stderr
    path = Path(job.read("path.1"))
    assert path == Path(job.read("path.0"))
    assert not path.exists(), "the pipe is left"


def test_an_agent_waits_on_the_clock_of_leases(start_job) -> None:
    """With timeouts alone nobody would see, after a suspend, that a lease is over."""
    job = start_job("--no-warm", script="open('began', 'w'); import signal; signal.pause()")
    job.until_files("began")
    assert [timer.clock for timer in timers_of(job.process.pid)] == [time.CLOCK_BOOTTIME]
