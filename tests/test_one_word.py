"""One word, one meaning: no two classes of the source share a name.

A reader who meets a name anywhere knows which thing is meant, and a search finds that thing only.
Names in `elastic/` are PyTorch's, and may be the same as ours.
"""

from __future__ import annotations

import ast
import functools
from collections import defaultdict
from pathlib import Path

SOURCE = Path(__file__).resolve().parent.parent / "src" / "holdfast"


@functools.cache
def classes(source: Path) -> dict[str, list[str]]:
    """Where each class name stands that a module has at its top, private ones included.

    Without those of `elastic/`, whose names are PyTorch's.
    """
    found: defaultdict[str, list[str]] = defaultdict(list)
    for path in sorted(source.rglob("*.py")):
        if "elastic" in path.relative_to(source).parts:
            continue
        for statement in ast.parse(path.read_text(encoding="utf-8"), filename=str(path)).body:
            if isinstance(statement, ast.ClassDef):
                found[statement.name].append(f"{path}:{statement.lineno}")
    return found


def doubles(source: Path) -> list[str]:
    """Every class name that stands more than once, and where."""
    return [
        f"{name}: {', '.join(places)}"
        for name, places in classes(source).items()
        if len(places) > 1
    ]


def test_every_class_name_stands_once() -> None:
    found = doubles(SOURCE)
    assert not found, "give each its own name:\n" + "\n".join(found)


def test_the_walk_sees_the_real_package() -> None:
    assert {"Record", "Register", "Spawner"} <= classes(SOURCE).keys()


def test_a_name_that_stands_twice_is_found(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / f"{name}.py").write_text(f"class Watch: ...\nclass {name.title()}: ...\n")
    (found,) = doubles(tmp_path)
    assert found.startswith("Watch: ")
    assert "one.py:1" in found
    assert "two.py:1" in found
