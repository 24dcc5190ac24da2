"""The check of what workers did finds every kind of mistake."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from .story import Story

RIGHT = {"host": "a", "pid": 1, "round": 1, "rank": 0, "world": 2, "step": 1, "sum": 3}


def write(folder: Path, start: float, end: float, **who: object) -> None:
    """A worker that lived from start to end, did one step and finished."""
    line = {**RIGHT, **who}
    lines = [{**line, "did": "start", "time": start}, {**line, "did": "alive", "time": start}]
    lines += [{**line, "did": "step", "time": end}, {**line, "did": "end", "time": end}]
    name = "worker.{host}.{round}.{rank}.{pid}.jsonl".format(**line)
    (folder / name).write_text("".join(json.dumps(line) + "\n" for line in lines))


def test_two_rounds_one_after_the_other_are_right(tmp_path: Path) -> None:
    for number in (1, 2):
        write(tmp_path, number * 10, number * 10 + 9, round=number)
        write(tmp_path, number * 10, number * 10 + 9, round=number, rank=1, host="b")
    assert Story(tmp_path).mistakes() == []
    assert [len(workers) for workers in Story(tmp_path).rounds().values()] == [2, 2]


def test_a_line_that_is_still_being_written_is_read_later(tmp_path: Path) -> None:
    write(tmp_path, 0, 1, world=1, sum=1)
    (path,) = tmp_path.iterdir()
    text = path.read_text()
    story = Story(tmp_path)
    path.write_text(text[:-20])
    assert not story.workers()[0].ended
    path.write_text(text)
    assert story.workers()[0].ended


@pytest.mark.parametrize(
    ("who", "what"),
    [
        ({"rank": 0}, "ranks [0, 0]"),
        ({"rank": 2}, "ranks [0, 2]"),
        ({"rank": 1, "world": 3}, "worlds of [2, 3]"),
        ({"rank": 1, "sum": 4}, "sums [4]"),
        ({"rank": 1, "step": 2}, "different steps"),
        ({"rank": 1, "round": 2}, "two rounds overlapped"),
    ],
)
def test_a_mistake_of_the_second_worker_is_found(
    tmp_path: Path, who: dict[str, object], what: str
) -> None:
    write(tmp_path, 0, 5)
    write(tmp_path, 4, 9, host="b", **who)
    assert what in "\n".join(Story(tmp_path).mistakes())


def test_a_step_without_all_ranks_is_found(tmp_path: Path) -> None:
    write(tmp_path, 0, 5)
    assert "a step was done by ranks [0]" in Story(tmp_path).mistakes()[0]


def test_ranks_of_a_host_that_are_not_contiguous_are_found(tmp_path: Path) -> None:
    for rank, host in enumerate("aba"):
        write(tmp_path, 0, 5, rank=rank, host=host, world=3, sum=6)
    assert "ranks [0, 2] on a are not contiguous" in Story(tmp_path).mistakes()[0]


def test_a_worker_that_outlives_two_rounds_is_found(tmp_path: Path) -> None:
    write(tmp_path, 0, 25, world=1, sum=1)
    write(tmp_path, 10, 19, world=1, sum=1, round=2)
    write(tmp_path, 20, 29, world=1, sum=1, round=3)
    assert len(Story(tmp_path).mistakes()) == 2
