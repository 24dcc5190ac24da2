"""`--event-log-handler`: a handler of another package is told of every event of a real job."""

from __future__ import annotations

import json
import os
import signal
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from holdfast.observe import sentences

HANDLERS = """
import logging, os, time

class Writer(logging.FileHandler):
    def __init__(self):
        super().__init__("events")

class Failing(logging.Handler):
    def emit(self, record):
        open("asked", "a").write("x")
        raise RuntimeError("it cannot")

class Stuck(logging.Handler):
    def emit(self, record):
        if not os.path.exists("stuck"):
            os.mkfifo("gate")
            open("stuck", "w").close()
            open("gate").close()  # until somebody opens the other end
        open("told", "a").write("x")

class Slow(logging.NullHandler):
    def close(self):
        open("leaving", "w").close()
        while not os.path.exists("go"):
            time.sleep(0.002)

nothing = dict
"""


@pytest.fixture
def env(tmp_path: Path) -> dict[str, str]:
    """What finds an installed package with handlers in it."""
    package = tmp_path / "site" / "their_events-1.0.dist-info"
    package.mkdir(parents=True)
    (package / "METADATA").write_text("Metadata-Version: 2.1\nName: their-events\nVersion: 1.0\n")
    (package / "entry_points.txt").write_text(
        "[holdfast.event_handlers]\nwriter = their_events:Writer\nfailing = their_events:Failing\n"
        "stuck = their_events:Stuck\nslow = their_events:Slow\nnothing = their_events:nothing\n"
    )
    (package.parent / "their_events.py").write_text(HANDLERS)
    paths = (str(package.parent), os.environ.get("PYTHONPATH"))
    return {"PYTHONPATH": os.pathsep.join(filter(None, paths))}


Env = dict[str, str]
RunJob = Callable[..., Any]


def test_a_handler_is_told_what_the_journal_is(run_job: RunJob, env: Env) -> None:
    job = run_job("--event-log-handler=writer", "--no-warm", script="print('hello')", env=env)
    assert job.process.returncode == 0, job.stderr
    (journal,) = job.folder.glob("logs/*/journal.jsonl")
    assert job.read("events") == journal.read_text()
    assert '"type":"WorkerExited"' in journal.read_text()
    assert job.stdout == "hello\n"
    assert "WorkerExited" not in job.stderr


def test_the_same_handler_serves_holdfast_elastic(start_program: RunJob, env: Env) -> None:
    script = """
        from holdfast.elastic.events import Event, EventSource, record
        record(Event("mine", EventSource.WORKER), "writer")
    """
    job = start_program(sys.executable, "program.py", files={"program.py": script}, env=env)
    assert job.wait() == 0, job.stderr
    assert json.loads(job.read("events"))["name"] == "mine"


@pytest.mark.thorough
def test_a_handler_that_raises_is_said_so_once_and_the_job_goes_on(
    run_job: RunJob, env: Env
) -> None:
    job = run_job("--event-log-handler=failing", "--no-warm", script="print('hello')", env=env)
    assert job.process.returncode == 0, job.stderr
    failed = sentences.handler_failed("failing", RuntimeError("it cannot"))
    assert job.stderr.count(failed) == 1
    assert "Traceback" not in job.stderr
    assert len(job.read("asked")) > 1
    assert job.stdout == "hello\n"


def test_the_job_does_not_wait_for_a_handler(start_job: RunJob, env: Env) -> None:
    script = """
        import signal, time
        signal.signal(signal.SIGTERM, lambda *_: open("ended", "w").close() or exit())
        open("ready", "w").close()
        while True:
            time.sleep(0.01)  # Not `pause`, which sleeps through a signal just before it.
    """
    job = start_job("--event-log-handler=stuck", "--no-warm", script=script, env=env)
    job.until_files("stuck", "ready")
    job.send(signal.SIGTERM)
    job.until_files("ended")
    (job.folder / "gate").write_text("")
    assert job.wait() == 128 + signal.SIGTERM
    assert len(job.read("told")) == job.journal_lines(), "and in the end it has heard all"
    job.expect_nothing_left()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_that_comes_when_all_is_over_is_not_the_status(
    start_job: RunJob, env: Env, number: int
) -> None:
    job = start_job("--event-log-handler=slow", "--no-warm", script="print('hello')", env=env)
    job.until_files("leaving")
    job.send(number)
    (job.folder / "go").touch()
    assert job.wait() == 0, job.stderr
    job.expect_nothing_left()


def test_an_unknown_name_is_refused_with_those_that_are_known(run_job: RunJob, env: Env) -> None:
    job = run_job("--event-log-handler=nobodys", script="print('hello')", env=env)
    assert job.process.returncode == 2
    assert job.stderr == textwrap.dedent("""\
        holdfast: --event-log-handler: there is no event handler 'nobodys'
        hint: known: null, console, dynamic_rendezvous, failing, nothing, slow, stuck and writer
    """)


@pytest.mark.thorough
def test_what_is_no_handler_is_refused(run_job: RunJob, env: Env) -> None:
    job = run_job("--event-log-handler=nothing", script="print('hello')", env=env)
    assert job.process.returncode == 2
    why = TypeError(sentences.not_a_handler("nothing"))
    assert job.stderr == f"holdfast: {sentences.handler_not_made('nothing', why)}\n"
    assert job.stdout == ""
