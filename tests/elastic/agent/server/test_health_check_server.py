"""The health endpoint: real probes over real connections."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from http.client import HTTPConnection

import pytest

from holdfast.elastic.agent.server.health_check_server import (
    HealthCheckServer,
    create_healthcheck_server,
)
from holdfast.transport import buffers, http_server

DEADLINE_S = 20.0


@pytest.fixture(autouse=True)
def nothing_left() -> Iterator[None]:
    threads, descriptors = set(threading.enumerate()), len(os.listdir("/proc/self/fd"))
    yield
    assert set(threading.enumerate()) <= threads
    assert len(os.listdir("/proc/self/fd")) <= descriptors


def now() -> int:
    return int(time.time())


def started(alive_callback: Callable[[], int], timeout: int = 30) -> HealthCheckServer:
    server = create_healthcheck_server(alive_callback=alive_callback, port=0, timeout=timeout)
    server.start()
    return server


def probe(
    port: int, method: str = "GET", path: str = "/", host: str = "127.0.0.1"
) -> tuple[int, str]:
    with closing(HTTPConnection(host, port, timeout=DEADLINE_S)) as connection:
        connection.request(method, path)
        response = connection.getresponse()
        return response.status, response.read().decode()


def test_a_sign_of_life_in_time_is_200() -> None:
    server = started(now)
    assert probe(server.port) == (200, "alive\n")
    assert probe(server.port, path="/health?verbose=1") == (200, "alive\n")
    assert probe(server.port, "HEAD") == (200, "")
    server.stop()


def planted() -> None:
    raise ValueError("planted")


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_after_an_error_no_probe_is_left_waiting() -> None:
    server = started(now)
    port = server.port
    assert server._thread is not None
    server._calls.put(planted)
    server._thread.join(DEADLINE_S)
    with pytest.raises(ConnectionRefusedError):
        probe(port)
    server.stop()


def test_it_listens_on_both_families() -> None:
    if not socket.has_dualstack_ipv6():
        pytest.skip("this machine has no IPv6")
    server = started(now)
    assert probe(server.port, host="::1")[0] == 200
    server.stop()


def test_silence_beyond_the_timeout_is_503_and_life_again_200() -> None:
    last = [now() - 100]
    server = started(lambda: last[0])
    status, words = probe(server.port)
    assert status == 503
    assert "no sign of life for 10" in words
    assert "30 s are allowed" in words
    last[0] = now()
    assert probe(server.port)[0] == 200
    server.stop()


def test_a_callback_that_raises_is_503_with_the_reason() -> None:
    def broken() -> int:
        raise RuntimeError("it is gone")

    server = started(broken)
    status, words = probe(server.port)
    assert status == 503
    assert "it is gone" in words
    assert probe(server.port)[0] == 503
    server.stop()


def test_a_probe_that_dawdles_holds_up_neither_others_nor_the_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(buffers, "FRAME_TIMEOUT_S", 10 * DEADLINE_S)
    server = started(now)
    with socket.create_connection(("127.0.0.1", server.port)) as dawdler:
        dawdler.sendall(b"GET / HTTP/1.1\r\n")
        assert probe(server.port)[0] == 200
        server.stop()
        dawdler.settimeout(DEADLINE_S)
        assert dawdler.recv(1) == b""


def test_a_probe_that_says_nothing_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_server, "IDLE_S", 0.05)
    server = started(now)
    with socket.create_connection(("127.0.0.1", server.port), DEADLINE_S) as dawdler:
        assert dawdler.recv(1) == b""
    server.stop()


def test_after_the_end_nobody_listens_and_it_can_begin_again() -> None:
    server = HealthCheckServer(now, 0, 30)
    server.stop()
    server.start()
    port = server.port
    with pytest.raises(RuntimeError):
        server.start()
    server.stop()
    with pytest.raises(ConnectionRefusedError):
        probe(port)
    server.start()
    assert probe(server.port)[0] == 200
    server.stop()


def test_whoever_takes_over_the_port_need_not_wait_for_the_last_probes() -> None:
    first = started(now)
    port = first.port
    with closing(socket.create_connection(("127.0.0.1", port), DEADLINE_S)) as client:
        client.sendall(b"GET / HTTP/1.1\r\nHost: here\r\nConnection: close\r\n\r\n")
        while client.recv(4096):
            pass  # The server ends the connection, so its side of it lingers in the kernel.
    first.stop()
    second = create_healthcheck_server(now, port, timeout=30)
    second.start()
    try:
        assert probe(port)[0] == 200
    finally:
        second.stop()


def test_a_port_that_is_taken_is_an_error_and_leaves_nothing() -> None:
    with socket.create_server(("0.0.0.0", 0)) as other:
        server = HealthCheckServer(now, other.getsockname()[1], 30)
        with pytest.raises(OSError, match="in use"):
            server.start()
        server.stop()


def test_the_callback_can_be_read() -> None:
    assert HealthCheckServer(now, 0, 30).alive_callback is now
