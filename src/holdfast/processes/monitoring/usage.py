"""What the workers of a node use: processors, memory, accelerators. For whoever wants to see it.

Read in a lane, when it is asked for, and at no other time. How many processors a worker uses is
told by two looks: the first one of a worker says nothing about it.
"""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterable

from msgspec import Struct, field

from holdfast.core.protocol.bounds import clean, cut
from holdfast.processes.monitoring import kernel

SMI = ("nvidia-smi", "--format=csv,noheader,nounits",
       "--query-gpu=index,utilization.gpu,memory.used,memory.total")  # fmt: skip
SMI_PATIENCE_S = 5.0
APART_S = 0.2
"""Two looks that are nearer to each other tell nothing: the kernel counts in ticks."""
STATES = {
    "R": "running",
    "S": "running",
    "I": "running",
    "D": "stuck in the kernel",
    "T": "stopped",
    "t": "held by a debugger",
    "Z": "ended",
    "X": "ended",
}


class ProcessUsage(Struct, frozen=True):
    """What one worker uses, with all of its children."""

    state: str
    cpu: float | None = None
    """Processors, on average since the look before; None at the first."""
    memory_bytes: int | None = None


class MachineUsage(Struct, frozen=True):
    """What there is left of the machine."""

    load: float | None = None
    """Over a minute, for each processor."""
    memory_free_bytes: int | None = None
    accelerators: tuple[str, ...] = ()


class UsageWatch(Struct):
    """Remembers the last looks, by process."""

    seen: dict[int, tuple[float, float]] = field(default_factory=dict)

    def read(self, pids: Iterable[int]) -> dict[int, ProcessUsage]:
        """In a lane: those of them that are there."""
        now, found, seen = time.monotonic(), {}, {}
        for pid in pids:
            view = kernel.view_with_children(pid)
            if view is None:
                continue
            before = self.seen.get(pid)
            cpu = None
            if before is not None and now - before[0] >= APART_S:
                cpu = max(0.0, (view.cpu_s - before[1]) / (now - before[0]))
            seen[pid] = (now, view.cpu_s) if cpu is not None or before is None else before
            found[pid] = ProcessUsage(STATES.get(view.state, "running"), cpu, view.memory_bytes)
        self.seen = seen
        return found


def read_machine() -> MachineUsage:
    """In a lane."""
    try:
        load = os.getloadavg()[0] / (os.cpu_count() or 1)
    except OSError:
        load = None
    return MachineUsage(load, _memory_free(), accelerators())


def _memory_free() -> int | None:
    try:
        with open("/proc/meminfo", encoding="ascii", errors="replace") as file:
            found = [line.split() for line in file if line.startswith("MemAvailable:")]
            return int(found[0][1]) * 1024
    except (OSError, IndexError, ValueError):
        return None


def accelerators() -> tuple[str, ...]:
    """A line for each, as `nvidia-smi` tells; none where there is none to be asked."""
    if not os.path.exists("/dev/nvidiactl"):
        return ()
    try:
        asked = subprocess.run(
            SMI, capture_output=True, text=True, timeout=SMI_PATIENCE_S, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return ()
    return read_accelerators(asked.stdout)


def read_accelerators(text: str) -> tuple[str, ...]:
    """`0, 87, 31207, 81559` becomes "GPU 0: 87 %, 31.2 of 81.6 GB"."""
    lines = []
    for row in text.splitlines():
        cells = [cell.strip() for cell in row.split(",")]
        if len(cells) != 4 or not all(cell.isdecimal() for cell in cells):
            continue
        used, total = (int(cell) / 1000 for cell in cells[2:])
        lines.append(cut(clean(f"GPU {cells[0]}: {cells[1]} %, {used:.1f} of {total:.1f} GB")))
    return tuple(lines)
