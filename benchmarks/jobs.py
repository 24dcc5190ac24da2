"""Running a launcher, hearing from its workers, and leaving nothing behind.

Rules
1. Every wait has a deadline, ends at once when the launcher does, and never polls: exits come
   through a pidfd, reports of workers through a named pipe.
2. Whatever was started is gone when `Job` is left, however it is left. This process is a
   subreaper: whoever lost its parent becomes its child, so a walk finds everybody.
"""

from __future__ import annotations

import ctypes
import os
import select
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Self

from benchmarks import processes

PR_SET_CHILD_SUBREAPER = 36
GONE_DEADLINE_S = 10.0
OUTPUT_TAIL_BYTES = 2000


class RunFailed(Exception):
    """A run that gave no result, and why."""


class Report(NamedTuple):
    """What `programs/stamp.py` says: times are of CLOCK_MONOTONIC."""

    rank: int
    attempt: int
    pid: int
    begun: float
    reached: float
    world: int
    """How many workers its round has."""


def become_subreaper() -> None:
    """From now on, orphans below this process become its children."""
    if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "cannot become a subreaper")


class Job:
    """A command that was started in a folder of its own, and everything below it."""

    def __init__(
        self, command: list[str], environment: dict[str, str], folder: Path, stdout: int = -1
    ) -> None:
        folder.mkdir()
        self.folder = folder
        self._reports_path = folder / "reports"
        os.mkfifo(self._reports_path)
        self._pipe = os.open(self._reports_path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        self._unfinished = b""
        self._output = folder / "output.txt"
        self.reports: list[Report] = []
        with open(self._output, "wb") as output:
            self.started_at = time.monotonic()
            self.process = subprocess.Popen(
                command,
                env={**environment, "BENCH_REPORTS": str(self._reports_path)},
                cwd=folder,
                stdin=subprocess.DEVNULL,
                stdout=output if stdout == -1 else stdout,
                stderr=output,
                start_new_session=True,
            )
        self.pid = self.process.pid
        self._exit = os.pidfd_open(self.pid)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        kill_everything_below()
        self.process.wait()
        os.close(self._exit)
        os.close(self._pipe)

    def await_success(self, deadline_s: float) -> float:
        """Wait for the end; returns the seconds since the start. Raises `RunFailed`."""
        if not _wait_for([self._exit], self.started_at + deadline_s):
            raise RunFailed(f"it did not end within {deadline_s:g} s")
        ended_at = time.monotonic()
        if self.process.wait() != 0:
            raise self._ended_early()
        return ended_at - self.started_at

    def end(self, deadline_s: float) -> None:
        """Ask it to end, as a user would, and wait; whoever does not is killed later."""
        self.process.terminate()
        _wait_for([self._exit], time.monotonic() + deadline_s)

    def await_reports(self, enough: Callable[[list[Report]], bool], deadline_s: float) -> None:
        """Read reports until there are enough. Raises `RunFailed`."""
        until = time.monotonic() + deadline_s
        while not enough(self.reports):
            ready = _wait_for([self._pipe, self._exit], until)
            if not ready:
                raise RunFailed(f"too few workers reported within {deadline_s:g} s")
            self.read_reports()
            if self._exit in ready and not enough(self.reports):
                raise self._ended_early()

    def settle(self, seconds: float) -> None:
        """Let it run undisturbed for a while. Raises `RunFailed` if it ends."""
        if _wait_for([self._exit], time.monotonic() + seconds):
            raise self._ended_early()

    def read_reports(self) -> None:
        """Take what workers have reported since the last look."""
        try:
            text = self._unfinished + os.read(self._pipe, 65536)
        except BlockingIOError:
            return
        *lines, self._unfinished = text.split(b"\n")
        for line in lines:
            rank, attempt, pid, begun, reached, world = line.split()
            times = float(begun), float(reached)
            self.reports.append(Report(int(rank), int(attempt), int(pid), *times, int(world)))

    def _ended_early(self) -> RunFailed:
        tail = self._output.read_bytes()[-OUTPUT_TAIL_BYTES:].decode(errors="replace")
        return RunFailed(f"it ended with status {self.process.wait()}, and said: {tail.strip()}")


def kill_everything_below() -> None:
    """Kill and reap all that descends from this process."""
    until = time.monotonic() + GONE_DEADLINE_S
    while below := processes.descendants(os.getpid()):
        for pid in below:
            _kill_and_wait(pid, until)
        if time.monotonic() > until:
            raise RuntimeError(f"cannot get rid of the processes {below}")
    _reap()


def _kill_and_wait(pid: int, until: float) -> None:
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        # The handle pins the process; only now can the number not become a stranger's.
        if pid in processes.descendants(os.getpid()):
            signal.pidfd_send_signal(handle, signal.SIGKILL)
            _wait_for([handle], until)
    except ProcessLookupError:
        pass  # It ended by itself.
    finally:
        os.close(handle)


def _reap() -> None:
    """Take every child that has ended, orphans that came to us included."""
    try:
        while os.waitpid(-1, os.WNOHANG) != (0, 0):
            pass
    except ChildProcessError:
        pass  # Nobody is left.


def _wait_for(descriptors: list[int], until: float) -> list[int]:
    """Those of the descriptors that can be read, or none when the time has come."""
    poll = select.poll()
    for descriptor in descriptors:
        poll.register(descriptor, select.POLLIN)
    left_ms = max(0.0, until - time.monotonic()) * 1000
    return [descriptor for descriptor, _ in poll.poll(left_ms)]
