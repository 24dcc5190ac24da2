"""Calls from other threads, on their way to a loop."""

from __future__ import annotations

import _thread  # Whose lock `threading` hands out; importing that takes a while.
import os
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from holdfast.runtime.loop import Loop


class ThreadCalls:
    """Made on the loop one after the other, in the order in which they were put in."""

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self.calls: deque[tuple[Callable[..., None], tuple[object, ...]]] = deque()
        self._bell = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        # A signal's handler, or the garbage's, may put in a call while the same thread does.
        self._lock = _thread.RLock()
        self._is_open = True
        loop.add_reader(self._bell, self._take)

    def put(self, call: Callable[..., None], *args: object) -> None:
        """From any thread, and from any handler of a signal; nothing happens after the end."""
        with self._lock:
            if self._is_open:
                self.calls.append((call, args))
                os.eventfd_write(self._bell, 1)

    def _take(self) -> None:
        os.eventfd_read(self._bell)
        while self.calls:
            call, args = self.calls.popleft()
            call(*args)

    def close(self) -> None:
        with self._lock:
            self._is_open = False
            self._loop.remove_reader(self._bell)
            os.close(self._bell)
