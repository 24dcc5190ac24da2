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
                try:
                    os.eventfd_write(self._bell, 1)
                except ValueError:
                    pass  # It was let go of by a handler that came in between.
        if not self._is_open:
            self._let_go()

    def _take(self) -> None:
        os.eventfd_read(self._bell)
        while self.calls:
            call, args = self.calls.popleft()
            call(*args)

    def close(self) -> None:
        """For the loop's thread. It waits for nobody: a signal's handler that has interrupted `put`
        may itself wait for the end of that thread."""
        self._is_open = False
        self._loop.remove_reader(self._bell)
        self._let_go()

    def _let_go(self) -> None:
        """Close the bell, unless another thread is about to ring it: then that one does."""
        if self._lock.acquire(blocking=False):
            try:
                bell, self._bell = self._bell, -1
                if bell >= 0:
                    os.close(bell)
            finally:
                self._lock.release()
