"""What the tests of the command line share."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess

import pytest

from holdfast.cli.main import main

Call = Callable[..., CompletedProcess[str]]


@pytest.fixture
def call_holdfast(capsys: pytest.CaptureFixture[str]) -> Call:
    """Say words to the command in this process: for verbs that end before they start anything."""

    def call(*words: str) -> CompletedProcess[str]:
        status = main(list(words))
        return CompletedProcess(words, status, *capsys.readouterr())

    return call


@pytest.fixture
def plugins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An installed package that registers what users can plug in."""
    package = tmp_path / "plugins-1.0.dist-info"
    package.mkdir()
    (package / "METADATA").write_text("Metadata-Version: 2.1\nName: plugins\nVersion: 1.0\n")
    (package / "entry_points.txt").write_text(
        "[torchrun.logs_specs]\nrecorder = plugins:Recorder\n"
        "[holdfast.registers]\nblackboard = plugins:Blackboard\n"
        "[torchrun.handlers]\ncarrier-pigeon = plugins:pigeon\n"
        "[holdfast.event_handlers]\nparchment = plugins:Parchment\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
