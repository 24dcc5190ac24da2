"""Disk work off the loop, with reads that really block: of pipes without a writer."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from holdfast.runtime import disk as module
from holdfast.runtime.disk import Disk
from holdfast.runtime.loop import EventLoop

from ..waiting import loop_until


class Stage:
    def __init__(self, tmp_path: Path) -> None:
        self.loop = EventLoop()
        self.said: list[str] = []
        self.disk = Disk(self.loop, self.said.append)
        self._pipes: list[int] = []
        self._folder = tmp_path

    def stalled_read(self) -> tuple[Callable[[], bytes], Callable[[], int]]:
        """A read that does not come back, and what makes it."""
        reading, writing = os.pipe()
        self._pipes += [reading, writing]
        return partial(os.read, reading, 100), partial(os.write, writing, b"here")

    def until(self, condition: Callable[[], object]) -> None:
        loop_until(self.loop, condition, look_every_s=0.002)

    def close(self) -> None:
        self.disk.close()
        self.loop.close()
        for pipe in self._pipes:
            os.close(pipe)


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    made = Stage(tmp_path)
    yield made
    made.close()


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is said after seconds is said after a moment."""
    monkeypatch.setattr(module, "STALLED_S", 0.05)
    monkeypatch.setattr(module, "PATIENCE_S", 0.2)


def test_work_is_done_in_order_and_told_on_the_loop(stage: Stage) -> None:
    lane = stage.disk.lane("one")
    done: list[int] = []
    told: list[tuple[int, int]] = []

    def work(number: int) -> int:
        done.append(number)
        return number

    for number in range(1000):
        lane.do(
            partial(work, number),
            lambda result: told.append((result, threading.get_ident())),
        )
    stage.until(lambda: len(told) == 1000)
    assert done == list(range(1000))
    assert told == [(number, threading.get_ident()) for number in range(1000)]


def test_what_came_to_nothing_is_told_to_nobody(stage: Stage) -> None:
    told: list[object] = []
    lane = stage.disk.lane("one")
    lane.do(lambda: None, told.append)
    lane.do(lambda: "problem", told.append)
    stage.until(lambda: told)
    assert told == ["problem"]


def test_one_that_stalls_holds_up_neither_the_loop_nor_another(stage: Stage) -> None:
    read, release = stage.stalled_read()
    told: list[object] = []
    stage.disk.lane("slow").do(read, told.append)
    stage.disk.lane("quick").do(lambda: "quick", told.append)
    stage.until(lambda: told)
    assert told == ["quick"]
    release()
    stage.until(lambda: len(told) == 2)
    assert told == ["quick", b"here"]


def test_an_exception_ends_the_loop(stage: Stage) -> None:
    def fail() -> None:
        raise ValueError("broken")

    stage.disk.lane("one").do(fail)
    with pytest.raises(ValueError, match="broken"):
        stage.loop.run_until(lambda: False)


def test_who_can_wait_is_told_when_there_is_room_again(stage: Stage) -> None:
    read, release = stage.stalled_read()
    lane = stage.disk.lane("one")
    lane.do(read)
    block = module.CONGESTED_BYTES // 8
    for _ in range(8):
        lane.do(bytes, None, block)
    assert not lane.congested
    lane.do(bytes, None, block)
    assert lane.congested
    clear: list[int] = []
    lane.when_clear(lambda: clear.append(lane.waiting_bytes))
    release()
    stage.until(lambda: clear)
    assert clear[0] <= module.CLEAR_BYTES
    lane.when_clear(lambda: clear.append(-1))  # When it is clear already, all the same.
    stage.until(lambda: len(clear) == 2)


@pytest.mark.usefixtures("soon")
def test_a_stall_is_said_once_for_a_place_and_its_end_once(stage: Stage) -> None:
    lanes = [
        stage.disk.lane("logs", "/logs", "training goes on"),
        stage.disk.lane("journal", "/logs"),
        stage.disk.lane("record", "/record", "decisions wait"),
    ]
    releases = []
    for lane in lanes:
        read, release = stage.stalled_read()
        releases.append(release)
        lane.do(read)
    stage.until(lambda: all(map(stage.disk.is_stalled, lanes)))
    assert sorted(stage.said) == [
        "the disk of /logs does not answer: training goes on",
        "the disk of /record does not answer: decisions wait",
    ]
    for release in releases:
        release()
    stage.until(lambda: len(stage.said) == 4)
    assert sorted(line.partition(",")[0] for line in stage.said[2:]) == [
        "the disk of /logs answers again",
        "the disk of /record answers again",
    ]


def test_work_that_keeps_coming_is_no_stall(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "STALLED_S", 0.7)
    lane = stage.disk.lane("logs", "/logs")
    until = time.monotonic() + 2 * module.STALLED_S
    while time.monotonic() < until:
        lane.do(lambda: time.sleep(0.001))
        stage.until(lambda: lane.is_idle)
    assert stage.said == []


def test_the_end_waits_for_all_of_it_and_for_what_came_of_it(stage: Stage) -> None:
    told: list[int] = []
    for purpose in ("logs", "journal"):
        for number in range(100):
            stage.disk.lane(purpose, "/logs").do(partial(int, number), told.append)
    stage.loop.run_until(stage.disk.all_done())
    assert sorted(told) == sorted([*range(100), *range(100)])


@pytest.mark.usefixtures("soon")
def test_an_end_that_waits_says_for_what_and_then_what_was_lost(stage: Stage) -> None:
    read, _ = stage.stalled_read()
    lane = stage.disk.lane("logs", "/logs", "training goes on")
    lane.do(read, None, 5000)
    lane.do(bytes, None, 100)
    stage.loop.run_until(stage.disk.all_done())
    assert "waiting for the disk of /logs: 5 KiB are not written yet" in "\n".join(stage.said)
    assert stage.said[-1] == "gave up waiting for the disk of /logs: 5 KiB are lost there"


def test_an_end_is_patient_while_anything_moves(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "PATIENCE_S", 0.7)
    lane = stage.disk.lane("logs", "/logs")
    done: list[bool] = []
    for _ in range(20):
        lane.do(lambda: time.sleep(module.PATIENCE_S / 10))
    lane.do(lambda: done.append(True))
    stage.loop.run_until(stage.disk.all_done())
    assert done
    assert "gave up" not in "".join(stage.said)


def test_what_nobody_would_miss_is_done_too_where_the_disk_answers(stage: Stage) -> None:
    kept: list[int] = []
    for number in range(100):
        stage.disk.lane("imports").do(partial(kept.append, number))
    stage.loop.run_until(stage.disk.all_done())
    assert kept == [*range(100)]


def test_what_nobody_would_miss_is_not_waited_for_where_it_stalls(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "STALLED_S", 0.05)  # and `PATIENCE_S` is longer than the test
    read, _ = stage.stalled_read()
    lane = stage.disk.lane("imports")
    lane.do(read)
    stage.loop.run_until(stage.disk.all_done())
    stage.until(lambda: lane.has_stalled)
    assert stage.disk.all_done()(), "it is not waited for a second time"
    assert stage.said == []
