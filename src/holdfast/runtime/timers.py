"""Timers by name: setting one of a name again takes the place of the one before."""

from __future__ import annotations

from collections.abc import Callable

from holdfast.runtime.loop import Cancellable, Clock


class Timers:
    """The timers of one machine; `fire` is called with the name of each that runs out."""

    def __init__(self, clock: Clock, fire: Callable[[str], None]) -> None:
        self._clock, self._fire = clock, fire
        self._set: dict[str, Cancellable] = {}

    def set(self, name: str, after_s: float) -> None:
        if name in self._set:
            self._set[name].cancel()
        self._set[name] = self._clock.call_later(after_s, self._fire, name)

    def cancel(self) -> None:
        """None of them fires any more."""
        for timer in self._set.values():
            timer.cancel()
        self._set.clear()
