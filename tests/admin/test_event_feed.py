"""The events of a node: those of its journal first, then as they come."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tools.simulator.timeline import ManualClock

from holdfast.admin.event_feed import EventFeed, read_steps
from holdfast.core.node_io import Say, SignalReceived
from holdfast.core.policy.config import JobConfig, Program
from holdfast.observe.journal import SCHEMA, ClockPair, Journal, JournalHeader
from holdfast.observe.story import StoryEvent

HEADER = JournalHeader(
    SCHEMA, "job", "a-1", "a", "2026-11-18T10:00:00+0000",
    JobConfig("job", Program("script", "train.py")), ClockPair(0.0, 1_800_000_000.0),
)  # fmt: skip


class Stage:
    """A journal in a file, a feed of it, and all that was told."""

    def __init__(self, folder: Path) -> None:
        self.clock = ManualClock()
        self.journal = Journal(folder / "journal.jsonl", HEADER)
        self.told: list[tuple[list[str], int]] = []

    def happen(self, *words: str) -> None:
        for text in words:
            self.journal.agent(self.clock.now(), SignalReceived(15), [Say(text)])

    def listen(self) -> EventFeed:
        self.feed = EventFeed(self.journal, self.clock)
        return self.feed

    def catch_up(self) -> None:
        self.feed.caught_up(self.earlier)

    def read(self) -> None:
        self.earlier = read_steps(self.journal.path)

    def ask(self, after: int, wait_s: float = 0.0, most: int = 100) -> None:
        self.feed.after(after, most, wait_s, self._take)

    def _take(self, events: list[StoryEvent], last: int) -> None:
        self.told.append(([event.words for event in events], last))


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    made = Stage(tmp_path)
    yield made
    made.journal.close()


def test_what_was_before_comes_first_and_nothing_comes_twice(stage: Stage) -> None:
    stage.happen("one", "two")
    stage.listen()
    stage.read()
    stage.happen("three")
    stage.catch_up()
    stage.happen("four")
    stage.ask(0)
    stage.ask(2)
    stage.ask(0, most=3)
    assert stage.told == [
        (["one", "two", "three", "four"], 4),
        (["three", "four"], 4),
        (["one", "two", "three"], 3),
    ]


def test_who_asks_before_the_journal_is_read_gets_all_of_it(stage: Stage) -> None:
    stage.happen("one")
    stage.listen()
    stage.ask(0)
    assert stage.told == []
    stage.read()
    stage.catch_up()
    assert stage.told == [(["one"], 1)]


def test_who_waits_is_told_of_the_next_event_or_that_there_was_none(stage: Stage) -> None:
    stage.listen()
    stage.read()
    stage.catch_up()
    stage.ask(0, wait_s=20.0)
    stage.clock.advance(19.0)
    assert stage.told == []
    stage.happen("at last")
    assert stage.told == [(["at last"], 1)]
    stage.ask(1, wait_s=20.0)
    stage.clock.advance(20.0)
    assert stage.told[1:] == [([], 1)]


def test_a_journal_that_cannot_be_read_is_an_empty_one(tmp_path: Path) -> None:
    assert read_steps(None) == []
    assert read_steps(tmp_path / "nothing") == []
    (tmp_path / "other").write_text("no journal\n")
    assert read_steps(tmp_path / "other") == []
