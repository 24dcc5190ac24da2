"""Whether the kernel's out-of-memory killer ended a worker.

A worker that ends by SIGKILL which nobody here sent gives no reason. The control group that the
agent and its workers live in counts such kills: one of its processes it was, though it is not said
which. So does the machine as a whole: it may have been this one. Only what happened since
`snapshot()` counts, and a counter that cannot be read is passed over.
"""

from __future__ import annotations

import os
from pathlib import Path


class OutOfMemoryWatch:
    """What the kernel says about memory kills, from a moment on."""

    def __init__(self, proc: Path = Path("/proc"), cgroups: Path = Path("/sys/fs/cgroup")) -> None:
        self._proc, self._cgroups = proc, cgroups
        self._group: Path | None = None
        self._group_before: int | None = None
        self._machine_before: int | None = None
        self.snapshot()

    def snapshot(self) -> None:
        """Forget what was; count from now on. Taken when workers are started."""
        self._group = _memory_counter(self._proc, self._cgroups)
        self._group_before = _kills_in(self._group)
        self._machine_before = _kills_in(self._proc / "vmstat")

    def evidence(self) -> str:
        """Why a process that got SIGKILL may have been killed by the kernel, in words, or empty."""
        if in_group := _grown(self._group_before, _kills_in(self._group)):
            return (
                "very probably the kernel's out-of-memory killer: it ended "
                f"{_processes(in_group)} of this control group ({self._group})"
            )
        if on_machine := _grown(self._machine_before, _kills_in(self._proc / "vmstat")):
            return (
                "probably the kernel's out-of-memory killer: it ended "
                f"{_processes(on_machine)} of this machine since the workers were started"
            )
        return ""


def _memory_counter(proc: Path, cgroups: Path) -> Path | None:
    """The file with the kills of this process's own control group, or None.

    A container may see a part of the tree only, whose top is its own: then the nearest group above
    that is there will do, as where the own one has no controller.
    """
    for line in _lines(proc / "self/cgroup"):
        _, controllers, group = line.split(":", 2)
        if not controllers:
            top, counter = cgroups, "memory.events"
        elif "memory" in controllers.split(","):
            top, counter = cgroups / "memory", "memory.oom_control"
        else:
            continue
        directory = Path(os.path.normpath(f"{top}/{group}"))
        above = [place for place in (directory, *directory.parents) if place.is_relative_to(top)]
        for place in above or [top]:
            if _kills_in(place / counter) is not None:
                return place / counter
    return None


def _kills_in(file: Path | None) -> int | None:
    """The number beside `oom_kill` in a file of counters, or None."""
    for line in _lines(file) if file else []:
        name, _, value = line.partition(" ")
        if name == "oom_kill" and value.isdecimal():
            return int(value)
    return None


def _lines(file: Path) -> list[str]:
    try:
        return file.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []


def _grown(before: int | None, now: int | None) -> int | None:
    return None if before is None or now is None else now - before


def _processes(count: int) -> str:
    return "1 process" if count == 1 else f"{count} processes"
