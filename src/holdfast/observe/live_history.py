"""The history of a running job, from the steps of one node.

Its times are those for people, counted on the node's own clock from the moment of the journal's
first line: a clock that is set meanwhile bends no duration.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.observe.history import History
from holdfast.observe.journal import Gap, JournalHeader, Step

if TYPE_CHECKING:
    from holdfast.observe.goodput import RunningLedger, TimeLedger


class LiveHistory:
    """Follows a node's journal; its history can be read at any time."""

    def __init__(self, header: JournalHeader) -> None:
        self._node = header.node
        self._clock = header.clock
        self.history = History(header.config)
        self._ledger: RunningLedger | None = None

    def feed(self, step: Step) -> None:
        if not isinstance(step, Gap):
            self.history.feed(self._node, self.time_of(step.at), step)

    def time_of(self, at: float) -> float:
        """A moment of the node's own clock, on that of the history."""
        return self._clock.wall + (at - self._clock.at)

    def age_s(self, now: float) -> float:
        """How long ago the first step was taken."""
        start = self.history.start
        return 0.0 if start is None else max(0.0, self.time_of(now) - start)

    def running_s(self, now: float) -> float:
        """How long ago the last of the present round's workers came to exist."""
        last = self.history.current
        since = self._clock.wall if last is None else last.started or last.announced
        return self.time_of(now) - since

    def step_age_s(self, now: float) -> float | None:
        """How long ago the furthest step of the present round was made."""
        last = self.history.current
        if last is None or last.last_stepped is None:
            return None
        return max(0.0, self.time_of(now) - last.last_stepped)

    def book(self, now: float) -> TimeLedger:
        """The time ledger up to this moment of the node's own clock."""
        from holdfast.observe.goodput import RunningLedger

        if self._ledger is None:
            self._ledger = RunningLedger(self.history)
        return self._ledger.book(self.time_of(now))
