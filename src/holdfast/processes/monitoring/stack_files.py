"""The memory that the workers of a round write their stacks to, each to its own.

Apart from what is done with it (`monitoring.stacks`): each job has it from its start, and few
are ever asked for a stack.
"""

from __future__ import annotations

import os
import signal
from collections import Counter
from collections.abc import Mapping

from msgspec import Struct, field

from holdfast.core.protocol.bounds import clean_lines
from holdfast.processes.output.log_files import Lane
from holdfast.processes.stdlib_only.stack_handler import VARIABLE
from holdfast.runtime.loop import Loop

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
