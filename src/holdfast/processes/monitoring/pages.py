"""The agent's side of the pages in which workers say how far they are (`worker.page`).

One piece of memory for the workers of a round, a page for each. It has no name in any file system:
workers open it by the agent's descriptor in /proc, and it is gone with whoever had it open.

What is in a page is foreign: a worker can have written anything there. Nothing here raises for it,
and the memory stays as large as it is.
"""

from __future__ import annotations

import math
import os
import sys
import time

from msgspec import Struct

from holdfast.core.protocol.bounds import clean
from holdfast.processes.saving_page import sealed_memory
from holdfast.worker import page as layout

LOOKS = 8
"""How often a page is looked at, at most, until a sign is seen whole: writing one takes less time
than reading it."""


class Sign(Struct, frozen=True):
    """What a page says of its worker; ages are in seconds, up to the moment of the look."""

    step: int | None
    """None where none was said."""
    age_s: float
    """How long ago it last said anything: a step, or another phase."""
    phase: str = ""
    longest_s: float = 0.0
    """The longest wait between two signs in this phase, in this round; 0 where none has ended."""
    step_age_s: float = 0.0
    """How long ago it said its last step; 0 where it said none."""


class RoundPages:
    """The pages of one round, by local rank. Raises `OSError` where there is no memory for them."""

    def __init__(self, workers: int) -> None:
        import mmap

        self._descriptor = sealed_memory("holdfast-pages", workers * layout.SIZE)
        try:
            self._memory = mmap.mmap(self._descriptor, workers * layout.SIZE)
        except (OSError, ValueError):
            os.close(self._descriptor)
            raise
        self._path = f"/proc/{os.getpid()}/fd/{self._descriptor}"

    def variable(self, local_rank: int) -> str:
        """What `HOLDFAST_PAGE` is to be for this worker."""
        return layout.place(self._path, local_rank)

    def read(self, local_rank: int) -> Sign | None:
        """What this worker has said last; None if it has said nothing yet."""
        start = local_rank * layout.SIZE
        for _ in range(LOOKS):
            with memoryview(self._memory) as memory, memory[start:][: layout.SIZE] as page:
                done = _word(page, layout.DONE)
                sign = _sign(page)
                if _word(page, layout.BEGUN) == done:
                    break
        return sign

    def next_ask(self, local_rank: int) -> int | None:
        """The first step at which this worker can still ask whether to save; None before it has."""
        start = local_rank * layout.SIZE
        with memoryview(self._memory) as memory, memory[start:][: layout.SIZE] as page:
            step = _word(page, layout.ASKED)
        return step if step > 0 else None

    def shielded(self, local_rank: int, pid: int) -> int:
        """Signals that do not end this process, as a mask (`worker.shield`)."""
        start = local_rank * layout.SIZE
        with memoryview(self._memory) as memory, memory[start:][: layout.SIZE] as page:
            is_about_it = _word(page, layout.SHIELDED_PID) == pid
            return _word(page, layout.SHIELDED) if is_about_it else 0

    def expired(self, local_rank: int) -> str:
        """The scope of this worker whose deadline is over the longest, by its name; or nothing."""
        now = time.monotonic()
        start = local_rank * layout.SIZE
        with memoryview(self._memory) as memory, memory[start:][: layout.SIZE] as page:
            rows = range(layout.DEADLINES)
            ends = {row: _time(page, (_deadline(row)) // 8) for row in rows}
            over = {row: at for row, at in ends.items() if 0.0 < at < now}
            if not over:
                return ""
            first = min(over, key=lambda row: over[row])
            begin = _deadline(first) + 8
            return _name(page[begin : begin + layout.PHASE_NAME_MOST]) or "a scope"

    def close(self) -> None:
        self._memory.close()
        os.close(self._descriptor)


def _word(page: memoryview, index: int) -> int:
    return int.from_bytes(page[8 * index : 8 * index + 8], sys.byteorder, signed=True)


def _time(page: memoryview, index: int) -> float:
    with page.cast("d") as times:
        return times[index]


def _sign(page: memoryview) -> Sign | None:
    stepped_at, moved_at = _time(page, layout.AT), _time(page, layout.MOVED_AT)
    if not stepped_at and not moved_at:
        return None
    row = _word(page, layout.PHASE)
    if not 0 <= row < layout.PHASES:
        row = 0
    start = layout.PHASES_FROM + row * layout.PHASE_ROW + layout.PHASE_NAME_FROM
    has_step, now = bool(_word(page, layout.HAS_STEP)), time.monotonic()
    return Sign(
        step=_word(page, layout.STEP) if has_step else None,
        age_s=_seconds(now - max(stepped_at, moved_at)),
        phase=_name(page[start : start + layout.PHASE_NAME_MOST]),
        longest_s=_seconds(_time(page, layout.LONGEST_FROM + layout.LONGEST_EACH * row)),
        step_age_s=_seconds(now - stepped_at) if has_step else 0.0,
    )


def _deadline(row: int) -> int:
    """Where a row of deadlines begins, in bytes."""
    return layout.DEADLINES_FROM + row * layout.DEADLINE_ROW


def _name(field: memoryview) -> str:
    return clean(bytes(field).partition(b"\0")[0].decode("utf-8", "replace"))


def _seconds(value: float) -> float:
    """What is no duration is none."""
    return value if math.isfinite(value) and value > 0.0 else 0.0
