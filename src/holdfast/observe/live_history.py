"""The history of a running job, from the steps of one node.

Its times are those for people, counted on the node's own clock from the moment of the journal's
first line: a clock that is set meanwhile bends no duration. Where the time went before the last
`ROUNDS_KEPT` rounds is worked out once, so that asking again costs the same however many rounds
there were. Their steps that would be made again later than that stay useful.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from holdfast.observe.history import History
from holdfast.observe.journal import Gap, JournalHeader, Step

if TYPE_CHECKING:
    from holdfast.observe.goodput import Interruption, Part, TimeLedger

ROUNDS_KEPT = 64
ROUNDS_MOST = 2 * ROUNDS_KEPT
INTERRUPTIONS_KEPT = 200


class LiveHistory:
    """Follows a node's journal; its history can be read at any time."""

    def __init__(self, header: JournalHeader) -> None:
        self._node = header.node
        self._clock = header.clock
        self.history = History(header.config)
        self._past_s: dict[Part, float] = {}
        """Of rounds that are forgotten; so are their interruptions."""
        self._past: list[Interruption] = []

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
        """The time ledger up to this moment of the node's own clock.

        Its segments are those of the last rounds.
        """
        from holdfast.observe.goodput import ledger

        until, rounds = self.time_of(now), self.history.rounds
        if len(rounds) > ROUNDS_MOST:
            first = rounds[-ROUNDS_KEPT]
            known = ledger(self.history, until).interruptions
            self._past += [one for one in known if one.round < first.number]
            del self._past[:-INTERRUPTIONS_KEPT]
            self._past_s = self._with_past(ledger(self.history, first.announced))
            self.history.forget_before(first.announced)
        recent = ledger(self.history, until)
        interruptions = (*self._past, *recent.interruptions)
        return replace(recent, parts_s=self._with_past(recent), interruptions=interruptions)

    def _with_past(self, book: TimeLedger) -> dict[Part, float]:
        return {part: self._past_s.get(part, 0.0) + s for part, s in book.parts_s.items()}
