"""Timers through a named pipe, for workers on the same machine that share nothing else.

Rules
- A request is one line of JSON, short enough that the pipe takes it whole: requests of several
  workers are never mixed up. A line that means nothing is logged and dropped.
- A timer that runs out ends the worker that took it, with the signal that it asked for. The
  process that watches is never ended: the process that started the worker sees it die.
- Nothing polls. The server waits for the next line, the next expiry or its end; what
  `get_last_progress_time` tells does not need it to wake up.
- The pipe can be opened and written by this user only: a request ends processes.
- After `stop` the pipe is gone, and so are thread and descriptors.
"""

from __future__ import annotations

import json
import logging
import os
import select
import signal as signals
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec

from holdfast.elastic.timer import debug_info_logging
from holdfast.elastic.timer.api import TimerClient, TimerRequest, seconds_to_first
from holdfast.elastic.timer.local_timer import TimersOfProcesses
from holdfast.processes.monitoring.file_timer import TimerPipe, make_pipe, read_line, remove_pipe

__all__ = ["FileTimerClient", "FileTimerRequest", "FileTimerServer"]

SERVER_WAIT_S = 1.0
"""The wait of a client for a server that is not there yet, or that does not read."""
LONGEST_WAIT_S = 1e6
"""The longest time-out that the kernel takes."""
logger = logging.getLogger(__name__)


@dataclass(slots=True, init=False)
class FileTimerRequest(TimerRequest):
    """A timer of a process; `signal` is what ends it, and 0 or less ends nothing."""

    version: int
    signal: int

    def __init__(
        self, worker_pid: int, scope_id: str, expiration_time: float, signal: int = 0
    ) -> None:
        TimerRequest.__init__(self, worker_pid, scope_id, expiration_time)
        self.version = 1
        self.signal = signal

    @property
    def worker_pid(self) -> int:
        return int(self.worker_id)

    def to_json(self) -> str:
        return json.dumps(
            {
                "version": self.version,
                "pid": self.worker_pid,
                "scope_id": self.scope_id,
                "expiration_time": self.expiration_time,
                "signal": self.signal,
            }
        )


