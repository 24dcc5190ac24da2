"""Environments of schedulers, kept as files: `recorded` ones are real, `documented` ones are
not."""

from __future__ import annotations

from pathlib import Path

from holdfast.placement.model import Placement, PlacementRefusal
from holdfast.placement.schedulers import detect

HERE = Path(__file__).parent


def paths() -> list[Path]:
    return sorted([*HERE.glob("recorded/*.env"), *HERE.glob("documented/*.env")])


def variables(name: str) -> dict[str, str]:
    """The variables of an environment, by the name of its file."""
    return {key: text for key, text in _lines(name).items() if not key.startswith("@")}


def files(name: str) -> dict[str, str]:
    return {key[1:]: text for key, text in _lines(name).items() if key.startswith("@")}


def found(name: str, **changed: str) -> Placement | PlacementRefusal | None:
    """What is detected there, with some variables changed."""
    return detect(variables(name) | changed, files(name).get)


def _lines(name: str) -> dict[str, str]:
    (path,) = [path for path in paths() if path.stem == name]
    pairs = (line.partition("=") for line in path.read_text().splitlines() if line)
    return {key: text.replace("\\n", "\n") for key, _, text in pairs}
