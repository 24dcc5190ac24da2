"""Files that workers' output is appended to.

Rules
- Nothing here raises into the loop: a file that cannot be opened or written is said so once,
  on the console, and whatever else happens to the output goes on.
- Files are appended to, never truncated: a later round of the same attempt adds to them.
- Disks may be slow: all that is done to a file is put into a `Lane`, in order. Without one it is
  done at once, for a loop on which nobody's lease depends.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from msgspec import Struct

from holdfast.processes.output.console import Console

BLOCKS_AT_ONCE = 64


class Lane(Protocol):
    """Where disk work is done in order, with nobody waiting for it."""

    @property
    def congested(self) -> bool:
        """Whether so much waits that sources should wait, if they can."""

    def when_clear(self, callback: Callable[[], None]) -> None:
        """Call back once, from the loop, when the congestion is over."""

    def do(
        self, work: Callable[[], Any], then: Callable[[Any], None] | None = None, size: int = 0
    ) -> None:
        """Do it, and tell `then`, on the loop, what came of it, unless that is None."""


class AtOnce:
    """Everything is done by the time that `do` returns."""

    congested = False

    def when_clear(self, callback: Callable[[], None]) -> None:
        callback()

    def do(
        self, work: Callable[[], Any], then: Callable[[Any], None] | None = None, size: int = 0
    ) -> None:
        result = work()
        if then is not None and result is not None:
            then(result)


AT_ONCE = AtOnce()


class Opened(Struct, frozen=True):
    """A file that was opened to be appended to, or why that could not be done."""

    descriptor: int = -1
    size: int = 0
    problem: str = ""


def open_to_append(path: Path) -> Opened:
    """Open a file, and make it and its folders where they are missing. Waits for the disk."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o666)
        return Opened(descriptor, os.fstat(descriptor).st_size)
    except OSError as error:
        return Opened(problem=error.strerror or str(error))


def say_cannot_write(console: Console, path: Path, problem: str) -> None:
    text = f"holdfast: cannot write {path}: {problem}; output is missing there"
    console.write(2, os.fsencode(text) + b"\n")


class LogFile:
    """A file that is only appended to, and whose failures end here.

    A failure is said once, on the console. Later blocks are tried all the same: space may
    have been made.
    """

    def __init__(self, path: Path, console: Console, lane: Lane = AT_ONCE) -> None:
        self._path = path
        self._console = console
        self._lane = lane
        self._failure_said = False
        self._descriptor = -1
        self._unwritten: deque[bytes] = deque()
        lane.do(self._open, self._say)

    @property
    def is_whole(self) -> bool:
        """Whether it has all that was ever given to it, or will, as far as is known."""
        return not self._failure_said

    def write(self, data: bytes) -> None:
        self._unwritten.append(data)
        self._lane.do(self._write, self._say, len(data))

    def close(self) -> None:
        self._lane.do(self._close, self._say)

    def _say(self, problem: str) -> None:
        if not self._failure_said:
            self._failure_said = True
            say_cannot_write(self._console, self._path, problem)

    # In the lane: None, or the problem in words.

    def _open(self) -> str | None:
        opened = open_to_append(self._path)
        self._descriptor = opened.descriptor
        return opened.problem or None

    def _write(self) -> str | None:
        """Write all that has come meanwhile: one call for many blocks, and later none for these."""
        while self._unwritten:
            number = min(len(self._unwritten), BLOCKS_AT_ONCE)
            blocks = [self._unwritten.popleft() for _ in range(number)]
            try:
                if self._descriptor >= 0:
                    _write_all(self._descriptor, blocks)
            except OSError as error:
                return error.strerror or str(error)
        return None

    def _close(self) -> str | None:
        descriptor, self._descriptor = self._descriptor, -1
        return close_file(descriptor)


def _write_all(descriptor: int, blocks: list[bytes]) -> None:
    written = os.writev(descriptor, blocks)
    if written < sum(map(len, blocks)):
        rest = memoryview(b"".join(blocks))[written:]
        while rest:
            rest = rest[os.write(descriptor, rest) :]


def close_file(descriptor: int) -> str | None:
    """Close a file, if it is one. Some disks write only now: this may wait, and fail."""
    try:
        if descriptor >= 0:
            os.close(descriptor)
    except OSError as error:
        return error.strerror or str(error)
    return None
