"""Timers, their clients and their servers; `expires` for user code.

Rules
- A timer belongs to a worker and a scope: a second one for the same scope replaces the first,
  and a negative time of expiry gives it back. Times are seconds since 1970.
- A server waits for the next request or the next expiry, whichever is first, and never longer
  than `max_interval` and `LONGEST_WAIT_S`: that is how it notices `stop`.
- A worker that could not be reaped keeps its timers and is tried again `max_interval` later.
- Nothing that a subclass raises ends the watching.

How it works: `get_expired_timers`, asked for the end of time, names every timer there is. So
the next expiry is known for any subclass that implements the four abstract methods.
"""

from __future__ import annotations

import logging
import math
import sys
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

__all__ = [
    "RequestQueue",
    "TimerClient",
    "TimerRequest",
    "TimerServer",
    "configure",
    "expires",
]

LONGEST_WAIT_S = 0.5

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class TimerRequest:
    """A timer taken, or given back when `expiration_time` is negative.

    What a `worker_id` is, client and server agree among themselves.
    """

    worker_id: Any
    scope_id: str
    expiration_time: float


class TimerClient(ABC):
    """Takes timers for the worker that holds it, and gives them back."""

    @abstractmethod
    def acquire(self, scope_id: str, expiration_time: float) -> None:
        """Take the timer of a scope, which runs out at `expiration_time`."""

    @abstractmethod
    def release(self, scope_id: str) -> None:
        """Give the timer of a scope back: it has no effect any more."""


class RequestQueue(ABC):
    """The source of a server's requests."""

    @abstractmethod
    def size(self) -> int:
        """The number of requests there now: at least so many can be got."""

    @abstractmethod
    def get(self, size: int, timeout: float) -> list[TimerRequest]:
        """Up to `size` requests; fewer, or none, when `timeout` seconds have passed."""


class TimerServer(ABC):
    """Watches timers in a thread and reaps the workers whose timers ran out."""

    def __init__(
        self, request_queue: RequestQueue, max_interval: float, daemon: bool = True
    ) -> None:
        self._request_queue = request_queue
        self._max_interval = max_interval
        self._daemon = daemon
        self._watchdog_thread: threading.Thread | None = None
        self._stopping = threading.Event()
        self._retry_at = 0.0
        """No wait for an expiry ends before this: what could not be reaped is not tried at once."""

    @abstractmethod
    def register_timers(self, timer_requests: list[TimerRequest]) -> None:
        """Note timers taken and given back."""

    @abstractmethod
    def clear_timers(self, worker_ids: set[Any]) -> None:
        """Forget all timers of these workers."""

    @abstractmethod
    def get_expired_timers(self, deadline: float) -> dict[Any, list[TimerRequest]]:
        """The timers that run out at `deadline` or before, by worker."""

    @abstractmethod
    def _reap_worker(self, worker_id: Any) -> bool:
        """End a worker; False if that failed and is worth another attempt."""

    def start(self) -> None:
        """Watch, in a thread; one that watches already goes on."""
        if self._watchdog_thread is not None:
            logger.info("This %s was started already", type(self).__name__)
            return
        self._stopping.clear()
        self._watchdog_thread = threading.Thread(
            target=self._watchdog_loop, name=type(self).__name__, daemon=self._daemon
        )
        self._watchdog_thread.start()

    def stop(self) -> None:
        """Watch no more. Timers that run out from now on end nobody."""
        self._stopping.set()
        if self._watchdog_thread is not None:
            self._watchdog_thread.join(max(self._max_interval, 2 * LONGEST_WAIT_S))
            self._watchdog_thread = None

    def _watchdog_loop(self) -> None:
        while not self._stopping.is_set():
            try:
                self._run_watchdog()
            except Exception:
                logger.exception("The timers could not be checked; trying again")
                # A queue that always fails would otherwise be asked without pause.
                self._stopping.wait(self._max_interval)

    def _run_watchdog(self) -> None:
        """One turn: take what is there, or wait for it, and reap the workers that are due."""
        batch = max(1, self._request_queue.size())
        self._take_in(self._request_queue.get(batch, self._wait_s()))
        if self._stopping.is_set():
            return
        now = time.time()
        if now < self._retry_at:
            return
        expired = self.get_expired_timers(now)
        reaped = {worker for worker, timers in expired.items() if self._reap(worker, timers)}
        self.clear_timers(reaped)
        self._retry_at = now + self._max_interval if len(reaped) < len(expired) else 0.0

    def _take_in(self, timer_requests: list[TimerRequest]) -> None:
        """Note what came from the queue."""
        self.register_timers(timer_requests)

    def _wait_s(self) -> float:
        every_timer = self.get_expired_timers(math.inf).values()
        wait_s = seconds_to_first(request for timers in every_timer for request in timers)
        wait_s = max(wait_s, self._retry_at - time.time())
        return min(self._max_interval, LONGEST_WAIT_S, wait_s)

    def _reap(self, worker_id: Any, expired: list[TimerRequest]) -> bool:
        scopes = ", ".join(str(request.scope_id) for request in expired)
        logger.info("Worker %s stayed too long in %s and is ended", worker_id, scopes)
        is_reaped = self._reap_worker_no_throw(worker_id)
        if not is_reaped:
            logger.error("Worker %s could not be ended; trying again", worker_id)
        return is_reaped

    def _reap_worker_no_throw(self, worker_id: Any) -> bool:
        """A worker whose reaping raises counts as reaped, and its timers go."""
        try:
            return self._reap_worker(worker_id)
        except Exception:
            logger.exception("Ending worker %s failed; its timers are dropped", worker_id)
            return True


def seconds_to_first(requests: Iterable[TimerRequest]) -> float:
    """Seconds until the first of these timers runs out; infinite if there is none."""
    first = min((request.expiration_time for request in requests), default=math.inf)
    return max(0.0, first - time.time())


_timer_client: TimerClient | None = None


def configure(timer_client: TimerClient) -> None:
    """Set the client that `expires` uses unless it is given another."""
    global _timer_client  # noqa: PLW0603 - one for the process is what this call is for
    _timer_client = timer_client


def expires(
    after: float, scope: str | None = None, client: TimerClient | None = None
) -> AbstractContextManager[None]:
    """Let this worker be ended if the block takes longer than `after` seconds.

    `scope` names the block, by default after the line that calls this. Timers of blocks inside
    each other are separate as long as their scopes are. Raises RuntimeError on entry if there
    is no client: neither given nor set with `configure`.
    """
    if scope is None:
        caller = sys._getframe(1)
        scope = f"{caller.f_code.co_filename}#{caller.f_lineno}"
    return _timed(after, scope, client)


@contextmanager
def _timed(after: float, scope: str, client: TimerClient | None) -> Iterator[None]:
    client = _timer_client if client is None else client
    if client is None:
        raise RuntimeError("there is no timer client: call configure(client), or give one here")
    client.acquire(scope, time.time() + after)
    try:
        yield
    finally:
        client.release(scope)
