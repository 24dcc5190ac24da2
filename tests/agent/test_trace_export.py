"""What becomes of a job whose traces cannot be told."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from holdfast.agent.trace_export import TraceExport, _without_secrets
from holdfast.core.policy.config import JobConfig, Program
from holdfast.observe.journal import SCHEMA, ClockPair, Journal, JournalHeader


class Lane:
    """Keeps what it is to do."""

    def __init__(self) -> None:
        self.work: list[Callable[[], str | None]] = []

    def do(self, work: Callable[[], str | None], then: Callable[[str], None]) -> None:
        self.work.append(work)


def test_what_others_packages_raise_is_told_once_and_nothing_is_tried_after_it() -> None:
    config = JobConfig("job", Program("command", "train"))
    header = JournalHeader(SCHEMA, "job", "node", "host", "", config, ClockPair(0.0, 0.0))
    lane, calls = Lane(), []
    traces = TraceExport(Journal(None, header), lane, lambda _: None)  # type: ignore[arg-type]
    lane.work.clear()

    def broken() -> None:
        calls.append(1)
        raise KeyError("no such setting")

    for work in (lambda: None, broken, broken):
        traces._do(work)
    assert [work() for work in lane.work] == [None, "KeyError: 'no such setting'", None]
    assert calls == [1]


def test_a_password_in_an_endpoint_is_not_repeated() -> None:
    assert _without_secrets("https://me:secret@here:4318/x") == "https://here:4318/x"
    assert _without_secrets("here:4318") == "here:4318"


def test_without_the_packages_it_is_a_mistake_of_the_command_line(
    tmp_path: Path, holdfast: Path
) -> None:
    hidden = tmp_path / "opentelemetry"
    hidden.mkdir()
    (hidden / "__init__.py").touch()
    (tmp_path / "program.py").touch()
    command = [sys.executable, str(holdfast), "run", "--otel", str(tmp_path / "program.py")]
    run = subprocess.run(
        command, env={"PYTHONPATH": str(tmp_path)}, capture_output=True, text=True, check=False
    )
    assert run.returncode == 2
    assert run.stderr == (
        "holdfast: --otel: OpenTelemetry is not installed\nhint: pip install 'holdfast[otel]'\n"
    )
