"""Timers through a `multiprocessing` queue, for workers on the same machine.

Rules
- A worker is its process number, and ending it is SIGKILL.
- The process that watches is never ended by its own server, even if it took a timer itself.
"""

from __future__ import annotations

import os
import signal
import time
from queue import Empty
from typing import TYPE_CHECKING, Any

from holdfast.elastic.timer.api import RequestQueue, TimerClient, TimerRequest, TimerServer
from holdfast.elastic.timer.pinned_processes import TimersOfProcesses, is_endable

if TYPE_CHECKING:
    from multiprocessing.queues import Queue

__all__ = ["LocalTimerClient", "LocalTimerServer", "MultiprocessingRequestQueue"]


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
