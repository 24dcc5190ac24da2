"""Whether an agent is alive, told over HTTP to whoever probes its port.

Rules
- Every path answers alike: 200 and `alive` while the last sign of life is at most `timeout`
  seconds old, else 503 and a sentence that says how old it is.
- A probe that dawdles does not hold up another one, and is cut off after a few seconds.
- After `stop` neither port nor thread is left, whatever the probes do.
"""

from __future__ import annotations

import os
import select
import socket
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

__all__ = ["HealthCheckServer", "create_healthcheck_server"]

PROBE_LIMIT_S = 5.0


class HealthCheckServer:
    """Serves the health of an agent on `port`, on all addresses of the machine.

    `alive_callback` gives the time of the last sign of life, in seconds since 1970; what it
    raises makes the answer 503.
    """

    def __init__(self, alive_callback: Callable[[], int], port: int, timeout: int) -> None:
        self._alive_callback = alive_callback
        self._port = port
        self._timeout = timeout
        self._listener: _Listener | None = None
        self._thread: threading.Thread | None = None

    @property
    def alive_callback(self) -> Callable[[], int]:
        return self._alive_callback

    @property
    def port(self) -> int:
        """The port that is listened on; before `start`, the one that was asked for."""
        return self._port if self._listener is None else int(self._listener.server_port)

    def start(self) -> None:
        """Answer probes from now on, in a thread. OSError if the port cannot be had."""
        if self._listener is not None:
            raise RuntimeError("this health check server has been started already")
        self._listener = _Listener(self._port, self._verdict)
        self._thread = threading.Thread(
            target=self._listener.serve, name="HealthCheckServer", daemon=True
        )
        self._thread.start()

    def stop(self) -> None:
        """Answer no more. Without effect on a server that was not started."""
        if self._listener is None or self._thread is None:
            return
        self._listener.end()
        self._thread.join()
        self._listener.server_close()
        self._listener = self._thread = None

    def _verdict(self) -> tuple[int, str]:
        """The HTTP status, and the words for it."""
        try:
            silence_s = time.time() - self._alive_callback()
        except Exception as error:  # noqa: BLE001 - the callback is anybody's code
            return 503, f"the last sign of life cannot be told: {error}"
        if silence_s <= self._timeout:
            return 200, "alive"
        return 503, f"no sign of life for {silence_s:.0f} s, and {self._timeout:g} s are allowed"


def create_healthcheck_server(
    alive_callback: Callable[[], int], port: int, timeout: int
) -> HealthCheckServer:
    """A server that is not started yet."""
    return HealthCheckServer(alive_callback, port, timeout)


class _Probe(BaseHTTPRequestHandler):
    """One probe, answered with the verdict of its server."""

    timeout = PROBE_LIMIT_S
    server: _Listener

    def do_GET(self) -> None:
        self._answer(with_body=True)

    def do_HEAD(self) -> None:
        self._answer(with_body=False)

    def _answer(self, with_body: bool) -> None:
        status, words = self.server.verdict()
        body = f"{words}\n".encode(errors="replace")
        self.send_response(status)
        self.send_header("Content-Type", "text/plain; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if with_body:
            self.wfile.write(body)

    def version_string(self) -> str:
        return "holdfast"

    def log_message(self, format: str, *args: Any) -> None:
        """Probes come every few seconds, and nobody wants to read that."""


class _Listener(ThreadingHTTPServer):
    """Listens until its bell rings; then cuts off whoever is still connected."""

    timeout = 0  # A connection is taken when it is there, and not waited for.
    daemon_threads = False  # `server_close` waits for them.

    def __init__(self, port: int, verdict: Callable[[], tuple[int, str]]) -> None:
        self.verdict = verdict
        self._connected: set[socket.socket] = set()
        self._lock = threading.Lock()
        self.address_family = socket.AF_INET6 if socket.has_dualstack_ipv6() else socket.AF_INET
        self._bell = os.eventfd(0)  # Before the parent, which closes all when it cannot bind.
        super().__init__(("", port), _Probe)

    def server_bind(self) -> None:
        if self.address_family == socket.AF_INET6:
            self.socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        # Else the last probes of an agent that ended just now would hold the port for a minute.
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)
        # The parent would look its own name up, which may take long and is not needed.
        self.server_address = self.socket.getsockname()
        self.server_name, self.server_port = "", self.server_address[1]

    def serve(self) -> None:
        poll = select.poll()
        poll.register(self.socket, select.POLLIN)
        poll.register(self._bell, select.POLLIN)
        while all(ready != self._bell for ready, _ in poll.poll()):
            self.handle_request()

    def end(self) -> None:
        os.eventfd_write(self._bell, 1)

    def server_close(self) -> None:
        with self._lock:
            for connection in self._connected:
                _cut_off(connection)
        super().server_close()
        os.close(self._bell)

    def process_request(self, request: Any, client_address: Any) -> None:
        with self._lock:
            self._connected.add(request)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        with self._lock:
            self._connected.discard(request)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A probe that went away before its answer is no concern of ours."""


def _cut_off(connection: socket.socket) -> None:
    try:
        connection.shutdown(socket.SHUT_RDWR)
    except OSError:
        pass  # It went by itself.
