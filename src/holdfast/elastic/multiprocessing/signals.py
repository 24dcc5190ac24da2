"""Signals to the process that waits for others: they arrive as an exception.

The waiting code catches `SignalException` and closes with its `sigval`, so that the processes
get the same signal. What is caught is named by `TORCHELASTIC_SIGNALS_TO_HANDLE`.

An exception that comes between any two lines would leave behind what the first of them took and
the second was to note. So where processes are being made, signals are held back (`held_back`).
"""

from __future__ import annotations

import logging
import os
import signal
import threading
from types import FrameType

from holdfast.core.policy.config import DEFAULT_SIGNALS

__all__ = ["SignalException"]

VARIABLE = "TORCHELASTIC_SIGNALS_TO_HANDLE"

logger = logging.getLogger(__name__)


class SignalException(Exception):
    """This process was sent a signal that ends it. `sigval` says which."""

    def __init__(self, msg: str, sigval: signal.Signals) -> None:
        super().__init__(msg)
        self.sigval = sigval


class held_back:  # noqa: N801 - used as a statement: `with held_back():`
    """Hold signals back: they raise at the end of the block, in the main thread only."""

    def __enter__(self) -> None:
        if threading.current_thread() is threading.main_thread():
            _held_back.append(self)

    def __exit__(self, *exception: object) -> None:
        if self in _held_back:
            _held_back.remove(self)
            if _came and not _held_back:
                number = _came[0]
                _came.clear()
                _raise(number, None)


_held_back: list[held_back] = []
_came: list[int] = []
# A fork is made in such a block, whose end it never sees.
os.register_at_fork(after_in_child=_held_back.clear)
os.register_at_fork(after_in_child=_came.clear)


def raise_on_signals() -> None:
    """From now on the signals that end a process raise `SignalException` in the main thread.

    Elsewhere than in the main thread nothing can be done, and nothing need be: when this
    process ends, however it does, what it started is killed.
    """
    if threading.current_thread() is not threading.main_thread():
        return
    for name in os.environ.get(VARIABLE, ",".join(DEFAULT_SIGNALS)).split(","):
        try:
            signal.signal(signal.Signals[name.strip()], _raise)
        except (KeyError, OSError, ValueError):
            logger.warning("%s: %r is no signal that can be caught", VARIABLE, name)


def _raise(number: int, frame: FrameType | None) -> None:
    if _held_back:
        _came.append(number)
        return
    sigval = signal.Signals(number)
    raise SignalException(f"process {os.getpid()} was sent {sigval.name}", sigval)
