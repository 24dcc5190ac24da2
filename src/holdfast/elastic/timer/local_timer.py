"""Timers through a `multiprocessing` queue, for workers on the same machine.

Rules
- A worker is its process number, and ending it is SIGKILL.
- A process is pinned when it takes its first timer. A number that has since been given to
  another process therefore never means that other one.
- The process that watches is not ended by its own timers, nor is process 1; numbers that stand for
  groups of processes (0 and below) are nobody.
"""

from __future__ import annotations

import logging
import os
import select
import signal
import time
import weakref
from collections.abc import Sequence
from queue import Empty
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from holdfast.elastic.timer.api import RequestQueue, TimerClient, TimerRequest, TimerServer

if TYPE_CHECKING:
    from multiprocessing.queues import Queue

__all__ = ["LocalTimerClient", "LocalTimerServer", "MultiprocessingRequestQueue"]

logger = logging.getLogger(__name__)


GONE = -1
R = TypeVar("R", bound=TimerRequest)


class TimersOfProcesses(Generic[R]):
    """The part of a server that both have: timers by process and scope, and the processes."""

    def __init__(self) -> None:
        self._timers: dict[tuple[int, str], R] = {}
        self._processes = PinnedProcesses()

    def register_timers(self, timer_requests: list[R]) -> None:
        """Note timers taken and given back."""
        for request in timer_requests:
            key = (request.worker_id, request.scope_id)
            if request.expiration_time < 0:
                self._timers.pop(key, None)
            else:
                self._timers[key] = request

    def get_expired_timers(self, deadline: float) -> dict[int, list[R]]:
        """The timers that run out at `deadline` or before, by process."""
        expired: dict[int, list[R]] = {}
        for request in self._timers.values():
            if request.expiration_time <= deadline:
                expired.setdefault(request.worker_id, []).append(request)
        return expired

    def _forget(self, pids: set[int]) -> None:
        self._timers = {key: one for key, one in self._timers.items() if key[0] not in pids}

    def _take_in(self, timer_requests: Sequence[R]) -> None:
        """Note what was read. A process that has ended since has no timers any more."""
        self._forget(self._processes.ended())
        self.register_timers(list(timer_requests))
        self._processes.keep_only({pid for pid, _ in self._timers})


class PinnedProcesses:
    """Pinned processes, by number. Used by one thread at a time."""

    def __init__(self) -> None:
        self._pinned: dict[int, int] = {}
        """The pidfd of each, or `GONE` for one that had ended before it could be pinned."""
        weakref.finalize(self, _close_all, self._pinned)

    def ended(self) -> set[int]:
        """The pinned processes that have ended since."""
        poll = select.poll()
        numbers = {pinned: pid for pid, pinned in self._pinned.items() if pinned != GONE}
        for pinned in numbers:
            poll.register(pinned, select.POLLIN)
        gone = {pid for pid, pinned in self._pinned.items() if pinned == GONE}
        return gone | {numbers[pinned] for pinned, _ in poll.poll(0)}

    def keep_only(self, pids: set[int]) -> None:
        """Pin those of `pids` that are not pinned, and let go of all others."""
        for pid in self._pinned.keys() - pids:
            _close(self._pinned.pop(pid))
        for pid in pids - self._pinned.keys():
            if is_endable(pid):
                self._pin(pid)

    def _pin(self, pid: int) -> None:
        try:
            self._pinned[pid] = os.pidfd_open(pid)
        except ProcessLookupError:
            self._pinned[pid] = GONE
        except OSError as error:
            # A kernel without pidfds, or no descriptor left: the number itself has to do.
            logger.debug("Process %s cannot be pinned: %s", pid, error.strerror)

    def send(self, pid: int, signal_number: int) -> bool:
        """Signal a process; False if the kernel or we refuse. One that is gone needs no signal."""
        if not is_endable(pid):
            logger.warning("A timer of process %s ran out, but that process must not be ended", pid)
            return False
        pinned = self._pinned.get(pid)
        try:
            if pinned is None:
                os.kill(pid, signal_number)
            elif pinned != GONE:
                signal.pidfd_send_signal(pinned, signal_number)
        except ProcessLookupError:
            logger.info("Process %s had ended before its timer ran out", pid)
        except OSError as error:
            logger.error("Process %s cannot be ended: %s", pid, error.strerror)
            return False
        return True

    def close(self) -> None:
        """Let go of all of them."""
        _close_all(self._pinned)


def is_endable(pid: int) -> bool:
    """Whether a timer may end this process at all."""
    return pid > 1 and pid != os.getpid()


def _close_all(pinned: dict[int, int]) -> None:
    while pinned:
        _close(pinned.popitem()[1])


def _close(pinned: int) -> None:
    if pinned != GONE:
        os.close(pinned)


class LocalTimerClient(TimerClient):
    """Takes timers for its process, from the server at the other end of the queue."""

    def __init__(self, mp_queue: Queue[TimerRequest]) -> None:
        super().__init__()
        self._mp_queue = mp_queue

    def acquire(self, scope_id: str, expiration_time: float) -> None:
        self._mp_queue.put(TimerRequest(os.getpid(), scope_id, expiration_time))

    def release(self, scope_id: str) -> None:
        self._mp_queue.put(TimerRequest(os.getpid(), scope_id, -1))


class MultiprocessingRequestQueue(RequestQueue):
    """Requests that come through a queue of `multiprocessing`."""

    def __init__(self, mp_queue: Queue[TimerRequest]) -> None:
        super().__init__()
        self._mp_queue = mp_queue

    def size(self) -> int:
        return self._mp_queue.qsize()

    def get(self, size: int, timeout: float) -> list[TimerRequest]:
        deadline = time.monotonic() + timeout
        requests: list[TimerRequest] = []
        while len(requests) < size:
            remaining = max(0.0, deadline - time.monotonic())
            try:
                requests.append(self._mp_queue.get(remaining > 0, remaining))
            except Empty:
                break
        return requests


class LocalTimerServer(TimersOfProcesses[TimerRequest], TimerServer):
    """Ends the processes whose timers ran out."""

    def __init__(
        self, mp_queue: Queue[TimerRequest], max_interval: float = 60, daemon: bool = True
    ) -> None:
        TimersOfProcesses.__init__(self)
        TimerServer.__init__(self, MultiprocessingRequestQueue(mp_queue), max_interval, daemon)

    def clear_timers(self, worker_ids: set[Any]) -> None:
        self._forget(worker_ids)

    def _watchdog_loop(self) -> None:
        try:
            super()._watchdog_loop()
        finally:
            self._processes.close()

    def _reap_worker(self, worker_id: int) -> bool:
        # One that may not be ended need not be tried again either.
        return self._processes.send(worker_id, signal.SIGKILL) or not is_endable(worker_id)
