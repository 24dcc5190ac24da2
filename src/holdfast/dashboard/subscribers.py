"""The pages that are open, and a sign of life for each.

A page is told how often it hears something. Where it hears nothing for more than twice as long, it
takes its line for dead, and tries another one.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from holdfast.dashboard.page_state import PageState, Subscriber
from holdfast.dashboard.wire import message
from holdfast.runtime.loop import Cancellable, Clock

ALIVE_S = 5.0
_ALIVE = message("alive", {})


class Subscribers:
    """All pages of one server. Without any, nothing here runs."""

    def __init__(
        self,
        clock: Clock,
        state: PageState,
        alive_s: float = ALIVE_S,
        *,
        lists_jobs: bool = False,
    ) -> None:
        self._clock, self._state, self._alive_s = clock, state, alive_s
        self._lists_jobs = lists_jobs
        self.on_first: Callable[[], None] = _nothing
        """Somebody watches."""
        self.on_none: Callable[[], None] = _nothing
        """Nobody does any more."""
        self._open: set[Subscriber] = set()
        self._timer: Cancellable | None = None

    def add(self, page: Subscriber) -> None:
        """Tell this page, from now on; it has a stream."""
        self._open.add(page)
        hello = {"alive_s": self._alive_s, "lists_jobs": self._lists_jobs}
        page.send(message("hello", {"at": time.time(), **hello}))
        page.tell(self._state)
        if len(self._open) == 1:
            self._stay_alive()
            self.on_first()

    def remove(self, page: Subscriber) -> None:
        if page in self._open:
            self._open.remove(page)
            self._end_if_none()

    def tell(self) -> None:
        """Something is new."""
        for page in self._open:
            page.tell(self._state)

    def close(self) -> None:
        for page in self._open:
            if page.stream is not None:
                page.stream.close()
        if self._open:
            self._open.clear()
            self._end_if_none()

    def _end_if_none(self) -> None:
        if self._open:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None
        self.on_none()

    def _stay_alive(self) -> None:
        for page in self._open:
            page.send(_ALIVE)
        self._timer = self._clock.call_later(self._alive_s, self._stay_alive)


def _nothing() -> None:
    """Nobody needs to know."""
