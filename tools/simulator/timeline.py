"""Virtual time: one queue of what is to happen, and a clock for every host.

Rules
1. Nothing here reads a real clock; time passes only by taking the next entry of the queue.
2. Entries of the same instant happen in the order in which they were asked for.
3. A host knows only its own clock. Rates of two clocks differ by less than the drift that the
   job allows for, and their readings have nothing to do with each other.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush
from typing import Any

from holdfast.runtime.loop import ScheduledCall

STORM = 150_000
"""More entries than this in one run mean that it goes in circles."""

Entry = tuple[float, int, Callable[..., None], tuple[Any, ...]]


class Storm(Exception):
    """The run does not end: something asks for itself again and again."""


class Timeline:
    """What happens when, in true time."""

    def __init__(self) -> None:
        self.now = 0.0
        self._queue: list[Entry] = []
        self._asked = 0
        self.taken = 0

    def at(self, time: float, happen: Callable[..., None], *arguments: Any) -> None:
        self._asked += 1
        time = time if time > self.now else self.now
        heappush(self._queue, (time, self._asked, happen, arguments))

    def after(self, delay_s: float, happen: Callable[..., None], *arguments: Any) -> None:
        self._asked += 1
        time = self.now + delay_s if delay_s > 0 else self.now
        heappush(self._queue, (time, self._asked, happen, arguments))

    def run_until(self, end: float) -> None:
        queue = self._queue
        while queue and queue[0][0] <= end:
            self.taken += 1
            if self.taken > STORM:
                raise Storm(f"{STORM} things have happened by {self.now:.3f} s")
            self.now, _, happen, arguments = heappop(queue)
            happen(*arguments)
        self.now = max(self.now, end)


class HostClock:
    """How one host reads the time."""

    def __init__(self, timeline: Timeline, offset_s: float, rate: float) -> None:
        self._timeline = timeline
        self._offset_s = offset_s
        self.rate = rate

    def now(self) -> float:
        return self._offset_s + self.rate * self._timeline.now

    def true_time(self, reading: float) -> float:
        return (reading - self._offset_s) / self.rate


class ManualClock:
    """The clock of an engine (`runtime.loop.Clock`) that only `advance` moves."""

    def __init__(self) -> None:
        self.timeline = Timeline()

    def now(self) -> float:
        return self.timeline.now

    def call_soon(self, callback: Callable[..., Any], *args: Any) -> ScheduledCall:
        return self.call_later(0.0, callback, *args)

    def call_later(self, delay: float, callback: Callable[..., Any], *args: Any) -> ScheduledCall:
        call = ScheduledCall(callback, args)
        self.timeline.after(delay, call.run)
        return call

    def advance(self, by_s: float) -> None:
        """What is due on the way happens, in order."""
        self.timeline.run_until(self.timeline.now + by_s)
