"""What the tests of the command line share."""

from __future__ import annotations

from pathlib import Path

import pytest


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
