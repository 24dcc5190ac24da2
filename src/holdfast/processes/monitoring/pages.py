"""What an agent and its workers share in memory: a page for each, and a place for its stacks.

In a page a worker says how far it is (`worker.page`). To the other one it writes its stacks when
it is asked (`monitoring.stacks`). Neither has a name in any file system: workers open it by the
agent's descriptor in /proc, and it is gone with the last process that has it open. What is in it is
foreign: a worker can have written anything there. Nothing here raises for it, and pages stay as
large as they are.
"""

from __future__ import annotations

import math
import os
import signal
import sys
import time
from collections import Counter
from collections.abc import Mapping

from msgspec import Struct, field

from holdfast.core.protocol.bounds import clean, clean_lines
from holdfast.processes.output.log_files import Lane
from holdfast.processes.saving_page import sealed_memory
from holdfast.processes.stdlib_only.stack_handler import VARIABLE
from holdfast.runtime.loop import Loop
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


SIGNAL = signal.SIGRTMAX - 3
"""Nothing that is known of uses it; Python's own faulthandler leaves the choice to its user."""
TEXT_MOST = 1 << 20


class StackMeans(Struct, frozen=True):
    """What workers are looked at with."""

    loop: Loop
    lane: Lane
    """For files."""
    process_lane: Lane
    """For looks at processes, which may be stuck."""
    spawner: int
    """The process that the workers are children of."""
    environ: Mapping[str, str] = field(default_factory=dict)
    """What all workers have in their environment."""
    debugs: bool = True
    """Whether a debugger may look at them."""
    is_python: bool = True
    """Whether an interpreter runs in each of them."""


class StackFiles:
    """The memory that the workers of a round write their stacks to."""

    def __init__(self) -> None:
        self._files: dict[int, int] = {}
        self._taken: Counter[int] = Counter()
        self._is_closed = False

    def variables(self, local_rank: int) -> dict[str, str]:
        """What the environment of this worker has for our sake; empty where it cannot be had."""
        if self._is_closed:
            return {}
        try:
            if local_rank not in self._files:
                made = os.memfd_create("holdfast-stacks", os.MFD_CLOEXEC)
                self._files[local_rank] = made
        except OSError:
            return {}
        path = f"/proc/{os.getpid()}/fd/{self._files[local_rank]}"
        return {VARIABLE: f"{SIGNAL}@{path}"}

    def size(self, local_rank: int) -> int:
        return os.fstat(self._files[local_rank]).st_size if local_rank in self._files else 0

    def written(self, local_rank: int) -> int:
        """How much this worker has written only because it was asked."""
        return self._taken[local_rank] + self.size(local_rank)

    def take(self, local_rank: int) -> str:
        """What is there, which is then there no more."""
        if local_rank not in self._files:
            return ""
        self._taken[local_rank] += self.size(local_rank)
        descriptor = self._files[local_rank]
        text = os.pread(descriptor, TEXT_MOST, 0).decode("utf-8", "replace")
        os.ftruncate(descriptor, 0)
        return clean_lines(text)

    def close(self) -> None:
        for descriptor in self._files.values():
            os.close(descriptor)
        self._files.clear()
        self._is_closed = True
