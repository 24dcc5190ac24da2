"""The progress of a job: the numbers of its closing line, and a line now and then.

Rules
1. Only the node that coordinates has lines of progress, and only where `say` is given. The first
   comes after a minute, then one every five. On other nodes no timer runs for it.
2. Steps and goodput are told where the whole job is known: on a node that has coordinated it from
   its beginning.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from holdfast.observe.history import LiveHistory
from holdfast.observe.journal import CoordinatorBegan, CoordinatorStep, Step
from holdfast.runtime.disk import Disk
from holdfast.runtime.loop import Cancellable, Clock

if TYPE_CHECKING:
    from holdfast.observe.summary import Summary

LOADED_AFTER_S = 1.0
FIRST_S, EVERY_S = 60.0, 300.0


class JobProgress:
    """Speaks of the history of this node's job while the node coordinates it."""

    def __init__(
        self,
        clock: Clock,
        live: LiveHistory,
        coordinates: Callable[[], bool],
        say: Callable[[str], None] | None,
    ) -> None:
        self._clock, self._live = clock, live
        self._coordinates, self._say = coordinates, say
        self._has_coordinated = self._is_partial = False
        self._timer: Cancellable | None = None

    def load(self, disk: Disk) -> None:
        """Have what writes the lines read in a lane, once the job has lasted for a moment."""
        lane = disk.lane("progress")
        self._clock.call_later(LOADED_AFTER_S, lane.do, _load)

    def take(self, step: Step) -> None:
        """Take a step of the journal."""
        if isinstance(step, CoordinatorBegan):
            known = step.beginning.ledger
            self._is_partial = known is not None and known.round > 0
        if isinstance(step, CoordinatorStep) and not self._has_coordinated:
            self._has_coordinated = True
            self._wait()

    def _wait(self) -> None:
        """Sleep until the next line is due: 1, 5, 10, … minutes from the beginning."""
        if self._say is None:
            return
        passed_s = self._live.age_s(self._clock.now())
        due_s = FIRST_S if passed_s < FIRST_S else (passed_s // EVERY_S + 1) * EVERY_S
        self._timer = self._clock.call_later(due_s - passed_s, self._speak, self._say)

    def _speak(self, say: Callable[[str], None]) -> None:
        if not self._coordinates():
            self._has_coordinated = False  # If it does so again, it speaks again.
            return
        from holdfast.observe.summary import progress, summarize

        say(progress(summarize(self._live, self._clock.now())))
        self._wait()

    def close(self) -> Summary:
        """The job is over: say nothing more, and give its numbers."""
        if self._timer is not None:
            self._timer.cancel()
        from holdfast.observe.summary import Summary, summarize

        now = self._clock.now()
        if self._is_partial or not (self._has_coordinated and self._coordinates()):
            return Summary(self._live.age_s(now))
        return summarize(self._live, now)


def _load() -> None:
    import holdfast.observe.goodput
    import holdfast.observe.summary  # noqa: F401 - both for `_speak`
