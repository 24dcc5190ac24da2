"""`holdfast chaos`, on real jobs: with leave for it, and without."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from holdfast.cli.chaos import interval
from holdfast.core.protocol.errors import UsageError
from holdfast.processes.stdlib_only.linux import read_process

from ..waiting import until
from .conftest import Run, start_quietly

pytestmark = pytest.mark.slow  # Real jobs, for seconds each.

PROGRAM = """
import os
import time
import holdfast
pids = os.path.join(os.path.dirname(__file__), "pids")
os.makedirs(pids, exist_ok=True)
open(f"{pids}/{os.getpid()}", "w").close()
for step in range(100_000):
    holdfast.progress(step)
    time.sleep(0.05)
"""
NAME = f"faults-{os.getpid()}"


@pytest.fixture
def start(tmp_path: Path, holdfast: Path) -> Iterator[Callable[..., None]]:
    (tmp_path / "steps.py").write_text(PROGRAM)
    jobs: list[subprocess.Popen[bytes]] = []

    def run(*words: str) -> None:
        options = ("-n2", f"--rdzv-id={NAME}", "--max-restarts=9", "--no-warm", *words)
        jobs.append(start_quietly(holdfast, "run", *options, tmp_path / "steps.py"))

    yield run
    for job in jobs:
        job.kill()
        job.wait()


def test_faults_are_injected_and_the_job_recovers(
    start: Callable[..., None], run_holdfast: Run
) -> None:
    start("--allow-chaos")
    until(lambda: "step " in run_holdfast("status", NAME).stdout, "the job steps")
    faults = ("--kill-worker", "1/2s", "--for", "4s", "--seed", "5")
    told = run_holdfast("chaos", NAME, *faults, timeout=100)
    assert told.returncode == 0, told.stderr
    assert "injecting faults for 4.0 s, seed 5" in told.stdout
    assert "kill worker: rank " in told.stdout
    until(lambda: "recovered in" in run_holdfast("events", NAME).stdout, "it recovered")


def test_a_worker_that_is_paused_stalls_and_continues(
    start: Callable[..., None], run_holdfast: Run, holdfast: Path, tmp_path: Path
) -> None:
    start("--allow-chaos")
    until(lambda: "step " in run_holdfast("status", NAME).stdout, "the job steps")
    pids = [int(file.name) for file in (tmp_path / "pids").iterdir()]

    def states() -> set[str]:
        return {one.state for pid in pids if (one := read_process(pid))}

    faults = ("--pause-worker", "0.2s", "--pause-time", "3s", "--for", "1s", "--seed", "5")
    with subprocess.Popen([holdfast, "chaos", NAME, *faults], stdout=subprocess.PIPE) as chaos:
        until(lambda: "T" in states(), "a worker is stopped")
        assert b"pause worker: rank " in chaos.communicate(timeout=100)[0]
    until(lambda: "T" not in states(), "it goes on")
    assert "worker failed" not in run_holdfast("events", NAME, "--json").stdout


def test_without_leave_for_it_nothing_is_harmed(
    start: Callable[..., None], run_holdfast: Run
) -> None:
    start()
    until(lambda: "step " in run_holdfast("status", NAME).stdout, "the job steps")
    told = run_holdfast("chaos", NAME, "--kill-worker", "0.2s", "--for", "1s", timeout=100)
    assert told.returncode == 1
    assert told.stderr == "holdfast: this job was not started with --allow-chaos\n"
    assert "worker failed" not in run_holdfast("events", NAME, "--json").stdout


@pytest.mark.parametrize(
    ("text", "length"), [("30s", 30.0), ("1/30s", 30.0), ("5m", 300.0), ("2h", 7200.0), ("9", 9.0)]
)
def test_times_are_read_as_they_are_written(text: str, length: float) -> None:
    assert interval(text) == length


@pytest.mark.parametrize("text", ["", "x", "-3s", "0s", "1/0s", "3 weeks"])
def test_what_is_no_time_is_refused(text: str) -> None:
    with pytest.raises(UsageError):
        interval(text)
