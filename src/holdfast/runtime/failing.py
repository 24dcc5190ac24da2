"""The end of a process of ours when an unexpected exception has reached its loop.

It always ends: what is left of it may be in any state, so neither its clean-up nor the
interpreter's may keep it. Whatever it has started ends with it.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Iterable

from holdfast.core.protocol import exit_status
from holdfast.runtime import sentences

LAST_S = 15
"""Time for the clean-up. A spawner gives up killing a little earlier."""
_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)


def end_within(seconds: int) -> None:
    """Have the kernel end this process then, or at a signal, whatever runs in it by that time."""
    try:
        for number in (*_ENDING, signal.SIGALRM):
            signal.signal(number, signal.SIG_DFL)
    except ValueError:
        return  # Another thread than the main one: a program of somebody else's, which goes on.
    signal.alarm(seconds)


def go_on() -> None:
    """The clean-up has ended in time."""
    signal.alarm(0)


def attempt(error: BaseException, steps: Iterable[Callable[[], object]]) -> None:
    """Take all of these steps; what goes wrong is noted with `error`, the first that did."""
    for step in steps:
        try:
            step()
        except Exception as another:  # noqa: BLE001 - the next one has to be taken all the same
            error.add_note(sentences.another_error(words_of(another)))


def words_of(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


def status_of(run: Callable[[], int]) -> int:
    """Report the exception, clean up, and end the process."""
    try:
        return run()
    except Exception as error:  # noqa: BLE001 - it is told, and ends the process
        end_within(LAST_S)
        _tell(error)
        return exit_status.FAILED


def _tell(error: Exception) -> None:
    import traceback

    first: BaseException = error
    while first.__context__ is not None and not first.__suppress_context__:
        first = first.__context__
    reason = words_of(error) if first is error else f"{words_of(error)} (after {words_of(first)})"
    mistake, hint = sentences.own_error(reason)
    print(f"holdfast: {mistake}\nhint: {hint}", file=sys.stderr)
    traceback.print_exception(error)
