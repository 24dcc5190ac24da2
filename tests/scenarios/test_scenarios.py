"""Every story beside this file, played on the real core, gives the transcript in it.

A story is a text file: what it tells, then commands, each with what came of it below `----`.
After a change of the core, `HOLDFAST_REWRITE=1 pytest tests/scenarios` writes the transcripts
anew; the difference is there to be read. How to read and write a story: README.md.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from .stage import COMMANDS, Command, Stage

STORIES = sorted(Path(__file__).parent.glob("*.txt"))
RULE = "----"


def retold(text: str) -> str:
    """The story with the transcript that the core gives today."""
    stage, told, skipping = Stage(), [], False
    for line in text.splitlines():
        if not line.strip() or line.startswith("#"):
            skipping = False
            told.append(line)
        elif not skipping:
            told += [line, RULE, *stage.play(line)]
            skipping = True
    return "\n".join(told) + "\n"


def commands(text: str) -> list[str]:
    """The lines that say what happens."""
    blocks = text.split("\n\n")
    lines = [[line for line in block.splitlines() if not line.startswith("#")] for block in blocks]
    return [block[0] for block in lines if block]


@pytest.mark.parametrize("path", STORIES, ids=lambda path: path.stem)
def test_the_core_tells_the_story_as_it_is_written(path: Path) -> None:
    written = path.read_text(encoding="utf-8")
    told = retold(written)
    if os.environ.get("HOLDFAST_REWRITE") == "1":
        path.write_text(told, encoding="utf-8")
        return
    assert told == written


@pytest.mark.parametrize("path", STORIES, ids=lambda path: path.stem)
def test_a_story_says_what_it_tells_and_comes_to_one_end(path: Path) -> None:
    written = path.read_text(encoding="utf-8")
    assert written.startswith("# "), "a story begins with what it tells"
    lines = written.splitlines()
    assert sum(line.startswith("ends ") for line in lines) == 1


def test_every_command_is_used_in_a_story() -> None:
    stories = [path.read_text(encoding="utf-8") for path in STORIES]
    used = {Command(line).verb for story in stories for line in commands(story)}
    assert used == set(COMMANDS)


def test_a_transcript_that_is_not_true_is_found() -> None:
    true = retold("# A job that was interrupted.\n\nstart\n\nsignal SIGTERM\n\nspawner-ended\n")
    assert retold(true) == true
    assert retold(true.replace("exit status 143", "exit status 0")) == true


def test_a_command_that_does_not_exist_is_refused() -> None:
    with pytest.raises(ValueError, match="no such command: 'explode 1'; there are advance, "):
        retold("explode 1\n")
