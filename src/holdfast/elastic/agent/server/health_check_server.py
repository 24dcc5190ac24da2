"""The health of an agent, over HTTP.

Rules
- Every path answers alike: 200 and `alive` while the last sign of life is at most `timeout`
  seconds old, else 503 and a sentence that says how old it is.
- A probe that dawdles does not hold up another one, and is cut off after a while.
- After `stop` neither port nor thread is left, whatever the probes do.

How it works: the HTTP server of `holdfast run` (`transport.http_server`), on a loop in a thread of
its own, since nobody knows what else the caller's threads do.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from holdfast.core.health import Health, liveness
from holdfast.runtime.loop import EventLoop
from holdfast.runtime.thread_calls import ThreadCalls
from holdfast.transport.http_model import HttpResponse, PageRequest, Route, at_once, text_response
from holdfast.transport.http_server import HttpServer

__all__ = ["HealthCheckServer", "create_healthcheck_server"]


class HealthCheckServer:
    """Serves the health of an agent on `port`, on all addresses of the machine.

    `alive_callback` gives the time of the last sign of life, in seconds since 1970; what it
    raises makes the answer 503.
    """

    def __init__(self, alive_callback: Callable[[], int], port: int, timeout: int) -> None:
        self._alive_callback = alive_callback
        self._port = port
        self._timeout = timeout
        self._thread: threading.Thread | None = None
        self._is_ending = False

    @property
    def alive_callback(self) -> Callable[[], int]:
        return self._alive_callback

    @property
    def port(self) -> int:
        """The port that is listened on; before `start`, the one that was asked for."""
        return self._port

    def start(self) -> None:
        """Answer probes from now on, in a thread. OSError if the port cannot be had."""
        if self._thread is not None:
            raise RuntimeError("this health check server has been started already")
        self._loop, self._is_ending = EventLoop(), False
        route = Route(get=at_once(self._answer))
        self._server = HttpServer(self._loop, {"/*": route}, _nobody_cares, "health")
        try:
            self._port = self._server.listen("", self._port)[1]
        except (OSError, OverflowError):
            self._loop.close()
            raise
        self._calls = ThreadCalls(self._loop)
        self._thread = threading.Thread(target=self._run, name="HealthCheckServer", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Answer no more. Without effect on a server that was not started."""
        thread, self._thread = self._thread, None
        if thread is not None:
            self._calls.put(self._end)
            thread.join()

    def _run(self) -> None:
        try:
            self._loop.run_until(lambda: self._is_ending)
        finally:  # Else a probe would find a port, and nobody there to answer.
            self._server.close()
            self._calls.close()
            self._loop.close()

    def _end(self) -> None:
        self._is_ending = True

    def _answer(self, request: PageRequest) -> HttpResponse:
        health = self._health()
        return text_response(200 if health.is_well else 503, health.words)

    def _health(self) -> Health:
        try:
            silence_s = time.time() - self._alive_callback()
        except Exception as error:  # noqa: BLE001 - the callback is anybody's code
            return Health(False, f"the last sign of life cannot be told: {error}")
        return liveness(silence_s, self._timeout)


def create_healthcheck_server(
    alive_callback: Callable[[], int], port: int, timeout: int
) -> HealthCheckServer:
    """A server that is not started yet."""
    return HealthCheckServer(alive_callback, port, timeout)


def _nobody_cares(problem: str) -> None:
    """Nothing to do: an error of the callback is in the answer."""
