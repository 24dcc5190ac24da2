"""What the kernel knows of a process: whether it works, waits, and for what.

Read from /proc, for a process that may end at any time or be stuck: nothing here raises for that,
and nobody calls this where waiting would hurt (some of these files wait for a lock of the process).
What may not be read is left out.
"""

from __future__ import annotations

import os
from contextlib import suppress

from msgspec import Struct
from msgspec.structs import replace

from holdfast.core.protocol.bounds import clean, cut

FILE_CALLS = {
    "x86_64": {0: "read", 1: "write", 17: "read", 18: "write", 19: "read", 20: "write",
               74: "fsync", 75: "fsync", 73: "lock", 45: "read", 44: "write", 47: "read"},
    "aarch64": {63: "read", 64: "write", 67: "read", 68: "write", 65: "read", 66: "write",
                82: "fsync", 83: "fsync", 32: "lock", 207: "read", 206: "write", 212: "read"},
}  # fmt: skip
"""System calls whose first argument is a descriptor: by their number, what is done with it."""
DESCENDANTS_MOST = 256
UNTOLD = ("anon_inode:", "/dev/null", "/memfd:")
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
    """The file or device that its main thread waits for, where that can be told."""

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

    def catches_signal(self, number: int) -> bool:
        return bool(self.catches >> (number - 1) & 1)


def look(pid: int) -> KernelView | None:
    """None where there is no such process."""
    stat = _read(pid, "stat").rpartition(")")[2].split()
    if len(stat) < 15:
        return None
    status = _fields(_read(pid, "status"))
    counters = _fields(_read(pid, "io"))
    written = _number(counters.get("wchar", ""))
    channel = _read(pid, "wchan")
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
        waits_for=_waits_for(pid),
    )


def look_with_children(pid: int) -> KernelView | None:
    """The same, with the processor time and the bytes of all below it: a loader may do its work."""
    view = look(pid)
    if view is None:
        return None
    cpu_s, io_bytes, printed = view.cpu_s, view.io_bytes, view.written_bytes
    memory = view.memory_bytes
    for child in _descendants(pid):
        below = look(child)
        if below is not None:
            cpu_s, io_bytes = cpu_s + below.cpu_s, io_bytes + below.io_bytes
            printed += below.written_bytes
            memory += below.memory_bytes
    sums = {"cpu_s": cpu_s, "io_bytes": io_bytes, "written_bytes": printed, "memory_bytes": memory}
    return replace(view, **sums)


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


def _waits_for(pid: int) -> str:
    """What the descriptor leads to that the present system call is about."""
    words = _read(pid, "syscall").split()
    calls = FILE_CALLS.get(os.uname().machine, {})
    if len(words) < 2 or not words[0].isdecimal() or int(words[0]) not in calls:
        return ""
    with suppress(OSError, ValueError):
        leads_to = os.readlink(f"/proc/{pid}/fd/{int(words[1], 16)}")
        if not leads_to.startswith(UNTOLD):
            kind = leads_to.partition(":[")[0]
            return cut(clean(f"a {kind}" if kind in ("pipe", "socket") else leads_to), 200)
    return ""


def _read(pid: int, name: str) -> str:
    try:
        with open(f"/proc/{pid}/{name}", encoding="utf-8", errors="replace") as file:
            return file.read(65536).strip()
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
