"""The benchmarks run: what they import is there; those without PyTorch run, at their smallest."""

from __future__ import annotations

import ast
import importlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from benchmarks import journal_size, register_load
from benchmarks.figures import HOLDFAST
from tools.journals.replay import replay

from holdfast.core.protocol.document import LIMIT_BYTES
from holdfast.observe import journal

from .smallest import SMALLEST

REPOSITORY = Path(__file__).parents[2]
FILES = sorted((REPOSITORY / "benchmarks").rglob("*.py"))


def names_taken(path: Path) -> Iterator[tuple[str, str]]:
    """The names of ours that a file imports anywhere, with the module of each."""
    for statement in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(statement, ast.ImportFrom) and statement.module:
            if statement.module.partition(".")[0] in ("holdfast", "benchmarks", "tests"):
                yield from ((statement.module, alias.name) for alias in statement.names)
        elif isinstance(statement, ast.Import):
            ours = (alias.name for alias in statement.names if alias.name.startswith("holdfast"))
            yield from ((name, "__name__") for name in ours)


@pytest.mark.parametrize("path", FILES, ids=[str(file.relative_to(REPOSITORY)) for file in FILES])
def test_what_a_benchmark_imports_of_ours_is_there(path: Path) -> None:
    for name, taken in names_taken(path):
        module = importlib.import_module(name)
        if not hasattr(module, taken):
            importlib.import_module(f"{name}.{taken}")


def test_the_walk_sees_what_is_imported() -> None:
    crowd = set(names_taken(REPOSITORY / "benchmarks" / "register_crowd.py"))
    assert ("holdfast.engine.engine", "Engine") in crowd


def test_the_journal_that_is_measured_is_that_of_a_coordinator(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    crowd = journal_size.Crowd(3, path)
    sizes = []
    for happen in (crowd.meet, crowd.step, crowd.fail):
        happen()
        sizes.append(crowd.written())
    crowd.close()
    met, stepped, failed = sizes
    assert min(met, failed) > 0
    assert stepped == 0, "steps decide nothing"
    header, steps = journal.read(path)
    assert list(replay(header, steps)) == []
    assert sum(sizes) == path.stat().st_size


def test_a_document_with_everything_at_its_longest_is_measured() -> None:
    figure = register_load._document()
    assert 0 < figure.samples[HOLDFAST][0] < LIMIT_BYTES


@pytest.mark.slow
def test_a_job_of_which_a_worker_is_paused_goes_on_and_ends_well(tmp_path: Path) -> None:
    asked = ["--count=1", "--jobs=1", "--seconds=0.5:1", "--what=worker", "--backends=holdfast"]
    command = [sys.executable, "-m", "benchmarks.pauses", *asked, f"--out={tmp_path}"]
    ran = subprocess.run(command, check=False, cwd=REPOSITORY, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "1 pauses, 0 bad ends" in ran.stdout


@pytest.mark.thorough(but=("launch", "memory", "crowd"))
@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[pytest.mark.slow] * name.startswith("r")) for name in SMALLEST],
)
def test_a_measure_runs_at_its_smallest(name: str) -> None:
    ran = subprocess.run(
        [sys.executable, "-m", "tests.benchmarks.smallest", name],
        check=False,
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
