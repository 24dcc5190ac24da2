"""PyTorch's file timer, served by the agent (`TORCHELASTIC_ENABLE_FILE_TIMER=1`).

Rules
- A timer is a worker's, or a child's of a worker's: a request that names any other process ends
  nobody.
- One that runs out is a deadline like any other: the worker is ended once its stack is kept, and
  fails with the scope's name. One that asks for no signal ends nobody.
- The pipe is gone when the agent is done. Making and removing it is for a lane; nothing here waits.

Its times are those of the wall clock, because the client sends such: a clock that is set forward
ends a scope too soon. `holdfast.expires` has no such trouble.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from tempfile import gettempdir

import msgspec

from holdfast.processes.output.log_files import Lane
from holdfast.processes.stdlib_only import linux
from holdfast.processes.timer_pipe import TimerLine, TimerPipe, make_pipe, read_line, remove_pipe
from holdfast.runtime.loop import Cancellable, Loop

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
