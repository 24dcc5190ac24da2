"""When the environment of a stack is used, when it is made anew, and when it is left alone."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from . import environments
from .environments import CHECKOUT, DEFINITION, PROJECT, STACKS, folder, why_not_ready

PLAIN = STACKS[0]


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the environment of a stack would be made; nothing is there."""
    monkeypatch.delenv("HOLDFAST_STACKS", raising=False)
    monkeypatch.setattr(environments, "CHECKOUT", tmp_path)
    return folder(PLAIN)


def pretend_to_make(place: Path) -> None:
    (place / "bin").mkdir(parents=True)
    (place / "bin" / "holdfast").touch()
    (place / DEFINITION).write_text(environments._definition(PLAIN))


def test_what_is_made_is_used_until_its_definition_changes(place: Path) -> None:
    assert "is not made" in why_not_ready(PLAIN)
    pretend_to_make(place)
    assert why_not_ready(PLAIN) == ""
    changed = PLAIN._replace(packages=(*PLAIN.packages, "another"))
    assert "another definition" in why_not_ready(changed)


def test_an_environment_that_was_not_finished_is_not_used(place: Path) -> None:
    pretend_to_make(place)
    (place / DEFINITION).unlink()
    assert "another definition" in why_not_ready(PLAIN)


def test_a_ready_made_environment_is_used_as_it_is(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    elsewhere = tmp_path / "elsewhere"
    (elsewhere / "plain" / "bin").mkdir(parents=True)
    (elsewhere / "plain" / "bin" / "holdfast").touch()
    place.parent.mkdir()
    place.symlink_to(elsewhere / "plain")
    assert why_not_ready(PLAIN) == ""
    place.unlink()
    monkeypatch.setenv("HOLDFAST_STACKS", str(elsewhere))
    assert why_not_ready(PLAIN) == ""


def test_what_is_not_ours_is_never_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_STACKS", str(tmp_path))
    with pytest.raises(SystemExit, match="not ours to make"):
        environments.make(PLAIN)
    assert list(tmp_path.iterdir()) == []


def test_every_stack_has_a_script_and_the_torch_of_the_other_tests() -> None:
    pinned = [p for p in PROJECT["optional-dependencies"]["bench"] if p.startswith("torch==")]
    for stack in STACKS:
        assert environments.script(stack).is_file()
        assert [p for p in stack.packages if p.startswith("torch==")] in (pinned, [])


def test_the_page_has_the_figures_that_are_stored() -> None:
    check = [sys.executable, "-m", "benchmarks.stacks_page", "--check"]
    done = subprocess.run(check, cwd=CHECKOUT, check=False)
    assert done.returncode == 0, (
        "python -m benchmarks.stacks_page brings docs/reference/real-stacks.md up"
    )
