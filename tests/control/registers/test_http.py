"""HTTP to several endpoints, some of which do not behave."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from time import monotonic

import pytest

from holdfast.control.registers.http import HttpClient, parse_endpoints
from holdfast.control.registers.http_connection import Answer, Request
from holdfast.control.registers.register import RegisterSettings, RegisterUnreachable
from holdfast.core.model import Endpoint

Behaviour = Callable[[socket.socket], None]
Serve = Callable[[Behaviour], str]

ASK = Request("POST", "/path", b"question")


@pytest.fixture
def serve() -> Iterator[Serve]:
    """A server that does with each connection what it is told, and its endpoint."""
    listeners: list[socket.socket] = []
    connections: list[socket.socket] = []
    threads: list[threading.Thread] = []

    def accept(listener: socket.socket, behave: Behaviour) -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            connections.append(connection)
            try:
                behave(connection)
            except OSError:
                pass  # The client has gone.

    def start(behave: Behaviour) -> str:
        listener = socket.create_server(("127.0.0.1", 0))
        listeners.append(listener)
        threads.append(threading.Thread(target=accept, args=(listener, behave)))
        threads[-1].start()
        return f"127.0.0.1:{listener.getsockname()[1]}"

    yield start
    for listener in listeners:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
    for connection in connections:
        try:
            connection.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass  # It is not connected any more.
        connection.close()
    for thread in threads:
        thread.join()


@pytest.fixture
def client() -> Iterator[Callable[..., HttpClient]]:
    opened: list[HttpClient] = []

    def open_one(
        *endpoints: str, call_timeout_s: float = 20.0, endpoint_timeout_s: float = 20.0
    ) -> HttpClient:
        settings = RegisterSettings(
            "etcd", ",".join(endpoints), "run", {}, call_timeout_s=call_timeout_s,
            endpoint_timeout_s=endpoint_timeout_s,
        )  # fmt: skip
        opened.append(HttpClient(settings))
        return opened[-1]

    yield open_one
    for each in opened:
        each.close()


def whole(answer: Answer) -> Answer:
    return answer


def read_request(connection: socket.socket) -> bytes:
    received = b""
    while not received.endswith(ASK.body):
        piece = connection.recv(65536)
        if not piece:
            raise ConnectionResetError
        received += piece
    return received


def answering(*pieces: bytes) -> Behaviour:
    """Say this to each question, piece by piece, for ever."""

    def behave(connection: socket.socket) -> None:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        while True:
            read_request(connection)
            for piece in pieces:
                connection.sendall(piece)

    return behave


def hanging_up(connection: socket.socket) -> None:
    read_request(connection)
    connection.close()


def silent(connection: socket.socket) -> None:
    pass


def trickling(connection: socket.socket) -> None:
    """A head that never ends, one byte after another."""
    read_request(connection)
    while True:
        connection.sendall(b"HTTP/1.1 200 OK\r\nX: ")
        threading.Event().wait(0.02)
        for _ in range(10_000):
            connection.sendall(b"x")
            threading.Event().wait(0.02)


GOOD = answering(b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nanswer")


@pytest.mark.parametrize(
    "pieces",
    [
        [b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nanswer"],
        [b"HTTP/1.1 20", b"0 OK\r\nconTENT-length:6\r", b"\n\r\nans", b"wer"],
        [b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n6\r\nanswer\r\n0\r\n\r\n"],
        [
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4;x=y\r",
            b"\nansw\r\n2\r",
            b"\ner\r",
            b"\n0\r\nTrailer: value\r\n\r",
            b"\n",
        ],
        [b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 6\r\n\r\nanswer"],
    ],
)
def test_an_answer_is_understood_however_it_comes(
    serve: Serve, client: Callable[..., HttpClient], pieces: list[bytes]
) -> None:
    asking = client(serve(answering(*pieces)))
    for _ in range(3):
        answer = asking.ask(ASK, asking.deadline(), whole)
        assert (answer.status, answer.body) == (200, b"answer")


@pytest.mark.parametrize(
    "behave",
    [
        silent,
        trickling,
        hanging_up,
        answering(b"SSH-2.0-OpenSSH\r\n\r\n"),
        answering(b"HTTP/1.1 200 OK\r\n\r\nwithout an end"),
        answering(b"HTTP/1.1 200 OK\r\nContent-Length: -5\r\n\r\n"),
        answering(b"HTTP/1.1 200 OK\r\nContent-Length: 99999999999\r\n\r\n"),
        answering(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n"),
        answering(b"HTTP/1.1 200 OK\r\nX: " + b"x" * 100_000),
    ],
)
def test_an_endpoint_that_does_not_behave_is_passed_over(
    serve: Serve, client: Callable[..., HttpClient], behave: Behaviour
) -> None:
    bad = serve(behave)
    asking = client(bad, serve(GOOD), endpoint_timeout_s=0.2)  # The last one has more.
    assert asking.ask(ASK, asking.deadline(), whole).body == b"answer"
    alone = client(bad, call_timeout_s=0.3)
    with pytest.raises(RegisterUnreachable):
        alone.ask(ASK, alone.deadline(), whole)


def test_who_answered_last_is_asked_first(serve: Serve, client: Callable[..., HttpClient]) -> None:
    asked: list[str] = []

    def remembering(name: str, behave: Behaviour) -> Behaviour:
        def noted(connection: socket.socket) -> None:
            asked.append(name)
            behave(connection)

        return noted

    asking = client(serve(remembering("bad", hanging_up)), serve(remembering("good", GOOD)))
    for _ in range(3):
        assert asking.ask(ASK, asking.deadline(), whole).body == b"answer"
    assert asked == ["bad", "good"]


def test_a_connection_that_was_closed_meanwhile_is_opened_anew(
    serve: Serve, client: Callable[..., HttpClient]
) -> None:
    def once(connection: socket.socket) -> None:
        read_request(connection)
        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nanswer")
        connection.close()

    asking = client(serve(once))
    for _ in range(5):
        assert asking.ask(ASK, asking.deadline(), whole).body == b"answer"


def test_a_stream_is_read_on_after_a_timeout(
    serve: Serve, client: Callable[..., HttpClient]
) -> None:
    go_on = threading.Event()

    def behave(connection: socket.socket) -> None:
        read_request(connection)
        connection.sendall(
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\none\n\r\n7\r\ntw"
        )
        go_on.wait(40)
        connection.sendall(b"o\nthr\r\n3\r\nee\n\r\n0\r\n\r\n")

    asking = client(serve(behave))
    stream = asking.begin(ASK, asking.deadline(), lambda connection, status, until: None)
    assert stream.line(monotonic() + 20) == b"one\n"
    assert stream.line(monotonic() + 0.05) is None
    assert stream.line(monotonic() - 1) is None
    go_on.set()
    assert [stream.line(monotonic() + 20) for _ in range(3)] == [b"two\n", b"three\n", b""]


def test_interrupt_ends_a_call_and_all_that_follow(
    serve: Serve, client: Callable[..., HttpClient]
) -> None:
    arrived = threading.Event()

    def behave(connection: socket.socket) -> None:
        read_request(connection)
        arrived.set()

    asking = client(serve(behave), serve(GOOD), call_timeout_s=600)
    asking._endpoint_timeout_s = 600
    ended: list[str] = []

    def ask() -> None:
        try:
            asking.ask(ASK, asking.deadline(), whole)
        except RegisterUnreachable as error:
            ended.append(str(error))

    thread = threading.Thread(target=ask)
    thread.start()
    assert arrived.wait(40)
    asking.interrupt()
    thread.join(40)
    assert ended == ["the register is closed"]
    with pytest.raises(RegisterUnreachable):
        asking.ask(ASK, asking.deadline(), whole)


def test_names_are_looked_up(serve: Serve, client: Callable[..., HttpClient]) -> None:
    port = serve(GOOD).rpartition(":")[2]
    asking = client("no.such.host.invalid:1", f"localhost:{port}", call_timeout_s=40)
    assert asking.ask(ASK, asking.deadline(), whole).body == b"answer"


def test_endpoints_are_named_as_users_do() -> None:
    assert parse_endpoints("a, b:1,[::1]:2,[::2],,a") == [
        Endpoint("a", 2379),
        Endpoint("b", 1),
        Endpoint("::1", 2),
        Endpoint("::2", 2379),
    ]
