"""When a signal that comes again is a second one.

Rules
1. The same signal within `SAME_FOR_S` of the one that counted is that one again: Slurm sends two at
   a time limit, 2 ms apart, and a second one would mean "at once" (`core.node`).
2. SIGINT always counts: a person who presses Ctrl-C twice quickly means just that.
"""

from __future__ import annotations

import signal

from msgspec import Struct

SAME_FOR_S = 2.0


class LastSignal(Struct, frozen=True):
    """The last signal that counted, and when it came."""

    number: int
    at: float


def is_repeat(number: int, now: float, last: LastSignal | None) -> bool:
    """Whether a signal that comes now is the last one again."""
    if last is None or number == signal.SIGINT:
        return False
    return number == last.number and now - last.at <= SAME_FOR_S
