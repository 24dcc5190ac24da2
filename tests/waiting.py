"""Waiting in tests: for a condition, for a register that comes back, for a call in a thread."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

from holdfast.registers.register import RegisterUnreachable
from holdfast.runtime.loop import EventLoop

DEADLINE_S = 100.0
LOOK_EVERY_S = 0.01

Result = TypeVar("Result")


def until(
    condition: Callable[[], object],
    what: str | Callable[[], str] = "it never came",
    over: Callable[[], object] = lambda: False,
) -> None:
    """Return as soon as the condition holds; fail, saying for what we waited, if it never does.

    `what` may be a function, for what is only worth knowing then. Once it is `over`, the wait is in
    vain too; but what was done last may show only after the end was seen, so it looks once more.
    """
    deadline = time.monotonic() + DEADLINE_S
    is_last = False
    while not condition():
        if is_last or time.monotonic() > deadline:
            raise AssertionError(f"waited in vain: {what if isinstance(what, str) else what()}")
        is_last = bool(over())
        time.sleep(LOOK_EVERY_S)


def loop_until(loop: EventLoop, condition: Callable[[], object], look_every_s: float = 0.0) -> None:
    """Let a loop turn until the condition holds; fail if it never does.

    It looks when something has happened on the loop. What others do without a word to it is seen
    only where it is to look every now and then, too.
    """
    late: list[bool] = []
    timers = {"end": loop.call_later(DEADLINE_S, late.append, True)}

    def look() -> None:
        timers["look"] = loop.call_later(look_every_s, look)

    if look_every_s:
        look()
    loop.run_until(lambda: bool(late) or bool(condition()))
    for timer in timers.values():
        timer.cancel()
    assert not late, "the loop turned in vain"


def once(look: Callable[[], Result | None], what: str = "it never came") -> Result:
    """What the look finds, as soon as it finds something; fail if it never does."""
    found: list[Result] = []

    def has_found() -> bool:
        seen = look()
        if seen is not None:
            found.append(seen)
        return bool(found)

    until(has_found, what)
    return found[0]


def persistently(call: Callable[[], Result]) -> Result:
    """What the call returns once the register can be reached."""
    deadline = time.monotonic() + DEADLINE_S
    while True:
        try:
            return call()
        except RegisterUnreachable:
            if time.monotonic() > deadline:
                raise
            time.sleep(LOOK_EVERY_S)


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
