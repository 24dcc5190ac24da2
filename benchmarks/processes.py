"""What the kernel knows about processes: who is below whom, and what they use."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import NamedTuple

_STATE, _PARENT = 0, 1
"""Places in /proc/<pid>/stat, counted after the name, which may itself contain anything."""
_CPU_CLOCK_OF_PROCESS = 2
_KIB = 1024


class Memory(NamedTuple):
    """Resident memory of one process. In `proportional`, what n processes share counts 1/n."""

    resident_bytes: int
    proportional_bytes: int


def children(parent: int) -> list[int]:
    """The living children of a process."""
    return [pid for pid, above in _parents().items() if above == parent]


def descendants(ancestor: int) -> list[int]:
    """All living processes below one, nearest first."""
    parents = _parents()
    found: list[int] = []
    layer = [ancestor]
    while layer:
        layer = [pid for pid, parent in parents.items() if parent in layer]
        found += layer
    return found


def _parents() -> dict[int, int]:
    """The parent of every process that has not ended."""
    parents = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                fields = Path("/proc", entry, "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue  # It ended since the folder was listed.
            if fields[_STATE] != "Z":
                parents[int(entry)] = int(fields[_PARENT])
    return parents


def name(pid: int) -> str:
    """The short name that the kernel has for a process."""
    return Path(f"/proc/{pid}/comm").read_text().strip()


def memory(pid: int) -> Memory:
    """What a process occupies now."""
    sizes = {}
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]:
        label, _, rest = line.partition(":")
        sizes[label] = int(rest.split()[0]) * _KIB
    return Memory(sizes["Rss"], sizes["Pss"])


def cpu_seconds(pid: int) -> float:
    """CPU time of all threads of a process, ended ones included, to the nanosecond.

    The kernel's CPU clock of that process: /proc/<pid>/stat counts the same in hundredths of
    a second, which is more than an idle process uses.
    """
    return time.clock_gettime((~pid << 3) | _CPU_CLOCK_OF_PROCESS)


def wake_ups(pid: int) -> int:
    """How often the living threads of a process went to sleep of their own will."""
    total = 0
    for thread in os.listdir(f"/proc/{pid}/task"):
        for line in Path(f"/proc/{pid}/task/{thread}/status").read_text().splitlines():
            if line.startswith("voluntary_ctxt_switches:"):
                total += int(line.split()[1])
    return total
