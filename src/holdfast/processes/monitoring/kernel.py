"""What the kernel knows of a process: whether it works, waits, and for what; and what workers use.

Read from /proc, for a process that may end at any time or be stuck: nothing here raises for that,
and nobody calls this where waiting would hurt (some of these files wait for a lock of the process).
What may not be read is left out. How many processors a worker uses is told by two readings: the
first one of a worker says nothing about it.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from types import MappingProxyType

from msgspec import Struct, field
from msgspec.structs import replace

from holdfast.core.protocol.bounds import PATH_MOST, clean, cut
from holdfast.processes.monitoring.sockets import moved_by
from holdfast.processes.stdlib_only import linux

_NOTHING: Mapping[int, int] = MappingProxyType({})

FILE_CALLS = {
    "x86_64": (0, 1, 17, 18, 19, 20, 40, 44, 45, 46, 47, 73, 74, 75, 77, 78, 217, 277, 285),
    "aarch64": (32, 46, 47, 61, 63, 64, 65, 66, 67, 68, 71, 82, 83, 84, 206, 207, 211, 212),
}
"""System calls whose first argument is a descriptor (read, write, fsync, flock, getdents, …)."""
PATH_CALLS = {
    "x86_64": {2: 0, 4: 0, 6: 0, 21: 0, 76: 0, 80: 0, 82: 0, 83: 0, 84: 0, 87: 0,
               257: 1, 258: 1, 262: 1, 263: 1, 264: 1, 269: 1, 332: 1, 437: 1, 439: 1},
    "aarch64": {34: 1, 35: 1, 38: 1, 45: 0, 48: 1, 49: 0, 56: 1, 79: 1,
                276: 1, 291: 1, 437: 1, 439: 1},
}  # fmt: skip
"""Those that have a path (open, stat, mkdir, rename, …), with the place of it."""
STORE_THREAD = "pt_tcpstore"
"""What the names of its threads begin with."""
DESCENDANTS_MOST = 256
UNTOLD = ("/dev/null", "/memfd:", "/proc/")
"""Descriptors that say nothing about what is waited for."""


class KernelView(Struct, frozen=True):
    """A process as the kernel sees it. What is unknown is empty, or 0."""

    state: str = ""
    """One letter: R runs, S sleeps, D waits and cannot be woken, T stopped, t held by a debugger,
    Z ended."""
    cpu_s: float = 0.0
    """Processor time of it and its children that have ended."""
    switches: int = 0
    """How often its main thread gave up the processor of its own will."""
    io_bytes: int = 0
    """What it has read and written so far."""
    written_bytes: int = 0
    memory_bytes: int = 0
    """What of it is in memory."""
    tracer: int = 0
    """The process that traces it, if one does."""
    catches: int = 0
    """A bit for each signal that it has a handler for."""
    channel: str = ""
    """The function of the kernel in which its main thread sleeps."""
    waits_for: str = ""
    """What its main thread waits for, where that can be told: "a file on /data"."""
    file: str = ""
    """That file."""

    def in_words(self) -> str:
        """What of it is worth a word; empty where there is nothing that the stack does not say."""
        if self.state == "T":
            return "stopped by a signal"
        if self.state == "t" or self.tracer:
            return (
                f"held by a debugger (pid {self.tracer})" if self.tracer else "held by a debugger"
            )
        waits = f"waiting for {self.waits_for}" if self.waits_for else ""
        if self.state == "D":
            held = f"in the kernel, in {self.channel}" if self.channel else "in the kernel"
            return f"{waits or 'waiting'} {held}, where no signal reaches it"
        return waits

    @property
    def is_held(self) -> bool:
        """Whether somebody has stopped it, so that it can do nothing that it is asked for."""
        return self.state in ("T", "t")

    def catches_signal(self, number: int) -> bool:
        return bool(self.catches >> (number - 1) & 1)


def view_of(pid: int) -> KernelView | None:
    """None where there is no such process."""
    stat = _read(pid, "stat").rpartition(")")[2].split()
    if len(stat) < 15:
        return None
    status = _fields(_read(pid, "status"))
    counters = _fields(_read(pid, "io"))
    written = _number(counters.get("wchar", ""))
    channel = _read(pid, "wchan")
    waits_for, file = _waits_for(pid)
    return KernelView(
        state=stat[0],
        cpu_s=sum(int(ticks) for ticks in stat[11:15]) / os.sysconf("SC_CLK_TCK"),
        switches=_number(status.get("voluntary_ctxt_switches", "")),
        io_bytes=_number(counters.get("rchar", "")) + written,
        written_bytes=written,
        memory_bytes=_number(status.get("VmRSS", "").removesuffix(" kB")) * 1024,
        tracer=_number(status.get("TracerPid", "")),
        catches=_number(status.get("SigCgt", ""), 16),
        channel=clean(channel) if channel != "0" else "",
        waits_for=waits_for,
        file=file,
    )


def view_with_children(pid: int, sent: Mapping[int, int] = _NOTHING) -> KernelView | None:
    """The same, with the processor time and the bytes of all below it: a loader may do its work.

    `sent` is what connections have moved (`monitoring.sockets`).
    """
    view = view_of(pid)
    if view is None:
        return None
    served_read, served_written = _served(pid)
    io_bytes, printed = view.io_bytes - served_read - served_written, view.written_bytes
    cpu_s, printed = view.cpu_s, printed - served_written
    memory = view.memory_bytes
    io_bytes += moved_by(pid, sent)
    for child in _descendants(pid):
        below = view_of(child)
        if below is not None:
            cpu_s += below.cpu_s
            io_bytes += below.io_bytes + moved_by(child, sent)
            printed += below.written_bytes
            memory += below.memory_bytes
    sums = {"cpu_s": cpu_s, "io_bytes": io_bytes, "written_bytes": printed, "memory_bytes": memory}
    return replace(view, **sums)


def _served(pid: int) -> tuple[int, int]:
    """What PyTorch's store has read and written that this process serves: no work of its own."""
    read = written = 0
    with suppress(OSError):
        for task in os.listdir(f"/proc/{pid}/task"):
            if _read(pid, f"task/{task}/comm").startswith(STORE_THREAD):
                counters = _fields(_read(pid, f"task/{task}/io"))
                read += _number(counters.get("rchar", ""))
                written += _number(counters.get("wchar", ""))
    return read, written


