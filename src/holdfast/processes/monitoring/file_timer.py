"""PyTorch's file timer (`TORCHELASTIC_ENABLE_FILE_TIMER=1`): its named pipe, and its server.

Rules
- A request is one line of JSON, short enough that the pipe takes it whole: requests of several
  workers are never mixed up. A line that means nothing is no request.
- The pipe can be opened and written by this user only, and is gone when the agent is done.
- A timer is a worker's, or a child's of a worker's: a request that names any other process ends
  nobody. One that runs out is a deadline like any other: the worker is ended once its stack is
  kept, and fails with the scope's name. One that asks for no signal ends nobody.

Its times are those of the wall clock, because the client sends such: a clock that is set forward
ends a scope too soon. `holdfast.expires` has no such trouble. The server of the API
(`holdfast.elastic.timer`) reads the same pipe.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from tempfile import gettempdir
from typing import Annotated

import msgspec

from holdfast.processes.output.log_files import Lane
from holdfast.processes.stdlib_only import linux
from holdfast.runtime.loop import Cancellable, Loop

LINE_LIMIT = 1 << 16


class TimerLine(msgspec.Struct):
    """A request as it is written: until when, in seconds since 1970; below 0 gives it back."""

    pid: Annotated[int, msgspec.Meta(ge=-(1 << 31), lt=1 << 31)]
    scope_id: str
    expiration_time: float
    signal: Annotated[int, msgspec.Meta(ge=-(1 << 31), le=64)]


_lines = msgspec.json.Decoder(TimerLine)
"""Made here, in one thread: msgspec crashes if two threads first meet a type at the same time."""


def read_line(line: bytes) -> TimerLine:
    """Raises `msgspec.DecodeError` for what is no request."""
    return _lines.decode(line)


def make_pipe(path: str) -> None:
    """In place of whatever was there."""
    remove_pipe(path)
    os.mkfifo(path, 0o600)


def remove_pipe(path: str) -> None:
    try:
        os.unlink(path)
    except FileNotFoundError:
        pass  # Nothing there is what is wanted.


class TimerPipe:
    """The reading end."""

    def __init__(self, path: str) -> None:
        # Opened for writing too: so there always is a writer, and never an end of the file.
        self.descriptor = os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        self._rest = b""

    def lines(self) -> list[bytes]:
        """What is there to read, without waiting."""
        read = bytearray(self._rest)
        try:
            while received := os.read(self.descriptor, 1 << 16):
                read += received
        except BlockingIOError:
            pass  # All is read.
        *lines, self._rest = bytes(read).split(b"\n")
        if len(self._rest) > LINE_LIMIT:
            self._rest = b""
        return lines

    def close(self) -> None:
        os.close(self.descriptor)


VARIABLE = "TORCHELASTIC_TIMER_FILE"
GENERATIONS = 8
"""How far above a process its worker is looked for."""
AT_ONCE_S = 0.0
LATEST_S = 1e7

OnExpired = Callable[[int, str], None]
"""Takes the process that a timer is of, and its scope."""


class FileTimer:
    """Reads requests on the loop, and tells whose time is over."""

    def __init__(self, path: str, loop: Loop, lane: Lane, on_expired: OnExpired) -> None:
        self._path, self._loop, self._lane, self._on_expired = path, loop, lane, on_expired
        self._timers: dict[tuple[int, str], float] = {}
        self._pipe: TimerPipe | None = None
        self._wake: Cancellable | None = None
        self._is_closed = False
        lane.do(partial(_opened, path), self._on_open)

    def forget(self, pids: set[int]) -> None:
        """These have ended, and what they asked for with them."""
        self._timers = {key: at for key, at in self._timers.items() if key[0] not in pids}

    def close(self) -> None:
        self._is_closed = True
        if self._wake is not None:
            self._wake.cancel()
        if self._pipe is not None:
            self._loop.remove_reader(self._pipe.descriptor)
            self._pipe.close()
        self._lane.do(partial(remove_pipe, self._path))

    def _on_open(self, pipe: TimerPipe | None) -> None:
        if pipe is not None and self._is_closed:
            pipe.close()
        elif pipe is not None:
            self._pipe = pipe
            self._loop.add_reader(pipe.descriptor, self._on_readable)

    def _on_readable(self) -> None:
        assert self._pipe is not None, "a pipe that is not open was readable"
        for line in self._pipe.lines():
            try:
                self._take(read_line(line))
            except msgspec.DecodeError:
                continue  # Anything of this user may write here.
        self._wait_for_first()

    def _take(self, said: TimerLine) -> None:
        key = (said.pid, said.scope_id)
        if said.expiration_time < 0:
            self._timers.pop(key, None)
        elif said.signal > 0:
            self._timers[key] = said.expiration_time

    def _wait_for_first(self) -> None:
        if self._wake is not None:
            self._wake.cancel()
            self._wake = None
        if self._timers:
            left_s = min(self._timers.values()) - time.time()
            self._wake = self._loop.call_later(min(max(left_s, AT_ONCE_S), LATEST_S), self._on_due)

    def _on_due(self) -> None:
        now = time.time()
        over = sorted((at, key) for key, at in self._timers.items() if at <= now)
        for _, (pid, scope) in over:
            self._timers.pop((pid, scope), None)
            self._on_expired(pid, scope)
        self._wake = None
        self._wait_for_first()


def chosen_path(said: str | None) -> str:
    """Where the pipe is to be: as the user says, else in a place of its own."""
    return said or str(Path(gettempdir(), f"holdfast_timer_{os.getpid()}_{os.urandom(4).hex()}"))


def worker_above(pid: int, workers: set[int]) -> int | None:
    """The worker that this process is, or is below; None where it is neither."""
    for _ in range(GENERATIONS):
        if pid in workers:
            return pid
        process = linux.read_process(pid) if pid > 1 else None
        if process is None:
            return None
        pid = process.parent
    return None


def _opened(path: str) -> TimerPipe | None:
    """In a lane; None where it cannot be: clients then say that nobody reads it."""
    try:
        make_pipe(path)
        return TimerPipe(path)
    except OSError:
        return None
