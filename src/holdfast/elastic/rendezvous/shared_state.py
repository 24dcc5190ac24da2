"""The state that a node's thread shares with those of its caller.

Others read it, or wait for a change of it. What they want of the node they hand to its loop
(`runtime.thread_calls`).
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from msgspec import Struct

from holdfast.core.protocol.model import Endpoint, Outcome


class Seat(Struct, frozen=True):
    """This node's seat in a round."""

    instance: int
    """Of the job: another one may have a round of the same number."""
    round: int
    rank: int
    size: int
    master: Endpoint
    """Held on the node of rank 0, for its workers."""
    store: Endpoint
    """The address of the round's key-value store."""


class SharedState:
    """State that other threads read; `changed` is held while it is changed."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.seat: Seat | None = None
        self.is_wanted = False
        """The round is over: another meeting is due once the workers are gone."""
        self.is_in_touch = False
        """There is a connection to the coordinator."""
        self.outcome: Outcome | None = None
        """The outcome of the node's part in the job; None while it lasts."""
        self.was_told = False
        """The coordinator has said that the job is over."""
        self.stood_by = False
        """It has said that the node takes over when a seat is free."""
        self.problem = ""
        """Why the node is at its end, other than by an outcome."""
        self.said = ""
        """The last sentence of the node or of its coordinator."""

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
