"""Deadlines that are options, and PyTorch's file timer, in real jobs."""

from __future__ import annotations

import os
import time
from pathlib import Path

from holdfast.core.node_io import DeadlineMissed, StartWorkers
from holdfast.core.policy import kinds, sentences
from holdfast.observe.report import render

from ..timers_of_processes import timers_of
from .conftest import Job

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


def expect_blame(job: Job, kind: str, who: str) -> None:
    """The report names this cause, as certain."""
    outcome = job.outcome()
    assert outcome.blame is not None
    assert (outcome.blame.kind, outcome.blame.who) == (kind, who)
    assert outcome.blame.certainty == "certain"
    assert render(outcome, None) in job.stderr


def test_a_worker_without_a_sign_is_ended_for_it(run_job) -> None:
    job = run_job("-n", "2", "--start-timeout=2", script=LATE.format(is_early=False))
    assert job.process.returncode == 1
    (missed,) = job.events(DeadlineMissed)
    assert missed.location.startswith("in work at program.py:")
    words = sentences.deadline_missed(sentences.first_sign_time(2.0), missed.location)
    assert f"holdfast: {sentences.ending_for_deadline(1, words, missed.file)}\n" in job.stderr
    expect_blame(job, kinds.DEADLINE, f"rank 1 on {os.uname().nodename}")


def test_the_whole_run_has_a_time_and_is_not_tried_again(run_job) -> None:
    words = ("-n", "2", "--run-timeout=2", "--max-restarts=5")
    job = run_job(*words, script=LATE.format(is_early=True))
    assert job.process.returncode == 1
    missed = job.events(DeadlineMissed)
    assert missed
    assert all(each.location.startswith("in work at program.py:") for each in missed)
    words = sentences.deadline_missed(sentences.run_time(2.0), missed[0].location)
    assert words in job.stderr
    expect_blame(job, kinds.RUN_TIME, "the whole job")
    assert len(job.effects(StartWorkers)) == 1
    assert list(job.folder.glob("logs/*/attempt_0/stacks_1.txt"))


def test_a_timer_of_pytorchs_file_timer_ends_its_worker_with_the_scope_named(run_job) -> None:
    job = run_job("-n", "2", script=TIMED, env={"TORCHELASTIC_ENABLE_FILE_TIMER": "1"})
    assert job.process.returncode == 1
    (missed,) = job.events(DeadlineMissed)
    assert missed.location.startswith("in load at program.py:")
    words = sentences.deadline_missed(sentences.scope_timer("loading the data"), missed.location)
    assert missed.file
    assert sentences.ending_for_deadline(1, words, missed.file) in job.stderr
    path = Path(job.read("path.1"))
    assert path == Path(job.read("path.0"))
    assert not path.exists(), "the pipe is left"


def test_an_agent_waits_on_the_clock_of_leases(start_job) -> None:
    """With timeouts alone nobody would see, after a suspend, that a lease is over."""
    job = start_job("--no-warm", script="open('began', 'w'); import signal; signal.pause()")
    job.until_files("began")
    assert [timer.clock for timer in timers_of(job.process.pid)] == [time.CLOCK_BOOTTIME]
