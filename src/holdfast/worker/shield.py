"""Signals that ask a node to leave do not end a worker that asks whether to save.

Rules
1. Some schedulers send such a signal to every process of a node. A worker that asks is told by its
   agent where all save: so it goes on, from when it first asks until it ends.
2. Only the main thread can do so, and only for signals that have no handler: an existing
   handler stays, and so does one that comes later.
3. A signal that came to this worker alone ends it, when it asks once more after `ALONE_S` and there
   is still nothing to save.
4. The worker says on the page that it shares with its agent which signals do not end it. The agent
   sends SIGKILL in their place, which ends it as soon as they would have, whatever it is doing.
5. Forked children are as they were without this; so are programs that are executed.

Ctrl-C is not among these signals. Standard library only.
"""

from __future__ import annotations

import os

from holdfast.worker.page import SHIELDED, SHIELDED_PID

TYPE_CHECKING = False  # As in `typing`, whose import would cost every worker milliseconds.
if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.worker.page import Page

ALONE_S = 10.0
"""Longest delay between a signal to a worker and the same signal to its agent and peers."""
LOOKS_FIRST, LOOKS_EVERY = 64, 64
"""To see whether somebody else handles a signal by now takes longer than to ask: it is looked at
each of the first times, when programs are set up, and once in a while later."""


class Shield:
    """Handling of signals that ask this process's node to leave."""

    def __init__(self) -> None:
        self.received: tuple[int, float] | None = None
        """A signal that has come, and when, while it is not known whether there is to be saved."""
        self._numbers: tuple[int, ...] = ()
        self._page: Page | None = None
        self._asked = 0
        self._on_signal: Callable[[], None] | None = None

    def install(self, page: Page, wanted: int, on_signal: Callable[[], None]) -> None:
        """`wanted` is a mask of signals, as on the page."""
        if self._numbers or not page.is_shared:
            return  # An agent that is not told could end this worker only after its grace.
        import signal

        wanted &= ~(_caught() << 1 | 1 << signal.SIGINT)
        self._page, self._on_signal = page, on_signal
        try:
            for number in signal.valid_signals():
                if wanted >> number & 1 and signal.getsignal(number) == signal.SIG_DFL:
                    signal.signal(number, self._note)
                    signal.siginterrupt(number, False)  # Of system calls nobody notices anything.
                    self._numbers += (number,)
        except ValueError:
            return  # It is not the main thread.
        self._say()

    def note_asked(self) -> None:
        """Look now and then whether the program has handlers of its own by now."""
        self._asked += 1
        if self._numbers and (self._asked < LOOKS_FIRST or not self._asked % LOOKS_EVERY):
            self._say()

    def end_if_alone(self) -> None:
        """There is nothing to save: end as without a shield, if that has been so for long."""
        if self.received is None or _now() < self.received[1] + ALONE_S:
            return
        import signal

        number, self.received = self.received[0], None
        try:
            signal.signal(number, signal.SIG_DFL)
        except ValueError:
            return  # Only the main thread can.
        os.kill(os.getpid(), number)

    def remove(self) -> None:
        """In a forked child."""
        numbers = self._ours()
        self.received = self._page = self._on_signal = None
        self._numbers, self._asked = (), 0
        if not numbers:
            return
        import signal

        try:
            for number in numbers:
                signal.signal(number, signal.SIG_DFL)
        except ValueError:
            pass  # It was forked in a subinterpreter.

    def _note(self, number: int, _frame: object) -> None:
        self.received = self.received or (number, _now())
        if self._on_signal is not None:
            self._on_signal()

    def _ours(self) -> list[int]:
        """The signals for which nobody has another handler by now."""
        if not self._numbers:
            return []
        import signal

        return [number for number in self._numbers if signal.getsignal(number) == self._note]

    def _say(self) -> None:
        if self._page is not None:
            self._page.words[SHIELDED_PID] = os.getpid()
            self._page.words[SHIELDED] = sum(1 << number for number in self._ours())


def _caught() -> int:
    """Signals with a handler or ignored, as the kernel has it: not only Python installs some."""
    found = 0
    try:
        with open("/proc/self/status") as status:
            for line in status:
                if line.startswith(("SigCgt:", "SigIgn:")):
                    found |= int(line.split()[1], 16)
    except OSError:
        pass  # What Python knows of is respected.
    return found


def _now() -> float:
    import time

    return time.monotonic()
