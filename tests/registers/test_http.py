"""HTTP to several endpoints, some of which do not behave."""

from __future__ import annotations

import re
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from subprocess import CompletedProcess
from time import monotonic

import pytest

from holdfast.core.protocol.model import Endpoint
from holdfast.registers.http import HttpAnswer, HttpClient, HttpRequest
from holdfast.registers.register import RegisterSettings, RegisterUnreachable

Behaviour = Callable[[socket.socket], None]
Serve = Callable[[Behaviour], str]

ASK = HttpRequest("POST", "/path", b"request")


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


def whole(answer: HttpAnswer) -> HttpAnswer:
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
    """Say this to each request, piece by piece, for ever."""

    def behave(connection: socket.socket) -> None:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        while True:
            read_request(connection)
            for piece in pieces:
                connection.sendall(piece)

    return behave


def closing_after(said: bytes) -> Behaviour:
    """Say this to the first request, and hang up."""

    def behave(connection: socket.socket) -> None:
        read_request(connection)
        connection.sendall(said)
        connection.close()

    return behave


def silent(connection: socket.socket) -> None:
    pass


def trickling(beginning: bytes, piece: bytes) -> Behaviour:
    """What never ends, one piece after another."""

    def behave(connection: socket.socket) -> None:
        read_request(connection)
        connection.sendall(beginning)
        while True:
            threading.Event().wait(0.02)
            connection.sendall(piece)

    return behave


OK = b"HTTP/1.1 200 OK\r\n"
CHUNKED = OK + b"Transfer-Encoding: chunked\r\n\r\n"
ANSWER = OK + b"Content-Length: 6\r\n\r\nanswer"
GOOD = answering(ANSWER)


@pytest.mark.parametrize(
    "pieces",
    [
        [ANSWER],
        [b"HTTP/1.1 20", b"0 OK\r\nconTENT-length:6\r", b"\n\r\nans", b"wer"],
        [CHUNKED + b"6\r\nanswer\r\n0\r\n\r\n"],
        [
            CHUNKED + b"4;x=y\r",
            b"\nansw\r\n2\r",
            b"\ner\r",
            b"\n0\r\nTrailer: value\r\n\r",
            b"\n",
        ],
        [b"HTTP/1.1 100 Continue\r\n\r\n", ANSWER],
        [b"HTTP/1.1 102 Processing\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n" + ANSWER],
    ],
)
def test_an_answer_is_understood_however_it_comes(
    serve: Serve, client: Callable[..., HttpClient], pieces: list[bytes]
) -> None:
    asking = client(serve(answering(*pieces)))
    for _ in range(3):
        answer = asking.ask(ASK, asking.deadline(), whole)
        assert (answer.status, answer.body) == (200, b"answer")


def test_an_answer_may_have_no_body(serve: Serve, client: Callable[..., HttpClient]) -> None:
    asking = client(serve(answering(b"HTTP/1.1 204 No Content\r\nX-Etcd-Index: 7\r\n\r\n")))
    for _ in range(3):
        answer = asking.ask(ASK, asking.deadline(), whole)
        assert (answer.status, answer.body) == (204, b"")
        assert answer.headers["x-etcd-index"] == "7"


