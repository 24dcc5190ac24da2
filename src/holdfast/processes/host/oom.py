"""Whether the kernel's out-of-memory killer ended a worker.

A worker that ends by SIGKILL which nobody here sent gives no reason. The kernel does, in up
to three places, asked in this order:

1. The kernel's log names the process: certain. It is readable as root, mostly, and it
   counts processes as the machine does, so inside a container it cannot be used.
2. The control group that the agent and its workers live in counts such kills: one of its
   processes it was, though it is not said which.
3. The machine as a whole counts them too: it may have been this one.

Rules
- Only what happened since `snapshot()` counts.
- Where the log names as many processes as the machine has counted, it has named all of
  them, and a process that is not among them died of something else.
- A place that cannot be read is passed over. Nothing is polled; the only thing kept open is
  the kernel's log, positioned at its end.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from msgspec import Struct

KILLED = r"Killed process (\d+)\b(?:[^\n]*?anon-rss:\w+|[^\n]*)"
INITIAL_PID_NAMESPACE = "pid:[4026531836]"  # the kernel's own fixed number for it
RECORD_LIMIT = 8192  # the longest record that the kernel hands out


class KernelReports(Struct, frozen=True):
    """Where the kernel tells what it did."""

    kernel_log: str = "/dev/kmsg"
    proc: str = "/proc"


class OutOfMemoryWatch:
    """What the kernel says about memory kills, from a moment on."""

    def __init__(self, places: KernelReports | None = None) -> None:
        self._places = places or KernelReports()
        self._log = _KernelLog(self._places)
        self._group: Path | None = None
        self._group_before: int | None = None
        self._machine_before: int | None = None
        self.snapshot()

    def snapshot(self) -> None:
        """Forget what was; count from now on. Taken when workers are started."""
        self._log.skip()
        self._group = _memory_counter(Path(self._places.proc))
        self._group_before = _kills_in(self._group)
        self._machine_before = self._machine_kills()

    def evidence(self, pid: int) -> str:
        """Why a process that got SIGKILL was killed by the kernel, in words, or empty."""
        named = self._log.killed()
        if pid in named:
            return f"the kernel's out-of-memory killer ended it (kernel log: {named[pid]})"
        on_machine = _grown(self._machine_before, self._machine_kills())
        if self._log.is_complete and on_machine is not None and on_machine <= len(named):
            return ""
        in_group = _grown(self._group_before, _kills_in(self._group))
        if in_group:
            return (
                "very probably the kernel's out-of-memory killer: it ended "
                f"{_processes(in_group)} of this control group ({self._group})"
            )
        if on_machine:
            return (
                "probably the kernel's out-of-memory killer: it ended "
                f"{_processes(on_machine)} of this machine since the workers were started"
            )
        return ""

    def close(self) -> None:
        self._log.close()

    def _machine_kills(self) -> int | None:
        return _kills_in(Path(self._places.proc, "vmstat"))


class _KernelLog:
    """The records of /dev/kmsg that name killed processes."""

    def __init__(self, places: KernelReports) -> None:
        self._killed: dict[int, str] = {}
        self._descriptor = _open_log(places)
        self.is_complete = self._descriptor is not None
        """Whether every kill since the snapshot is among those read."""

    def skip(self) -> None:
        self._killed.clear()
        self.is_complete = self._descriptor is not None
        if self._descriptor is not None:
            os.lseek(self._descriptor, 0, os.SEEK_END)

    def killed(self) -> dict[int, str]:
        """The processes killed since `skip()`, each with the kernel's words for it."""
        while (record := self._next()) is not None:
            priority, _, rest = record.partition(",")
            found = re.search(KILLED, rest)
            # A priority of 8 and more is a record that a process wrote, not the kernel.
            if found and priority.isdecimal() and int(priority) < 8:
                self._killed[int(found[1])] = found[0]
        return self._killed

    def _next(self) -> str | None:
        while self._descriptor is not None:
            try:
                record = os.read(self._descriptor, RECORD_LIMIT)
                return record.decode(errors="replace") if record else None
            except BrokenPipeError:
                self.is_complete = False  # records were overwritten before they were read
            except OSError:
                break  # the end of the log
        return None

    def close(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


def _open_log(places: KernelReports) -> int | None:
    try:
        if os.readlink(f"{places.proc}/self/ns/pid") != INITIAL_PID_NAMESPACE:
            return None  # the log's numbers are not ours: one could name the wrong process
        return os.open(places.kernel_log, os.O_RDONLY | os.O_NONBLOCK)
    except OSError:
        return None


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
