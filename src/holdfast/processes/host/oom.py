"""Whether the kernel's out-of-memory killer ended a worker.

A worker that ends by SIGKILL which nobody here sent gives no reason. The control group that the
agent and its workers live in counts such kills: one of its processes it was, though it is not said
which. So does the machine as a whole: it may have been this one. Only what happened since
`snapshot()` counts, and a counter that cannot be read is passed over.
"""

from __future__ import annotations

import os
from pathlib import Path

from msgspec import Struct


class OutOfMemoryWatch:
    """What the kernel says about memory kills, from a moment on."""

    def __init__(self, proc: Path = Path("/proc")) -> None:
        self._proc = proc
        self._group: Path | None = None
        self._group_before: int | None = None
        self._machine_before: int | None = None
        self.snapshot()

    def snapshot(self) -> None:
        """Forget what was; count from now on. Taken when workers are started."""
        self._group = _memory_counter(self._proc)
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


class _Mount(Struct, frozen=True):
    """A tree of control groups: which part of it is mounted, and where."""

    root: str
    point: str
    is_unified: bool

    def directory_of(self, group: str) -> Path:
        inside = os.path.relpath(group, self.root)
        # A group outside what is mounted, as in a container: its top is all there is to see.
        return Path(self.point) if inside.startswith("..") else Path(self.point, inside)


def _memory_counter(proc: Path) -> Path | None:
    """The file with the kills of this process's own control group, or None."""
    mounts = _memory_mounts(proc)
    for line in _lines(proc / "self/cgroup"):
        _, controllers, group = line.split(":", 2)
        for mount in mounts:
            directory = mount.directory_of(group)
            if mount.is_unified and not controllers:
                # The count includes the groups below, so the nearest one above will do.
                places = [directory, *directory.parents][: _depth(directory, mount) + 1]
                files = [place / "memory.events" for place in places]
            elif not mount.is_unified and "memory" in controllers.split(","):
                files = [directory / "memory.oom_control"]
            else:
                continue
            readable = [file for file in files if _kills_in(file) is not None]
            if readable:
                return readable[0]
    return None


def _depth(directory: Path, mount: _Mount) -> int:
    return len(directory.parts) - len(Path(mount.point).parts)


def _memory_mounts(proc: Path) -> list[_Mount]:
    found = []
    for line in _lines(proc / "self/mountinfo"):
        where, _, what = line.partition(" - ")
        root, point = where.split(" ")[3:5]
        kind, _, options = what.split(" ", 2)
        if kind == "cgroup2" or (kind == "cgroup" and "memory" in options.split(",")):
            found.append(_Mount(root, point, is_unified=kind == "cgroup2"))
    return found


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