LATE = "did not answer in time"
CLOSED = "the connection was closed by the server"
NOT_HTTP = "the answer is not proper HTTP"
ENDLESS_HEAD = "the answer has a head that is too long"
TOO_LONG = "the answer is too long"
MEGABYTE = 1024 * 1024
BAD = {
    "silent": (silent, LATE),
    "a head that trickles": (trickling(OK + b"X: ", b"x"), LATE),
    "a body that trickles": (trickling(OK + b"Content-Length: 999999\r\n\r\n", b"x"), LATE),
    "announced and announced": (trickling(b"", b"HTTP/1.1 100 Continue\r\n\r\n"), LATE),
    "closed before it answers": (closing_after(b""), CLOSED),
    "closed within the head": (closing_after(OK + b"Content-Le"), CLOSED),
    "closed within the body": (closing_after(ANSWER[:-1]), CLOSED),
    "closed within a chunk": (closing_after(CHUNKED + b"6\r\nans"), CLOSED),
    "closed before the last chunk": (closing_after(CHUNKED + b"6\r\nanswer\r\n"), CLOSED),
    "another protocol": (answering(b"SSH-2.0-OpenSSH\r\n\r\n"), NOT_HTTP),
    "TLS": (answering(b"\x15\x03\x01\x00\x02\x02\x46"), NOT_HTTP),
    "no status": (answering(ANSWER.replace(b"200", b"two hundred")), NOT_HTTP),
    "a header without a name": (answering(OK + b": x\r\n\r\n"), NOT_HTTP),
    "a switch that nobody asked for": (
        answering(b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: h2c\r\n\r\n"),
        NOT_HTTP,
    ),
    "a negative length": (answering(OK + b"Content-Length: -5\r\n\r\n"), NOT_HTTP),
    "two lengths": (answering(OK + b"Content-Length: 7\r\n" + ANSWER[len(OK) :]), NOT_HTTP),
    "an absurd length": (
        answering(OK + b"Content-Length: " + b"9" * 5000 + b"\r\n\r\n"),
        NOT_HTTP,
    ),
    "an unknown encoding": (answering(OK + b"Transfer-Encoding: gzip\r\n\r\n"), NOT_HTTP),
    "a chunk without a size": (answering(CHUNKED + b"zz\r\n"), NOT_HTTP),
    "a chunk beyond its size": (answering(CHUNKED + b"2\r\nanswer\r\n0\r\n\r\n"), NOT_HTTP),
    "a body without an end": (
        closing_after(OK + b"\r\nanswer"),
        "the answer does not say where it ends",
    ),
    "an endless line": (answering(OK + b"X: " + b"x" * MEGABYTE), ENDLESS_HEAD),
    "endless lines": (answering(OK + b"X: x\r\n" * 100_000), ENDLESS_HEAD),
    "a long body": (
        answering(OK + b"Content-Length: 99999999999\r\n\r\n" + b"x" * 2 * MEGABYTE),
        TOO_LONG,
    ),
    "a long chunk": (answering(CHUNKED + b"fffffffffff\r\n" + b"x" * 2 * MEGABYTE), TOO_LONG),
    "many chunks": (answering(CHUNKED + (b"400\r\n" + b"x" * 1024 + b"\r\n") * 2048), TOO_LONG),
}


@pytest.mark.parametrize(("behave", "reason"), BAD.values(), ids=BAD)
def test_an_endpoint_that_does_not_behave_is_passed_over(
    serve: Serve, client: Callable[..., HttpClient], behave: Behaviour, reason: str
) -> None:
    bad = serve(behave)
    asking = client(bad, serve(GOOD), endpoint_timeout_s=0.2)  # The last one has more.
    assert asking.ask(ASK, asking.deadline(), whole).body == b"answer"
    alone = client(bad, call_timeout_s=0.3 if reason == LATE else 20.0)
    with pytest.raises(RegisterUnreachable, match=re.escape(f"{bad}: {reason}")):
        alone.ask(ASK, alone.deadline(), whole)


@pytest.mark.parametrize(
    "said",
    [
        ANSWER.replace(b"OK\r\n", b"OK\r\nConnection: close\r\n"),
        ANSWER.replace(b"HTTP/1.1", b"HTTP/1.0"),
        ANSWER + ANSWER.replace(b"answer", b"unasked"),
    ],
    ids=["it says that it closes", "HTTP/1.0", "it says more than it was asked"],
)
def test_a_connection_that_is_not_good_for_more_is_not_used_again(
    serve: Serve, client: Callable[..., HttpClient], said: bytes
) -> None:
    used: list[socket.socket] = []

    def behave(connection: socket.socket) -> None:
        used.append(connection)
        read_request(connection)
        connection.sendall(said)

    asking = client(serve(behave))
    for count in (1, 2, 3):
        assert asking.ask(ASK, asking.deadline(), whole).body == b"answer"
        assert len(used) == count
        assert not asking.was_sent_before


def test_a_header_cannot_smuggle_another_and_is_not_told(
    serve: Serve, client: Callable[..., HttpClient]
) -> None:
    asking = client(serve(GOOD))
    for secret in ("secret\r\nHost: elsewhere", "sec\0ret", "s€cret"):
        request = HttpRequest("POST", "/path", ASK.body, {"Authorization": secret})
        with pytest.raises(RegisterUnreachable, match="a header that HTTP does not allow") as told:
            asking.ask(request, asking.deadline(), whole)
        assert "cret" not in str(told.value)
    assert asking.ask(ASK, asking.deadline(), whole).body == b"answer"


def test_who_answered_last_is_asked_first(serve: Serve, client: Callable[..., HttpClient]) -> None:
    asked: list[str] = []

    def remembering(name: str, behave: Behaviour) -> Behaviour:
        def noted(connection: socket.socket) -> None:
            asked.append(name)
            behave(connection)

        return noted

    asking = client(serve(remembering("bad", closing_after(b""))), serve(remembering("good", GOOD)))
    for _ in range(3):
        assert asking.ask(ASK, asking.deadline(), whole).body == b"answer"
    assert asked == ["bad", "good"]


def test_a_connection_that_was_closed_meanwhile_is_opened_anew(
    serve: Serve, client: Callable[..., HttpClient]
) -> None:
    asking = client(serve(closing_after(ANSWER)))
    for _ in range(5):
        assert asking.ask(ASK, asking.deadline(), whole).body == b"answer"


def test_a_stream_is_read_on_after_a_timeout(
    serve: Serve, client: Callable[..., HttpClient]
) -> None:
    go_on = threading.Event()

    def behave(connection: socket.socket) -> None:
        read_request(connection)
        connection.sendall(CHUNKED + b"4\r\none\n\r\n7\r\ntw")
        go_on.wait(40)
        connection.sendall(b"o\nthr\r\n3\r\nee\n\r\n0\r\n\r\n")

    asking = client(serve(behave))
    stream = asking.begin(ASK, asking.deadline(), lambda connection, status, until: None)
    assert stream.line(monotonic() + 20) == b"one\n"
    assert stream.line(monotonic() + 0.05) is None
    assert stream.line(monotonic() - 1) is None
    go_on.set()
    assert [stream.line(monotonic() + 20) for _ in range(3)] == [b"two\n", b"three\n", b""]


@pytest.mark.parametrize(
    ("said", "reason"), [(b"4\r\none\n\r\nzz\r\n", NOT_HTTP), (b"4\r\none\n\r\n4\r\ntw", CLOSED)]
)
def test_a_stream_that_breaks_says_why(
    serve: Serve, client: Callable[..., HttpClient], said: bytes, reason: str
) -> None:
    asking = client(serve(closing_after(CHUNKED + said)))
    stream = asking.begin(ASK, asking.deadline(), lambda connection, status, until: None)
    assert stream.line(monotonic() + 20) == b"one\n"
    with pytest.raises(OSError, match=reason):
        stream.line(monotonic() + 20)


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
    assert Endpoint.parse_list("a, b:1,[::1]:2,[::2],,a", 2379) == [
        Endpoint("a", 2379),
        Endpoint("b", 1),
        Endpoint("::1", 2),
        Endpoint("::2", 2379),
    ]


def test_a_job_on_one_machine_does_not_pay_for_http(
    run_holdfast: Callable[..., CompletedProcess[str]], tmp_path: Path
) -> None:
    program = tmp_path / "program.py"
    program.write_text("")
    ended = run_holdfast("run", program, env={"PYTHONPROFILEIMPORTTIME": "1"})
    imported = {line.rpartition("|")[2].strip() for line in ended.stderr.splitlines()}
    assert ended.returncode == 0
    assert "msgspec" in imported
    assert not imported & {"h11", "http.client"}
