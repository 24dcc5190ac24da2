"""What passes between the thread of a node and those of its caller.

Rules
- The node shows its seat and its state on the `Board`; others read it, or wait for a change.
- Others hand the node what they want of it as `Calls`, which it makes on its own loop.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable

from msgspec import Struct

from holdfast.core.model import Endpoint, Outcome
from holdfast.workers.event_loop import EventLoop


class Seat(Struct, frozen=True):
    """Where this node sits in a round."""

    instance: int
    """Of the job: another one may have a round of the same number."""
    round: int
    rank: int
    size: int
    master: Endpoint
    """Held on the node of rank 0, for its workers."""
    store: Endpoint
    """Where the coordinator keeps the round's keys."""


class Board:
    """What the node shows to other threads; whoever changes it holds `changed`."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.seat: Seat | None = None
        self.is_wanted = False
        """The round is over."""
        self.is_in_touch = False
        """There is a connection to the coordinator."""
        self.outcome: Outcome | None = None
        self.was_told = False
        """The coordinator has said that the job is over."""
        self.stood_by = False
        """It has said that the node takes over when a seat is free."""
        self.problem = ""
        """Why the node is at its end, other than by an outcome."""
        self.said = ""
        """What was said last, by the node or by its coordinator."""

    def wait_for(self, holds: Callable[[], bool], timeout_s: float) -> bool:
        """Wait until that is so; whether it is."""
        with self.changed:
            return self.changed.wait_for(holds, timeout_s)

    def show(self, **news: object) -> None:
        """Change these at once."""
        with self.changed:
            for name, value in news.items():
                setattr(self, name, value)
            self.changed.notify_all()


class Calls:
    """Calls from other threads, on their way to the loop."""

    def __init__(self, loop: EventLoop) -> None:
        self._loop = loop
        self.calls: deque[tuple[Callable[..., None], tuple[object, ...]]] = deque()
        self._bell = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        # A signal's handler, or the garbage's, may put in a call while the same thread does.
        self._lock = threading.RLock()
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
