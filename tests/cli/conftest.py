"""What the tests of the command line share."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from subprocess import DEVNULL, CompletedProcess, Popen

import pytest

from holdfast.cli.main import main

Run = Callable[..., CompletedProcess[str]]


def start_quietly(
    *words: str | Path, folder: Path | None = None, environ: Mapping[str, str] | None = None
) -> Popen[bytes]:
    """Start a command without any output."""
    variables = {**os.environ, **(environ or {})}
    return Popen(words, stdout=DEVNULL, stderr=DEVNULL, cwd=folder, env=variables)


@pytest.fixture
def call_holdfast(capsys: pytest.CaptureFixture[str]) -> Run:
    """Say words to the command in this process: for verbs that end before they start anything."""

    def call(*words: str) -> CompletedProcess[str]:
        status = main(list(words))
        return CompletedProcess(words, status, *capsys.readouterr())

    return call


FILES = {
    "train.py": "",
    "empty/notes.txt": "",
    "runnable/__main__.py": "",
    "package/__init__.py": "",
    "package/train.py": "",
    "package/sub/__init__.py": "",
    "package/sub/__main__.py": "",
    "growing/__init__.py": "__path__ = ['elsewhere']",
    "spread/train.py": "",
    "data.txt": "",
}


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder: with files, packages and a command."""
    for name, text in FILES.items():
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True, parents=True)
        path.write_text(text)
    (tmp_path / "tool").write_text("#!/bin/sh\n")
    (tmp_path / "tool").chmod(0o755)
    monkeypatch.chdir(tmp_path)
    return tmp_path


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
