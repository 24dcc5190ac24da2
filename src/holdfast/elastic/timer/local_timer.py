"""Timers through a `multiprocessing` queue, for workers on the same machine.

Rules
- A worker is its process number, and ending it is SIGKILL.
- The process that watches is never ended by its own server, even if it took a timer itself.
- Nobody is killed while it writes to the queue: it would keep its lock, and all others from it.
- `stop` returns at once: the server waits on the queue and on a bell that `stop` rings.

A queue that offers no end to wait on (one of a `Manager`) is waited for with its own `get`,
and then `stop` takes as long as that, at most `max_interval`.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import wait
from queue import Empty
from typing import TYPE_CHECKING, Any

from holdfast.elastic.timer.api import RequestQueue, TimerClient, TimerRequest, TimerServer
from holdfast.elastic.timer.pinned_processes import PinnedProcesses, is_endable
from holdfast.processes.stdlib_only import private_names

if TYPE_CHECKING:
    from multiprocessing.connection import Connection
    from multiprocessing.queues import Queue

__all__ = ["LocalTimerClient", "LocalTimerServer", "MultiprocessingRequestQueue"]


WRITING_S = 1.0
"""The wait for a write, or a death: a stopped process does neither."""


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
        self.bell: int | None = None
        """A descriptor that ends a wait when it can be read."""

    @property
    def end_to_wait_on(self) -> Connection | None:
        """The end of the pipe inside the queue; None where it has none."""
        end: Connection | None = private_names.end_to_wait_on(self._mp_queue)
        return end

    def size(self) -> int:
        return self._mp_queue.qsize()

    @contextmanager
    def _without_writers(self) -> Iterator[None]:
        """Nobody writes meanwhile, as far as the queue has a lock for that."""
        lock = private_names.lock_of_writers(self._mp_queue)
        is_held = lock is not None and lock.acquire(True, WRITING_S)
        try:
            yield
        finally:
            if is_held:
                lock.release()

    def get(self, size: int, timeout: float) -> list[TimerRequest]:
        deadline = time.monotonic() + timeout
        requests: list[TimerRequest] = []
        while len(requests) < size:
            remaining = max(0.0, deadline - time.monotonic())
            try:
                requests.append(self._next(remaining))
            except Empty:
                break
        return requests

    def _next(self, timeout: float) -> TimerRequest:
        """Raise `Empty` when the time is over or the bell rang."""
        reader = self.end_to_wait_on
        if reader is None or self.bell is None:
            return self._mp_queue.get(timeout > 0, timeout)
        if reader not in wait([reader, self.bell], timeout):
            raise Empty
        return self._mp_queue.get(False)


class LocalTimerServer(TimerServer):
    """Ends the processes whose timers ran out."""

    def __init__(
        self, mp_queue: Queue[TimerRequest], max_interval: float = 60, daemon: bool = True
    ) -> None:
        self._requests = MultiprocessingRequestQueue(mp_queue)
        super().__init__(self._requests, max_interval, daemon)
        self._timers: dict[tuple[Any, str], TimerRequest] = {}
        self._processes = PinnedProcesses()

    def start(self) -> None:
        if self._watchdog_thread is None:
            self._requests.bell = os.eventfd(0)
        super().start()

    def stop(self) -> None:
        super().stop()
        if self._requests.bell is not None:
            os.close(self._requests.bell)
            self._requests.bell = None

    def _interrupt(self) -> bool:
        if self._requests.bell is not None:
            os.eventfd_write(self._requests.bell, 1)
        return self._requests.end_to_wait_on is not None

    def _watchdog_loop(self) -> None:
        try:
            super()._watchdog_loop()
        finally:
            self._processes.close()

    def _take_in(self, timer_requests: list[TimerRequest]) -> None:
        self.clear_timers(self._processes.ended())
        self.register_timers(timer_requests)
        self._processes.keep_only({pid for pid, _ in self._timers})

    def register_timers(self, timer_requests: list[TimerRequest]) -> None:
        for request in timer_requests:
            key = (request.worker_id, request.scope_id)
            if request.expiration_time < 0:
                self._timers.pop(key, None)
            else:
                self._timers[key] = request

    def clear_timers(self, worker_ids: set[Any]) -> None:
        for pid, scope_id in list(self._timers):
            if pid in worker_ids:
                del self._timers[pid, scope_id]

    def get_expired_timers(self, deadline: float) -> dict[Any, list[TimerRequest]]:
        expired: dict[Any, list[TimerRequest]] = {}
        for request in self._timers.values():
            if request.expiration_time <= deadline:
                expired.setdefault(request.worker_id, []).append(request)
        return expired

    def _reap_worker(self, worker_id: int) -> bool:
        with self._requests._without_writers():
            is_sent = self._processes.send(worker_id, signal.SIGKILL)
            self._processes.wait_for_end(worker_id, WRITING_S)
        # One that may not be ended need not be tried again either.
        return is_sent or not is_endable(worker_id)
