"""Waiting in tests: for a condition, for servers that come back, for a call in a thread."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

from holdfast.registers.register import RegisterUnreachable

DEADLINE_S = 40.0

Result = TypeVar("Result")


def until(condition: Callable[[], object], what: str) -> None:
    """Return as soon as the condition holds; fail, saying for what we waited, if it never does."""
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline, f"waited in vain: {what}"
        time.sleep(0.02)


def persistently(call: Callable[[], Result]) -> Result:
    """What the call returns once the servers can serve it."""
    deadline = time.monotonic() + DEADLINE_S
    while True:
        try:
            return call()
        except RegisterUnreachable:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.02)


def begin(call: Callable[[], Result]) -> Future[Result]:
    """The call, under way in a thread that nobody waits for."""
    future: Future[Result] = Future()

    def run() -> None:
        try:
            future.set_result(call())
        except RegisterUnreachable as error:
            future.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return future
