"""Which versions workers are found to get."""

from __future__ import annotations

import sys
from pathlib import Path

from holdfast.core.protocol.bounds import LINE_MOST
from holdfast.processes.host.versions import of_workers


def test_what_lies_near_the_program_is_told_and_of_the_rest_what_matters(tmp_path: Path) -> None:
    (tmp_path / "near").mkdir()
    (tmp_path / "near" / "Layers-1.2.dist-info").mkdir()
    (tmp_path / "program").mkdir()
    (tmp_path / "program" / "own-3-py3.11.egg-info").mkdir()
    (tmp_path / "program" / "no-info").mkdir()
    environ = {"PYTHONPATH": f"{tmp_path / 'near'}:{tmp_path / 'missing'}:"}
    told = of_workers(environ, str(tmp_path / "program")).split(", ")
    assert told[0] == f"Python {'.'.join(map(str, sys.version_info[:3]))}"
    assert told[1:3] == ["own 3", "layers 1.2"]
    assert any(entry.startswith("numpy ") for entry in told)
    assert not any(entry.startswith("pytest ") for entry in told)


def test_arguments_are_told_as_one_entry() -> None:
    told = of_workers({}, None, ("--names", "a, b", "--lr=1")).split(", ")
    assert told[1] == "arguments --names a,b --lr=1"


def test_its_length_is_bounded(tmp_path: Path) -> None:
    for number in range(300):
        (tmp_path / f"package_{number}-1.0.dist-info").mkdir()
    assert len(of_workers({}, str(tmp_path))) <= LINE_MOST
