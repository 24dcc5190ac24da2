"""Clients of an HTTP server that say anything: HEAD, half requests, many at once, no HTTP at all.

The server is the one that agents have, on a loop of its own, with every limit and patience made
short. Whatever clients do, the loop goes on, others are answered, and nothing is left of them.
"""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from random import Random

from holdfast.transport import buffers, http_server, listener
from holdfast.transport.http_model import HttpResponse

from ..transport.http_stage import HttpClient, HttpStage
from .corpus import Corpus
from .jobs import Broken

SECONDS_A_TARGET = 30.0
STEPS = 60
DEADLINE_S = 60.0
PATHS = (
    *("/hello", "/hello?a=b&c", "/livez", "/livez?verbose", "/later", "/live", "/broken", "/echo"),
    *("/files/x", "/files/inner/", "/nowhere", "*", "http://h/hello", "x:1", "/%ff%00", "/large"),
)
METHODS = ("GET", "GET", "HEAD", "HEAD", "POST", "PUT", "OPTIONS", "CONNECT", "get")
HEADERS = (
    *("Host: h", "Host: h", "Connection: close", "Connection: upgrade", "Upgrade: websocket"),
    *("Expect: 100-continue", "Content-Length: 0", "Content-Length: 3", "Content-Length: 200"),
    *("Content-Length: " + "9" * 5000, "Transfer-Encoding: chunked", "Accept: application/json"),
    *("X: " + "y" * 20_000, "X : y", " folded", "Content-Length: -1", "Transfer-Encoding: gzip"),
)
BODIES = ("", "", "abc", "3\nabc\n0\n\n", "3\nabc", "zz\n", "0\n\n", "1\na\n" * 300, "x" * 300)
ANSWERS = (
    HttpResponse(b"late"),
    HttpResponse(b"", 204),
    HttpResponse(b"x" * 200_000, 404),
    HttpResponse(b"moved", 302, headers=(("Location", "/"),)),
)


def fuzz_http(random: Random, folder: Path, corpus: Corpus) -> int:
    """For some seconds, one server and its clients after the other. Returns how many steps."""
    made = 0
    until = time.monotonic() + SECONDS_A_TARGET
    with short_patience():
        while time.monotonic() < until:
            seed = random.random()
            try:
                made += Scene(Random(seed)).play()
            except Broken:
                raise
            except BaseException as error:
                raise Broken(f"scene {seed}: {type(error).__name__}: {error}") from error
    return made


class short_patience:  # noqa: N801 - used as a function
    """Every wait of a server is short, until the end of the block."""

    SHORT = (
        (buffers, "FRAME_TIMEOUT_S", 0.05),
        (http_server, "IDLE_S", 0.1),
        (http_server, "ANSWER_S", 0.1),
        (http_server, "LINGER_S", 0.05),
        (listener, "PAUSE_S", 0.01),
    )

    def __enter__(self) -> None:
        self._before = [getattr(module, name) for module, name, _ in self.SHORT]
        for module, name, value in self.SHORT:
            setattr(module, name, value)

    def __exit__(self, *exception: object) -> None:
        for (module, name, _), value in zip(self.SHORT, self._before, strict=True):
            setattr(module, name, value)