class FileTimerClient(TimerClient):
    """Takes timers for its process, from the server that reads the pipe.

    A server that does not come within a second is an error (BrokenPipeError), and so is a
    scope whose name is too long for the pipe (RuntimeError).
    """

    def __init__(self, file_path: str, signal: int = signals.SIGKILL) -> None:
        super().__init__()
        self._file_path = file_path
        self.signal = signal

    def acquire(self, scope_id: str, expiration_time: float) -> None:
        self._send(FileTimerRequest(os.getpid(), scope_id, expiration_time, self.signal))

    def release(self, scope_id: str) -> None:
        self._send(FileTimerRequest(os.getpid(), scope_id, -1))

    def _send(self, request: FileTimerRequest) -> None:
        line = request.to_json().encode() + b"\n"
        if len(line) > select.PIPE_BUF:
            raise RuntimeError(
                f"a timer's request has to fit in {select.PIPE_BUF} bytes, and this one has "
                f"{len(line)}: name the scope more briefly"
            )
        try:
            pipe = self._open()
            try:
                _write(pipe, line)
            finally:
                os.close(pipe)
        except OSError as error:
            raise BrokenPipeError(
                f"no timer server reads {self._file_path}: {error.strerror}"
            ) from error

    def _open(self) -> int:
        """Open the pipe, which needs a reader; one that is about to come is waited for."""
        deadline = time.monotonic() + SERVER_WAIT_S
        pause_s = 0.001
        while True:
            try:
                return os.open(self._file_path, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            except OSError:
                # Neither the file nor its reader can be waited for, only looked for.
                left_s = deadline - time.monotonic()
                if left_s <= 0:
                    raise
            time.sleep(min(pause_s, left_s))
            pause_s *= 2


def _write(pipe: int, line: bytes) -> None:
    poll = select.poll()
    poll.register(pipe, select.POLLOUT)
    poll.poll(SERVER_WAIT_S * 1000)
    os.write(pipe, line)


LogEvent = Callable[[str, FileTimerRequest | None], None]


class FileTimerServer(TimersOfProcesses[FileTimerRequest]):
    """Reads requests from a pipe, which it makes, and ends the workers whose timers ran out.

    `log_event` is called with what happens: "watchdog started" and "watchdog stopped" without
    a request, "timer expired" and "kill worker process" with one. `max_interval` is accepted,
    and nothing waits for it.
    """

    def __init__(
        self,
        file_path: str,
        run_id: str,
        max_interval: float = 10,
        daemon: bool = True,
        log_event: LogEvent | None = None,
    ) -> None:
        super().__init__()
        self._file_path = file_path
        self._run_id = run_id
        self._max_interval = max_interval
        self._daemon = daemon
        self._log_event = log_event or _log_nothing
        self._watchdog_thread: threading.Thread | None = None
        self._drains = False
        self._busy_since: float | None = None
        """When the present turn of the watchdog began; None while it waits for its next."""
        make_pipe(file_path)

    # The life of the server.

    def start(self) -> None:
        """Read requests, in a thread; one that reads already goes on.

        The pipe, which `stop` removes, is made anew.
        """
        if self._watchdog_thread is not None:
            logger.info("This FileTimerServer was started already")
            return
        if not os.path.exists(self._file_path):
            make_pipe(self._file_path)
        self._pipe, self._bell = TimerPipe(self._file_path), os.eventfd(0)
        self._busy_since = None
        self._watchdog_thread = threading.Thread(
            target=self._watchdog_loop, name=type(self).__name__, daemon=self._daemon
        )
        self._watchdog_thread.start()
        _guarded(self._log_event, "watchdog started", None)

    def stop(self) -> None:
        """Watch no more, and remove the pipe. Timers that run out from now on end nobody."""
        self._end(drain=False)
        _guarded(self._log_event, "watchdog stopped", None)

    def run_once(self) -> None:
        """Heed what is in the pipe now, end whose timers have run out, and stop."""
        self._end(drain=True)

    def _end(self, drain: bool) -> None:
        if self._watchdog_thread is not None:
            self._drains = drain
            os.eventfd_write(self._bell, 1)
            self._watchdog_thread.join()
            self._watchdog_thread = None
            os.close(self._bell)
        remove_pipe(self._file_path)

    def get_last_progress_time(self) -> int:
        """When the server was last seen to work, in seconds since 1970.

        That is now, unless a turn of it goes on (then since when), or it was stopped.
        """
        since = self._busy_since
        return int(time.time() if since is None else since)

    @staticmethod
    def is_process_running(pid: int) -> bool:
        """Whether there is such a process, and it is one that we may signal."""
        try:
            os.kill(pid, 0)
        except OSError:
            return False
        return True

    # What it does.

    def _watchdog_loop(self) -> None:
        poll = select.poll()
        poll.register(self._pipe.descriptor, select.POLLIN)
        poll.register(self._bell, select.POLLIN)
        try:
            while self._bell not in dict(poll.poll(self._wait_ms())):
                self._turn()
            if self._drains:
                self._turn()
        finally:
            self._busy_since = time.time()
            self._processes.close()
            self._pipe.close()

    def _wait_ms(self) -> float | None:
        """Until the first timer runs out; None without timers."""
        if not self._timers:
            return None
        return 1000 * min(seconds_to_first(self._timers.values()), LONGEST_WAIT_S)

    def _turn(self) -> None:
        """Take what is in the pipe now, and end the processes that are due."""
        self._busy_since = time.time()
        self._take_in([request for line in self._pipe.lines() if (request := _parsed(line))])
        self._reap_expired()
        self._busy_since = None

    def clear_timers(self, worker_pids: set[int]) -> None:
        """Forget all timers of these processes."""
        self._forget(worker_pids)

    def _reap_expired(self) -> None:
        expired = self.get_expired_timers(time.time())
        told = {pid: [request.to_json() for request in timers] for pid, timers in expired.items()}
        _guarded(debug_info_logging.log_debug_info_for_expired_timers, self._run_id, told)
        for pid, timers in expired.items():
            _guarded(self._reap, pid, sorted(timers, key=lambda timer: timer.expiration_time))
        # Also of those that cannot be ended: another attempt would fail in the same way.
        self.clear_timers(set(expired))

    def _reap(self, pid: int, expired: list[FileTimerRequest]) -> None:
        """End a process as its first timer that names a signal says."""
        for request in expired:
            _guarded(self._log_event, "timer expired", request)
            if request.signal > 0:
                break
        else:
            logger.info("Process %s asked for no signal, and is not ended", pid)
            return
        logger.info("Process %s stayed too long in %s and is ended", pid, request.scope_id)
        if self._reap_worker(pid, request.signal):
            _guarded(self._log_event, "kill worker process", request)

    def _reap_worker(self, worker_pid: int, signal: int) -> bool:
        return self._processes.send(worker_pid, signal)


def _guarded(call: Callable[..., object], *args: object) -> None:
    """Call what may be somebody else's; what it raises does not end the watching."""
    try:
        call(*args)
    except Exception:
        logger.exception("%s failed while timers were watched", call)


def _parsed(line: bytes) -> FileTimerRequest | None:
    try:
        said = read_line(line)
    except msgspec.DecodeError as error:
        logger.warning("A request for a timer cannot be understood, and is dropped: %s", error)
        return None
    return FileTimerRequest(said.pid, said.scope_id, said.expiration_time, said.signal)


def _log_nothing(event: str, request: Any) -> None:
    """The callback where none is given."""
