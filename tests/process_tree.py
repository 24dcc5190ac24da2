"""Processes as the kernel shows them, and what there is below this one.

The test process is a subreaper (`conftest.py`): whatever it started, however deep and however
detached, is below it. So the tree is walked from child to child, which is cheap enough for every
test and for every look of a test that waits; to read of all processes of the machine is not.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple


class Process(NamedTuple):
    """A process, told apart from a later one with the same number by its start."""

    pid: int
    started: int


class Status(NamedTuple):
    """A process as the kernel shows it at one moment."""

    process: Process
    parent: int
    state: str

    @property
    def is_running(self) -> bool:
        return self.state not in "ZX"


class Family(NamedTuple):
    """The processes below this one: all that run, and its own children that are dead."""

    running: set[Process]
    dead: set[Process]


def family() -> Family:
    """What there is below this process now."""
    me = os.getpid()
    found = _below([me])
    return Family(
        {status.process for status in found if status.is_running},
        {status.process for status in found if status.parent == me and not status.is_running},
    )


def running_below(processes: Iterable[Process]) -> set[Process]:
    """What descends from these and runs. Of one that is gone there is nothing below it."""
    there = (one.pid for one in processes if (now := status_of(one.pid)) and now.process == one)
    return {status.process for status in _below(there) if status.is_running}


def _below(roots: Iterable[int]) -> list[Status]:
    found: list[Status] = []
    pending = [*roots]
    while pending:
        children = [status for pid in _children_of(pending.pop()) if (status := status_of(pid))]
        found += children
        pending += (status.process.pid for status in children)
    return found


def _children_of(pid: int) -> Iterator[int]:
    """Those of all its threads; none when there is no such process."""
    for thread in _names_in(f"/proc/{pid}/task"):
        try:
            with open(f"/proc/{pid}/task/{thread}/children", "rb", buffering=0) as file:
                yield from map(int, file.read().split())
        except (FileNotFoundError, ProcessLookupError):
            pass  # its children fall to another thread, or to us


def _names_in(folder: str) -> list[str]:
    try:
        return os.listdir(folder)
    except (FileNotFoundError, ProcessLookupError):
        return []


def status_of(pid: int) -> Status | None:
    """None when there is no such process."""
    try:
        # Without a buffer and without decoding, since this is done often.
        with open(f"/proc/{pid}/stat", "rb", buffering=0) as file:
            text = file.read()
    except (FileNotFoundError, ProcessLookupError):
        return None
    # The name, in brackets, may hold anything, brackets and blanks included.
    state, parent, *fields = text.rpartition(b")")[2].split()
    return Status(Process(pid, started=int(fields[17])), int(parent), state.decode())


def command_of(pid: int) -> str:
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except (FileNotFoundError, ProcessLookupError):
        return "gone"
    return b" ".join(words).decode(errors="replace").strip() or "no command line"
