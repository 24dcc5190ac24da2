"""Tests mirror the source: whoever opens a folder of the source finds its tests at once.

For `src/holdfast/a/b` there is a folder `tests/a/b` with tests in it, but for those in the table,
each with where its tests are and why.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

TESTS = Path(__file__).resolve().parent
SOURCE = TESTS.parent / "src" / "holdfast"

ELSEWHERE = {
    "elastic/launcher": (
        "elastic/agent/server/test_local_elastic_agent.py",
        "a launcher is seen by the agents that it runs",
    ),
    "elastic/utils/data": ("elastic/utils/test_utils.py", "two small classes"),
}
"""By folder of the source: where its tests are, and why there."""


def folders(source: Path) -> Iterator[str]:
    """Every folder below that has code of its own, and not only the name of a package."""
    for folder in sorted(source.rglob("*")):
        if folder.is_dir() and any(path.name != "__init__.py" for path in folder.glob("*.py")):
            yield folder.relative_to(source).as_posix()


def without_tests(source: Path, tests: Path) -> list[str]:
    found = []
    for folder in folders(source):
        place = tests / (ELSEWHERE[folder][0] if folder in ELSEWHERE else folder)
        if not (place.is_file() or any(place.rglob("test_*.py"))):
            found.append(f"{folder}: there are no tests in {place}")
    return found


def test_every_folder_of_the_source_has_its_tests() -> None:
    found = without_tests(SOURCE, TESTS)
    assert not found, "\n" + "\n".join(found)


def test_the_table_has_no_folder_that_is_gone_or_has_tests_of_its_own() -> None:
    known = set(folders(SOURCE))
    for folder in ELSEWHERE:
        assert folder in known, f"{folder} is no folder of the source"
        assert not any((TESTS / folder).rglob("test_*.py")), f"{folder} has tests of its own"


def test_the_walk_sees_the_real_package() -> None:
    assert {"core/features", "engine", "processes/zygote"} <= set(folders(SOURCE))


def test_a_folder_without_tests_is_found(tmp_path: Path) -> None:
    for name in ("src/engine/engine.py", "src/engine/deep/part.py", "src/stdlib_only/__init__.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    tests = tmp_path / "tests"
    (tests / "engine").mkdir(parents=True)
    assert len(without_tests(tmp_path / "src", tests)) == 2
    (tests / "engine" / "test_engine.py").touch()
    (found,) = without_tests(tmp_path / "src", tests)
    assert found.startswith("engine/deep:")
