"""Events in the order in which they happened, also where one has to be completed first.

What is known of a worker's end may lie on a disk. Its event takes its place at once and is told
when it is complete, or as it stands when that takes too long; what happens after it is told after
it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from msgspec import Struct

from holdfast.core.node_io import NodeEvent
from holdfast.runtime.loop import Cancellable, Loop


class Entry(Struct, eq=False):
    """An event, and whether it can be told."""

    event: NodeEvent
    is_complete: bool = True
    timer: Cancellable | None = None


class Outbox:
    """Takes events and tells them in order."""

    def __init__(self, tell: Callable[[NodeEvent], None]) -> None:
        self._tell = tell
        self._entries: deque[Entry] = deque()

    def put(self, event: NodeEvent) -> None:
        if self._entries:
            self._entries.append(Entry(event))
        else:
            self._tell(event)

    def put_incomplete(
        self, event: NodeEvent, loop: Loop, patience_s: float
    ) -> Callable[[NodeEvent], None]:
        """Keep its place; the answer takes the event as it is to be told, once it is known.

        After `patience_s` it is told as it was put in.
        """
        entry = Entry(event, is_complete=False)
        self._entries.append(entry)

        def complete(known: NodeEvent) -> None:
            if not entry.is_complete:
                entry.event, entry.is_complete = known, True
                if entry.timer is not None:
                    entry.timer.cancel()
                self._tell_complete()

        entry.timer = loop.call_later(patience_s, complete, event)
        return complete

    def _tell_complete(self) -> None:
        while self._entries and self._entries[0].is_complete:
            self._tell(self._entries.popleft().event)

    def close(self) -> None:
        """Tell nothing more."""
        for entry in self._entries:
            entry.is_complete = True
            if entry.timer is not None:
                entry.timer.cancel()
        self._entries.clear()
