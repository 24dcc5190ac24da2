"""The events of a node (`observe.story`), numbered: from its journal, and as they come.

It is made at the first request for events, so a job without such requests pays nothing for it. It
then listens to the journal's steps; earlier ones are read from the journal's file, in the lane that
writes it, so that everything up to that moment is there.

Rules
1. Events are numbered from 1, in the order in which the node took its steps. Of a long job only the
   last `EVENTS_KEPT` are kept.
2. A waiting reader gets the next events, or none when its time is over.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from pathlib import Path

from msgspec import Struct

from holdfast.core.protocol.errors import UsageError
from holdfast.observe.journal import Journal, Step, read
from holdfast.observe.story import StoryEvent, Storyteller
from holdfast.runtime.loop import Cancellable, Clock

EVENTS_KEPT = 10_000
READING_S = 10.0
"""How long the journal's disk may take, for readers that would not wait otherwise."""
OnEvents = Callable[[list[StoryEvent], int], None]
"""Takes events, and the number of the last one."""


class WaitingReader(Struct):
    """A request that waits for the next event."""

    after: int
    most: int
    then: OnEvents
    timer: Cancellable | None = None


class EventFeed:
    """The events of one node."""

    def __init__(self, journal: Journal, clock: Clock) -> None:
        self._clock = clock
        self._teller = Storyteller(journal.header)
        self._events: deque[StoryEvent] = deque(maxlen=EVENTS_KEPT)
        self._last = 0
        self._is_caught_up = False
        self._early: list[Step] = []
        """Steps that came before those of the file were read."""
        self._waiting: list[WaitingReader] = []
        journal.listeners.append(self._take)

    def caught_up(self, earlier: list[Step]) -> None:
        """All that the journal's file had when this began to listen: what came since is ours."""
        self._is_caught_up = True
        early, self._early = self._early, []
        for step in (*earlier, *early):
            self._add(step)
        self._tell()

    def after(self, number: int, most: int, wait_s: float, then: OnEvents) -> None:
        """Give the events behind that number, at most so many; if there are none, wait for some."""
        if self._is_caught_up and (self._last > number or wait_s <= 0.0):
            then(*self._behind(number, most))
            return
        reader = WaitingReader(number, most, then)
        least_s = 0.0 if self._is_caught_up else READING_S
        reader.timer = self._clock.call_later(max(wait_s, least_s), self._give_up, reader)
        self._waiting.append(reader)

    def _behind(self, number: int, most: int) -> tuple[list[StoryEvent], int]:
        first = self._last - len(self._events)
        skipped = max(0, number - first)
        found = [one for at, one in enumerate(self._events) if skipped <= at < skipped + most]
        return found, first + skipped + len(found)

    def _take(self, step: Step) -> None:
        if not self._is_caught_up:
            self._early.append(step)
            return
        self._add(step)
        self._tell()

    def _add(self, step: Step) -> None:
        for event in self._teller.feed(step):
            self._events.append(event)
            self._last += 1

    def _tell(self) -> None:
        ready = [one for one in self._waiting if self._last > one.after]
        self._waiting = [one for one in self._waiting if self._last <= one.after]
        for reader in ready:
            if reader.timer is not None:
                reader.timer.cancel()
            reader.then(*self._behind(reader.after, reader.most))

    def _give_up(self, reader: WaitingReader) -> None:
        if reader in self._waiting:
            self._waiting.remove(reader)
            reader.then(*self._behind(reader.after, reader.most))


def read_steps(path: Path | None) -> list[Step]:
    """In the journal's lane: what it has so far; nothing where it cannot be read."""
    if path is None:
        return []
    try:
        return read(path)[1]
    except (OSError, UsageError):
        return []