def _descendants(pid: int) -> list[int]:
    """Those below it, unless they are too many; none on a kernel that does not list them."""
    found: list[int] = []
    waiting = [pid]
    while waiting and len(found) < DESCENDANTS_MOST:
        parent = waiting.pop()
        with suppress(OSError):
            for task in os.listdir(f"/proc/{parent}/task"):
                children = [int(one) for one in _read(parent, f"task/{task}/children").split()]
                found += children
                waiting += children
    return found


def _waits_for(pid: int) -> tuple[str, str]:
    """What the present system call is about: in words, and the file if it is one."""
    words = _read(pid, "syscall").split()
    machine = os.uname().machine
    if len(words) < 7 or not words[0].isdecimal():
        return "", ""
    number = int(words[0])
    with suppress(OSError, ValueError):
        if number in FILE_CALLS.get(machine, ()):
            leads_to = os.readlink(f"/proc/{pid}/fd/{int(words[1], 16)}")
        elif number in PATH_CALLS.get(machine, {}):
            leads_to = _path_at(pid, int(words[1 + PATH_CALLS[machine][number]], 16))
        else:
            return "", ""
        return _named(pid, leads_to)
    return "", ""


def _named(pid: int, leads_to: str) -> tuple[str, str]:
    """A file by the disk that it is on: that is what many workers wait for together."""
    kind = leads_to.partition(":[")[0]
    if kind in ("pipe", "socket"):
        return f"a {kind}", ""
    if not leads_to.startswith("/") or leads_to.startswith(UNTOLD):
        return "", ""
    path = cut(clean(leads_to), 200)
    disk, _ = linux.mount_of(leads_to, f"/proc/{pid}/mounts")
    return (f"a file on {cut(clean(disk), 200)}" if disk != "/" else path), path


def _path_at(pid: int, address: int) -> str:
    """A text in the memory of the process. What is not from the root is from where it works."""
    with open(f"/proc/{pid}/mem", "rb", buffering=0) as memory:
        memory.seek(address)
        room = PATH_MOST - address % PATH_MOST  # What is behind its page may not be there.
        path = os.fsdecode((memory.read(room) or b"").partition(b"\0")[0])
    return path if path.startswith("/") else os.path.join(os.readlink(f"/proc/{pid}/cwd"), path)


def _read(pid: int, name: str, most: int = 65536) -> str:
    try:
        with open(f"/proc/{pid}/{name}", encoding="utf-8", errors="replace") as file:
            return file.read(most).strip()
    except OSError:
        return ""


def _fields(text: str) -> dict[str, str]:
    pairs = (line.partition(":") for line in text.splitlines())
    return {name: value.strip() for name, _, value in pairs}


def _number(text: str, radix: int = 10) -> int:
    try:
        return int(text, radix)
    except ValueError:
        return 0


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
            view = view_with_children(pid)
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
    import subprocess

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