class Scene:
    """One server, and some clients that do what comes to their minds."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self._stage = HttpStage()
        self._limit = random.choice((4, 8, 32))
        self._stage.server._limit = self._limit
        self._owed: dict[HttpClient, bytes] = {}
        """The rest of what each has begun to say."""
        self._done: list[str] = []

    def play(self) -> int:
        try:
            for _ in range(STEPS):
                self._step()
                self._turns(self._random.choice((0, 1, 1, 2, 8)))
                self._check()
            self._leave()
        except Broken as broken:
            raise Broken(f"{broken} after {self._done[-12:]}") from broken
        except Exception as error:
            told = f"{type(error).__name__}: {error} after {self._done[-12:]}"
            raise Broken(told) from error
        finally:
            self._stage.close()
        return STEPS

    def _turns(self, number: int) -> None:
        for _ in range(number):
            self._stage.loop.call_soon(lambda: None)
            self._stage.loop._turn()

    def _step(self) -> None:
        clients = [client for client in self._owed if not client.is_ended]
        acts: list[Callable[[HttpClient], object]] = [
            *(self._say, self._say, self._say, self._say_half, self._say_half, self._say_many),
            *(self._say_nonsense, self._hear_no_more, self._hear_again, self._half_close),
            *(self._reset, self._ask_properly, self._wait, self._server_answers),
            *(self._server_answers, self._server_streams, self._server_streams),
        ]
        act = self._random.choice(acts)
        if len(clients) < 3 or self._random.random() < 0.15:
            clients.append(self._connect())
        self._done.append(act.__name__)
        act(self._random.choice(clients))

    def _connect(self) -> HttpClient:
        client = self._stage.connect(f"127.0.0.{self._random.randint(2, 5)}")
        self._owed[client] = b""
        return client

    def _send(self, client: HttpClient, data: bytes) -> None:
        self._done.append(repr(data[:80]))
        with suppress(OSError):
            client.socket.send(data)

    # What clients do.

    def _request(self) -> bytes:
        pick = self._random.choice
        headers = "\n".join(pick(HEADERS) for _ in range(self._random.choice((0, 1, 1, 2, 3))))
        lines = f"{pick(METHODS)} {pick(PATHS)} HTTP/1.{pick('1110')}\nHost: h\n{headers}\n"
        text = lines.rstrip("\n") + "\n\n" + pick(BODIES)
        return text.replace("\n", "\r\n").encode("latin-1")

    def _plain(self) -> bytes:
        """One that is answered, so that there is a next one."""
        method, path = self._random.choice(("GET", "HEAD")), self._random.choice(PATHS[:7])
        return f"{method} {path} HTTP/1.1\r\nHost: h\r\n\r\n".encode()

    def _any(self) -> bytes:
        return self._plain() if self._random.random() < 0.6 else self._request()

    def _say(self, client: HttpClient) -> None:
        rest, self._owed[client] = self._owed[client], b""
        self._send(client, rest or self._any())

    def _say_half(self, client: HttpClient) -> None:
        whole = self._owed[client] or self._any()
        cut = self._random.randrange(len(whole))
        self._owed[client] = whole[cut:]
        self._send(client, whole[:cut])

    def _say_many(self, client: HttpClient) -> None:
        several = b"".join(self._any() for _ in range(self._random.randint(2, 30)))
        self._send(client, several[: self._random.choice((len(several), len(several) // 2))])

    def _say_nonsense(self, client: HttpClient) -> None:
        said = bytearray(self._any())
        for _ in range(self._random.randint(1, 4)):
            said[self._random.randrange(len(said))] = self._random.randrange(256)
        self._send(client, self._random.choice((bytes(said), b"nonsense\r\n\r\n", b"\r\n", b"\0")))

    def _hear_no_more(self, client: HttpClient) -> None:
        client.read_no_more()

    def _hear_again(self, client: HttpClient) -> None:
        if not client.is_ended and not client._is_reading:
            client.read_again()

    def _half_close(self, client: HttpClient) -> None:
        with suppress(OSError):
            client.socket.shutdown(socket.SHUT_WR)

    def _reset(self, client: HttpClient) -> None:
        client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._forget(client)

    def _forget(self, client: HttpClient) -> None:
        client.close()
        client.is_ended = True
        self._owed.pop(client, None)
        self._stage.clients.remove(client)

    def _wait(self, client: HttpClient) -> None:
        """Longer than some patience lasts."""
        until = time.monotonic() + self._random.choice((0.02, 0.06, 0.12))
        self._stage.loop.call_later(until - time.monotonic(), lambda: None)
        self._stage.loop.run_until(lambda: time.monotonic() >= until)

    def _ask_properly(self, client: HttpClient) -> None:
        """Somebody else, from elsewhere, is answered whatever the others do."""
        asks = self._stage.connect("127.0.0.9").get("/livez")
        deadline = time.monotonic() + DEADLINE_S
        self._stage.loop.call_later(DEADLINE_S, lambda: None)
        self._stage.loop.run_until(
            lambda: b"alive" in asks.received or asks.is_ended or time.monotonic() > deadline
        )
        # It may be the one that makes room, where all others are busy.
        if not asks.received and not asks.is_ended:
            raise Broken("a probe was not answered")
        asks.close()
        self._stage.clients.remove(asks)

    # What handlers do.

    def _server_answers(self, client: HttpClient) -> None:
        if self._stage.replies:
            reply = self._random.choice(self._stage.replies[-8:])
            if self._random.random() < 0.3:
                stage = self._stage
                head = HttpResponse(b"")
                stage.streams.append(reply.stream(head, stage._on_room, stage._on_closed))
            else:
                reply(self._random.choice(ANSWERS))

    def _server_streams(self, client: HttpClient) -> None:
        streams = [stream for stream in self._stage.streams if stream is not None]
        if streams:
            stream = self._random.choice(streams[-8:])
            if self._random.random() < 0.2:
                stream.close()
            else:
                stream.send(b"#" * self._random.choice((1, 100, 100_000, 3_000_000)))

    # What must be so.

    def _check(self) -> None:
        server = self._stage.server
        unplanted = [one for one in self._stage.problems if "planted" not in one]
        if unplanted:
            raise Broken(f"problems: {unplanted}")
        if server.connections > self._limit:
            raise Broken(f"{server.connections} connections, and room for {self._limit}")

    def _leave(self) -> None:
        """When all have gone, nothing of them is left, and a newcomer is answered."""
        for client in list(self._owed):
            self._forget(client)
        try:
            self._stage.until(lambda: not any(self._left().values()))
        except AssertionError:
            raise Broken(f"all have gone, and there is left: {self._left()}") from None
        self._stage.assert_undisturbed()
        self._check()

    def _left(self) -> dict[str, int]:
        stage, server = self._stage, self._stage.server
        return {
            "connections": server.connections,
            "unfinished": server.buffers.unfinished_bytes,
            "unread": server.buffers.unread_bytes,
            "begun": len(server.buffers._begun),
            "streams": len(server._streams),
            "crowd": len(server._crowd._connections),
            "in line": sum(map(len, server._lines)),
            "open streams": sum(one is not None and one.is_open for one in stage.streams),
        }
