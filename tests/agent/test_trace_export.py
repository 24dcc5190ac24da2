"""What becomes of a job whose traces cannot be told."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from holdfast.agent.trace_export import SpanSender, _guarded, _without_secrets


def test_what_others_packages_raise_is_said_once_and_nothing_is_tried_after_it() -> None:
    sender, calls = SpanSender(), []

    def broken() -> None:
        calls.append(1)
        raise KeyError("no such setting")

    assert _guarded(broken, sender) == "KeyError: 'no such setting'"
    assert _guarded(broken, sender) is None
    assert calls == [1]


def test_what_goes_well_is_not_worth_a_word() -> None:
    sender = SpanSender()
    assert _guarded(lambda: None, sender) is None
    assert not sender.is_broken


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
    command = [sys.executable, holdfast, "run", "--otel", tmp_path / "program.py"]
    run = subprocess.run(
        command, env={"PYTHONPATH": str(tmp_path)}, capture_output=True, text=True, check=False
    )
    assert run.returncode == 2
    assert run.stderr == (
        "holdfast: --otel: OpenTelemetry is not installed\nhint: pip install 'holdfast[otel]'\n"
    )
