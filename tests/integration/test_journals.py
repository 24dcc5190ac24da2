"""The journals of real jobs: whole, readable, and replayed to the same decisions."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest
from tools.journals.replay import replay

from holdfast.core.node_io import Finish, ModuleRejected
from holdfast.observe import journal
from holdfast.observe.journal import CoordinatorStep, ElectionStep, NodeStep

from .conftest import Job, StartJob

STARTS = pytest.mark.parametrize("start", ["--preload=json", "--no-warm"])
STAY = """
import os, time
open(f"ready.{os.environ['RANK']}", "w").close()
while True:
    time.sleep(0.01)  # Not `pause`, which sleeps through a signal that comes just before it.
"""


def journal_of(job: Job) -> Path:
    path = job.journal()
    assert path is not None
    return path


def expect_replay(job: Job, verdict: str) -> list[journal.Step]:
    """Every line is whole, the story ends as the job did, and the core tells it again."""
    path = journal_of(job)
    text = path.read_text()
    assert text.endswith("\n")
    lines = [json.loads(line) for line in text.splitlines()]
    assert lines[0]["schema"] == journal.SCHEMA
    assert [line["seq"] for line in lines[1:]] == list(range(1, len(lines)))
    times = [line["at"] for line in lines[1:]]
    assert times == sorted(times)
    header, written = journal.read(path)
    assert list(replay(header, written)) == []
    effects = [effect for step in written if isinstance(step, NodeStep) for effect in step.effects]
    (finish,) = [effect for effect in effects if isinstance(effect, Finish)]
    assert finish.outcome.verdict == verdict
    return written


def names(steps: list[journal.Step]) -> list[str]:
    taken = [step for step in steps if isinstance(step, NodeStep | CoordinatorStep | ElectionStep)]
    return [type(step.event).__name__ for step in taken]


@STARTS
def test_the_journal_of_a_success(run_job: StartJob, start: str) -> None:
    job = run_job(start, "--nproc-per-node=2", script="print('fine')")
    steps = expect_replay(job, "succeeded")
    assert names(steps).count("WorkerStarted") == 2
    assert names(steps).count("WorkerExited") == 2


@STARTS
def test_the_journal_of_a_failure(run_job: StartJob, start: str) -> None:
    script = "import os, signal\nif os.environ['RANK'] == '1': raise ValueError('ü\\ud800\\n')\n"
    job = run_job(start, "--nproc-per-node=2", script=script + "signal.pause()")
    expect_replay(job, "failed")


@STARTS
def test_the_journal_of_restarts(run_job: StartJob, start: str) -> None:
    script = "import os\nraise SystemExit(int(os.environ['HOLDFAST_ROUND']) < 4)"
    words = ("--nproc-per-node=2", "--max-restarts=3", "--restart-backoff=0.01")
    job = run_job(start, *words, script=script)
    steps = expect_replay(job, "succeeded")
    assert names(steps).count("AllGone") == 3


@pytest.mark.thorough
@STARTS
def test_the_journal_of_restarts_that_were_not_enough(run_job: StartJob, start: str) -> None:
    words = ("--nproc-per-node=2", "--max-restarts=1", "--restart-window=600")
    job = run_job(start, *words, script="import os\nos.abort()")
    expect_replay(job, "failed")


@pytest.mark.parametrize("times", [1, 2])
def test_the_journal_of_an_interrupt(start_job: StartJob, times: int) -> None:
    job = start_job("--nproc-per-node=2", "--shutdown-timeout=600", script=STAY)
    job.until_files("ready.0", "ready.1")
    for _ in range(times):
        job.send(signal.SIGINT)
        job.until(lambda: '"SignalReceived"' in journal_of(job).read_text(), "the signal")
    assert job.wait() == 130
    steps = expect_replay(job, "interrupted")
    assert "SignalReceived" in names(steps)


def test_the_journal_of_a_lost_spawner(start_job: StartJob) -> None:
    job = start_job("--nproc-per-node=2", script=STAY)
    job.until_files("ready.0", "ready.1")
    os.kill(job.spawner(), signal.SIGKILL)
    assert job.wait() == 1
    assert "SpawnerLost" in names(expect_replay(job, "failed"))


def test_the_journal_of_a_module_that_cannot_be_preloaded(run_job: StartJob) -> None:
    files = {"modules/unfit.py": "raise RuntimeError('not here')"}
    job = run_job("--preload=unfit", script="", files=files, env={"PYTHONPATH": "modules"})
    steps = expect_replay(job, "succeeded")
    events = [step.event for step in steps if isinstance(step, NodeStep)]
    (rejected,) = [event for event in events if isinstance(event, ModuleRejected)]
    assert "not here" in rejected.reason


@pytest.mark.thorough
def test_the_journal_of_progress(run_job: StartJob) -> None:
    script = "import holdfast\nfor step in range(5):\n    holdfast.progress(step)"
    job = run_job(script=script)
    assert "StepReported" in names(expect_replay(job, "succeeded"))


def test_what_a_worker_said_last_comes_before_its_end(start_job: StartJob) -> None:
    """It is heard by another way, and the agent may have been busy with something else."""
    script = """
        import os, time
        import holdfast
        open("new", "w").write(str(os.getpid()))
        os.rename("new", "pid")
        while not os.path.exists("go"):
            time.sleep(0.002)
        holdfast.progress(7)
        raise ValueError("and no more")
    """
    job = start_job("--no-warm", script=script)
    job.until_files("pid")
    job.until(lambda: "WorkerStarted" in journal_of(job).read_text(), "it in the journal")
    job.send(signal.SIGSTOP)
    (job.folder / "go").touch()
    worker = f"/proc/{job.read('pid')}"
    job.until(lambda: not os.path.exists(worker), "its end")
    job.send(signal.SIGCONT)
    assert job.wait() == 1
    told = names(expect_replay(job, "failed"))
    assert told.index("StepReported") < told.index("WorkerExited")


def test_a_journal_that_was_cut_off_by_a_kill_can_be_read(start_job: StartJob) -> None:
    job = start_job("--nproc-per-node=2", script=STAY)
    job.until_files("ready.0", "ready.1")
    # The workers may be quicker than the word of them.
    job.until(
        lambda: journal_of(job).read_text().count("WorkerStarted") == 2, "both in the journal"
    )
    job.process.kill()
    job.wait()
    with open(journal_of(job), "ab") as file:
        file.write(b'{"seq": 99, "at"')  # As if it had been in the middle of a line.
    header, steps = journal.read(journal_of(job))
    assert list(replay(header, steps)) == []
    assert names(steps).count("WorkerStarted") == 2
    job.expect_nothing_left()


def test_what_is_secret_stays_out_of_the_journal(run_job: StartJob) -> None:
    """The program's arguments may hold a password; the environment certainly does."""
    job = run_job(script="", args=("--password=hunter2",), env={"API_KEY": "xyzzy"})
    text = journal_of(job).read_text()
    assert "hunter2" not in text
    assert "xyzzy" not in text
    assert os.stat(journal_of(job)).st_mode & 0o077 == 0
