"""`--outcome-file`: how the job ended, and only that."""

from __future__ import annotations

import signal
import subprocess
from pathlib import Path

import pytest

from holdfast.agent.outcome_file import OutcomeFile
from holdfast.core.node_io import SignalReceived, Told
from holdfast.core.protocol.messages import CloseJob, StandBy
from holdfast.core.protocol.model import Outcome
from holdfast.observe.journal import NodeStep
from holdfast.runtime.disk import Disk
from holdfast.runtime.loop import EventLoop

from ..waiting import until
from .conftest import Run


def script(folder: Path, text: str) -> Path:
    (folder / "job.py").write_text(text)
    return folder / "job.py"


@pytest.mark.parametrize(
    ("text", "status", "begins"),
    [
        ("pass", 0, "succeeded: all workers succeeded\n"),
        ("raise SystemExit('a\\nb \\x1b[2Jc')", 1, "failed: "),
    ],
)
def test_the_outcome_is_written_on_one_line(
    run_holdfast: Run, tmp_path: Path, text: str, status: int, begins: str
) -> None:
    file = tmp_path / "outcome"
    done = run_holdfast("run", "--outcome-file", str(file), str(script(tmp_path, text)))
    assert done.returncode == status
    assert file.read_text().startswith(begins)
    assert file.read_text().count("\n") == 1
    assert [one.name for one in tmp_path.glob("outcome*")] == ["outcome"]


def test_a_job_that_was_asked_to_leave_has_no_outcome_yet(holdfast: Path, tmp_path: Path) -> None:
    file, started = tmp_path / "outcome", tmp_path / "started"
    text = f"import pathlib, time; pathlib.Path({str(started)!r}).touch(); time.sleep(600)"
    words = [str(holdfast), "run", f"--outcome-file={file}", str(script(tmp_path, text))]
    with subprocess.Popen(words, stderr=subprocess.DEVNULL) as process:
        until(started.exists, "a worker")
        process.send_signal(signal.SIGTERM)
    assert process.returncode == 128 + signal.SIGTERM
    assert not file.exists()


def test_a_file_that_cannot_be_written_is_told_and_the_job_goes_on(
    run_holdfast: Run, tmp_path: Path
) -> None:
    words = ("run", f"--outcome-file={tmp_path}/none/outcome", str(script(tmp_path, "pass")))
    done = run_holdfast(*words)
    assert done.returncode == 0
    assert f"--outcome-file {tmp_path}/none/outcome cannot be written: No such file" in done.stderr


@pytest.mark.parametrize(
    ("event", "is_written"),
    [
        (Told(CloseJob(Outcome("succeeded", "all workers succeeded", 0))), True),
        (Told(CloseJob(Outcome("not_formed", "too few nodes", 3))), True),
        (Told(CloseJob(Outcome("interrupted", "SIGTERM", 143, asked="job"))), False),
        (Told(StandBy("a spare")), False),
        (SignalReceived(signal.SIGTERM), False),
    ],
)
def test_only_the_word_of_the_coordinator_is_written(
    tmp_path: Path, event: Told | SignalReceived, is_written: bool
) -> None:
    loop = EventLoop()
    complaints: list[str] = []
    disk = Disk(loop, complaints.append)
    file = OutcomeFile(str(tmp_path / "outcome"), disk.lane("outcome"), complaints.append)
    file.feed(NodeStep(1, 1.0, event, []))
    loop.run_until(disk.all_done())
    disk.close()
    loop.close()
    assert (tmp_path / "outcome").exists() == is_written
    assert complaints == []
