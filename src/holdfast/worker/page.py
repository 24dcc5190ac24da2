"""The page that a worker and its agent share: how far the worker is, without a message.

Rules
1. The worker writes its signs, the agent reads them when it wants to; nobody waits for the other,
   and a sign costs no system call.
2. A page belongs to one worker of one round. Nothing in it was there before, and nothing of it is
   there afterwards: it is memory without a name (`memfd`), which goes with the last process that
   has it open.
3. A sign is whole when `BEGUN` and `DONE` are equal: a reader looks at `DONE` first and at
   `BEGUN` last, and looks again where they differ. Of a worker that died in between, the last
   value of each word is taken as it is.
4. Times are those of `time.monotonic`, which all processes of a machine have in common, and which
   stands still while the machine sleeps.

`HOLDFAST_PAGE` says where it is: `PATH@OFFSET`, with the path of the agent's descriptor in /proc.
Standard library only, and nothing that costs a worker's start: `mmap` is imported when the page
is opened, which is when the program first says something.
"""

from __future__ import annotations

import os

TYPE_CHECKING = False  # As in `typing`, whose import would cost every worker milliseconds.
if TYPE_CHECKING:
    from collections.abc import Mapping

VARIABLE = "HOLDFAST_PAGE"
SIZE = 4096

# Words of 8 bytes, by their index. `AT` and `MOVED_AT` are floats; all others are whole numbers.
# The first two are for what an agent wants to say to its worker.
BEGUN = 2
"""The number of signs that were begun."""
STEP = 3
AT = 4
"""Time of the last reported step."""
PHASE = 5
"""Row of the present phase in the table of phases."""
DONE = 6
HAS_STEP = 7
"""Whether any step was ever reported."""
MOVED_AT = 8
"""Time of the last change of phase. The later of the two is that of the last sign."""
ASKED = 9
"""One more than the step at which it last asked whether to save (`draining`); 0 before that."""
SHIELDED_PID = 10
"""The process that the next word is about: it may be a child of the worker."""
SHIELDED = 11
"""Signals that do not end it (`shield`): bit 15 is for SIGTERM, and so on."""

PHASES_FROM = 512
PHASE_ROW = 64
"""Bytes of a row: how long the longest wait between two signs was (a float), then the name."""
PHASE_NAME_FROM, PHASE_NAME_MOST = 8, 56
LONGEST_FROM, LONGEST_EACH = PHASES_FROM // 8, PHASE_ROW // 8
"""The same as words: where the longest wait of a row is."""
DEADLINES_FROM, DEADLINE_ROW, DEADLINES = 2048, 64, 16
"""Rows of deadlines: when it is (a float; 0 where the row is free), then the name of its scope."""
PHASES = 16
"""Row 0 is for whatever has no name. A seventeenth phase counts as row 0, too."""


def place(path: str, index: int) -> str:
    """The variables for the worker with this index."""
    return f"{path}@{index * SIZE}"


class Page:
    """A page as the worker has it: the same memory as whole numbers and as floats."""

    def __init__(self, memory: memoryview | None) -> None:
        """Without memory of the agent's, it is the worker's own: writers need not ask, and nothing
        reads it."""
        self.is_shared = memory is not None
        whole = memory if memory is not None else memoryview(bytearray(SIZE))
        self.bytes = whole
        self.words = whole.cast("q")
        self.times = whole.cast("d")

    def longest_s(self, row: int) -> float:
        """The longest wait of that phase so far; 0 where none has ended yet."""
        return self.times[LONGEST_FROM + LONGEST_EACH * row]

    def keep_longest(self, row: int, seconds: float) -> None:
        self.times[LONGEST_FROM + LONGEST_EACH * row] = seconds

    def set_deadline(self, at: float, scope: str) -> int | None:
        """Write a deadline into a free row; None where there is none. Its name is there first."""
        for row in range(DEADLINES):
            start = DEADLINES_FROM + row * DEADLINE_ROW
            if not self.times[start // 8]:
                name = scope.encode("utf-8", "replace")[:PHASE_NAME_MOST]
                self.bytes[start + 8 : start + DEADLINE_ROW] = name.ljust(PHASE_NAME_MOST, b"\0")
                self.times[start // 8] = at
                return row
        return None

    def clear_deadline(self, row: int) -> None:
        self.times[(DEADLINES_FROM + row * DEADLINE_ROW) // 8] = 0.0

    def row_of(self, name: str) -> int:
        """The row of the phase of this name, a fresh one if it has none.

        0 where there is no room, or no name. Raises `TypeError` for what is no text.
        """
        if not isinstance(name, str):
            raise TypeError(f"the name of a phase must be a str, not {type(name).__name__}")
        name = name.partition("\0")[0]
        if not name:
            return 0
        wanted = name.encode("utf-8", "replace")[:PHASE_NAME_MOST].ljust(PHASE_NAME_MOST, b"\0")
        for row in range(1, PHASES):
            start = PHASES_FROM + row * PHASE_ROW + PHASE_NAME_FROM
            there = self.bytes[start : start + PHASE_NAME_MOST]
            if there == wanted:
                return row
            if not there[0]:
                there[:] = wanted
                return row
        return 0


def open_page(environ: Mapping[str, str]) -> Page:
    """The page of this worker; one that nobody reads where there is none, or it cannot be had."""
    path, _, offset = environ.get(VARIABLE, "").rpartition("@")
    if not path or not offset.isdecimal():
        return Page(None)
    import mmap

    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return Page(None)  # The agent is gone, or is somebody else's: see `progress`.
    try:
        return Page(memoryview(mmap.mmap(descriptor, SIZE, offset=int(offset))))
    except (OSError, ValueError):
        return Page(None)
    finally:
        os.close(descriptor)
