"""Workers that do not exit when others have finished, with real processes."""

from __future__ import annotations

import os
import signal

import pytest

from holdfast.core.node_io import UnexitedFound, WorkerStarted
from holdfast.core.policy import kinds, sentences
from holdfast.processes.monitoring import debugger

from ..free_ports import free_port
from .conftest import Job

FIRST = """
import atexit, os, signal, threading, time
late = os.environ["RANK"] == "1"

def for_ever():
    while True:
        time.sleep(3600)
"""
THREAD = FIRST + "if late:\n    threading.Thread(target=for_ever).start()\n"
AT_EXIT = FIRST + "if late:\n    atexit.register(for_ever)\n"
DEAF = "if late:\n    signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
STILL_RUNS = FIRST + "if late:\n    for_ever()\n"
TOLD = sentences.not_exited("", 4.0, "").partition("4")[0]
LIMIT = "--exit-timeout=2"


def worker_1(job: Job) -> str:
    """The name of the late rank in sentences."""
    pid = next(one.pid for one in job.events(WorkerStarted) if one.local_rank == 1)
    return f"rank 1 on {os.uname().nodename} (pid {pid})"


@pytest.mark.parametrize("start", ["--preload=json", "--no-warm"])
@pytest.mark.parametrize("script", [THREAD, AT_EXIT], ids=["thread", "atexit"])
def test_one_that_is_past_its_end_is_told_of_and_ended_and_has_finished(
    run_job, start, script
) -> None:
    job = run_job("-n=2", LIMIT, start, script=script)
    assert job.process.returncode == 0, job.stderr
    named, ended = job.events(UnexitedFound)
    assert (named.ends, ended.ends) == (False, True)
    late = [*named.workers, *ended.workers]
    assert [(one.local_rank, one.is_finalizing) for one in late] == [(1, True), (1, True)]
    where = [sentences.at_exit(one.location, has_finished=True) for one in late]
    kept = [sentences.its_stack(one.file) for one in (named, ended)]
    who = worker_1(job)
    told = sentences.not_exited(who, 1.0, where[0] + kept[0])
    ending = sentences.ending_unexited(who, 2.0, where[1] + kept[1], has_finished=True)
    assert [(job.stderr.count(one)) for one in (told, ending)] == [1, 1]
    stack = (job.folder / named.file).read_text()
    assert "most recent call first" in stack
    if debugger.installed():
        assert "With frames of C" in stack


def test_one_that_does_not_heed_sigterm_is_killed_and_has_finished(run_job) -> None:
    job = run_job("-n=2", LIMIT, "--shutdown-timeout=0.1", script=THREAD + DEAF)
    assert job.process.returncode == 0, job.stderr


def test_one_that_still_runs_its_program_is_a_failure_with_where_it_was(run_job) -> None:
    job = run_job("-n=2", LIMIT, script=STILL_RUNS)
    assert job.process.returncode == 1
    ended = job.events(UnexitedFound)[-1]
    where = sentences.at_exit("in for_ever at program.py:7", has_finished=False)
    where += sentences.its_stack(ended.file)
    assert sentences.ending_unexited(worker_1(job), 2.0, where, has_finished=False) in job.stderr
    blame = job.outcome().blame
    assert blame is not None
    assert (blame.kind, blame.certainty) == (kinds.NO_EXIT, "certain")


def test_without_a_limit_it_is_told_of_once_and_waited_for(start_job) -> None:
    job = start_job("-n=3", "--hang-after=1", script=THREAD)
    job.until(lambda: TOLD in job.stderr, "a word of it")
    job.send(signal.SIGINT)
    assert job.wait() == 128 + signal.SIGINT
    assert job.stderr.count(TOLD) == 1
    job.expect_nothing_left()


def test_that_another_node_has_finished_is_told_to_the_one_with_the_late_rank(start_job) -> None:
    port = free_port()
    words = ("--nnodes=2", "-n=1", f"--rdzv-endpoint=127.0.0.1:{port}", "--rdzv-id=late", LIMIT)
    jobs = [start_job(*words, script=THREAD) for _ in range(2)]
    assert [job.wait() for job in jobs] == [0, 0], [job.stderr for job in jobs]
    words = [line for job in jobs for line in job.stderr.splitlines() if TOLD in line]
    assert len(words) == 2, words
    assert all("rank 1 on " in line for line in words)
