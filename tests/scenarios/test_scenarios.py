"""Every story beside this file, played by the engine that ships, gives the transcript in it.

The stories here are of one node, those in `nodes/` of several.

A story is a text file: what it tells, then commands, each with what came of it below `----`.
After a change of the engine or its core, `HOLDFAST_REWRITE=1 pytest tests/scenarios` writes the
transcripts anew; the difference is there to be read. How to read and write a story: README.md.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from .nodes_stage import COMMANDS as COMMANDS_FOR_NODES
from .nodes_stage import NodesStage
from .stage import COMMANDS, Command, Stage

HERE = Path(__file__).parent
OF_ONE_NODE = sorted(HERE.glob("*.txt"))
OF_NODES = sorted((HERE / "nodes").glob("*.txt"))
STORIES = OF_ONE_NODE + OF_NODES
RULE = "----"
RELEASED = r"succeeded, exit status 0: all workers on \w+ succeeded"
JOB_ENDS = re.compile(rf"ends: (?!{RELEASED})((?:succeeded|failed|not_formed).*)")
NODE_ENDS = re.compile(r"^ *[\d.]+ s  (\w+) +ends: ", re.MULTILINE)


def stage_for(path: Path) -> Stage | NodesStage:
    return NodesStage() if path in OF_NODES else Stage()


def retold(text: str, stage: Stage | NodesStage) -> str:
    """The story with the transcript that the engine gives today."""
    told: list[str] = []
    skipping = False
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
def test_the_engine_tells_the_story_as_it_is_written(path: Path) -> None:
    written = path.read_text(encoding="utf-8")
    told = retold(written, stage_for(path))
    if os.environ.get("HOLDFAST_REWRITE") == "1":
        path.write_text(told, encoding="utf-8")
        return
    assert told == written


@pytest.mark.parametrize("path", STORIES, ids=lambda path: path.stem)
def test_a_story_says_what_it_tells(path: Path) -> None:
    assert path.read_text(encoding="utf-8").startswith("# "), "a story begins with what it tells"


@pytest.mark.parametrize("path", OF_ONE_NODE, ids=lambda path: path.stem)
def test_a_story_of_one_node_comes_to_one_end(path: Path) -> None:
    lines = path.read_text(encoding="utf-8").splitlines()
    assert sum(line.startswith("ends ") for line in lines) == 1


@pytest.mark.parametrize("path", OF_NODES, ids=lambda path: path.stem)
def test_all_nodes_of_a_story_tell_the_same_end(path: Path) -> None:
    """Only a node that somebody asked to leave, or released, ends with something of its own."""
    ends = JOB_ENDS.findall(path.read_text(encoding="utf-8"))
    assert ends, "the story does not come to its end"
    assert len(set(ends)) == 1


@pytest.mark.parametrize("path", OF_NODES, ids=lambda path: path.stem)
def test_every_node_of_a_story_that_is_not_dead_comes_to_its_end(path: Path) -> None:
    written = path.read_text(encoding="utf-8")
    living: set[str] = set()
    for line in commands(written):
        command = Command(line, COMMANDS_FOR_NODES)
        if command.verb == "start":
            living.update(command.words)
        elif command.verb == "switch-off" or command.words[:1] == ["node"]:
            living.discard(command.words[-1])
    assert living <= set(NODE_ENDS.findall(written))


@pytest.mark.parametrize(
    ("stories", "known"),
    [(OF_ONE_NODE, COMMANDS), (OF_NODES, COMMANDS_FOR_NODES)],
    ids=["one node", "nodes"],
)
def test_every_command_is_used_in_a_story(stories: list[Path], known: dict[str, object]) -> None:
    told = [path.read_text(encoding="utf-8") for path in stories]
    used = {Command(line, known).verb for story in told for line in commands(story)}
    assert used == set(known)


def test_a_transcript_that_is_not_true_is_found() -> None:
    story = "# A job that was interrupted.\n\nstart\n\nsignal SIGTERM\n\nspawner-ended\n"
    true = retold(story, Stage())
    assert retold(true, Stage()) == true
    assert retold(true.replace("exit status 143", "exit status 0"), Stage()) == true


@pytest.mark.parametrize("stage", [Stage(), NodesStage()], ids=["one node", "nodes"])
def test_a_command_that_does_not_exist_is_refused(stage: Stage | NodesStage) -> None:
    with pytest.raises(ValueError, match="no such command: 'explode 1'; there are advance, "):
        retold("explode 1\n", stage)
