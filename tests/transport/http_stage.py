"""An HTTP server and clients that do what they like, on one loop of the product."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Mapping

from holdfast.runtime.loop import EventLoop
from holdfast.transport.http_model import (
    EVENTS,
    HttpReply,
    HttpResponse,
    HttpStream,
    PageRequest,
    Route,
    at_once,
)
from holdfast.transport.http_server import TURN_S, HttpServer

from ..waiting import loop_until


class HttpClient:
    """Sends bytes as they are; `received` fills up while the stage runs, if it reads."""

    def __init__(self, stage: HttpStage, source: str = "") -> None:
        self._stage = stage
        self.socket = socket.create_connection(stage.address, source_address=(source, 0))
        self.socket.setblocking(False)
        self.received = b""
        self.is_ended = self._is_reading = False
        self.read_again()

    def read_again(self) -> None:
        self._is_reading = True
        self._stage.loop.add_reader(self.socket.fileno(), self._on_readable)

    def read_no_more(self) -> None:
        if self._is_reading:
            self._is_reading = False
            self._stage.loop.remove_reader(self.socket.fileno())

    def _on_readable(self) -> None:
        try:
            received = self.socket.recv(1 << 16)
        except OSError:
            received = b""
        self.received += received
        if not received:
            self.is_ended = True
            self.read_no_more()

    def send(self, text: str) -> HttpClient:
        self.socket.sendall(text.replace("\n", "\r\n").encode("latin-1"))
        return self

    def get(self, target: str, more: str = "") -> HttpClient:
        return self.send(f"GET {target} HTTP/1.1\nHost: here\n{more}\n")

    def until_answers(self, number: int = 1) -> str:
        """All that came, once it has so many heads and the bodies that they announce."""
        self._stage.until(lambda: self.received.count(b"HTTP/1.1 ") >= number and self._is_whole())
        return self.text

    def _is_whole(self) -> bool:
        head, _, body = self.received.rpartition(b"\r\n\r\n")
        last = head[head.rfind(b"HTTP/1.1 ") :].lower()
        if b"content-length: " not in last:
            return True
        size = int(last.partition(b"content-length: ")[2].split()[0])
        return len(body) >= size

    def until_ended(self) -> str:
        self._stage.until(lambda: self.is_ended)
        return self.text

    @property
    def text(self) -> str:
        return self.received.decode("latin-1").replace("\r\n", "\n")

    def close(self) -> None:
        self.read_no_more()
        self.socket.close()


class HttpStage:
    """The server with some routes, and everything that its handlers were handed."""

    def __init__(self, host: str = "127.0.0.1") -> None:
        self.loop = EventLoop()
        self.problems: list[str] = []
        self.requests: list[PageRequest] = []
        self.replies: list[HttpReply] = []
        self.streams: list[HttpStream | None] = []
        self.rooms = self.closings = 0
        self.clients: list[HttpClient] = []
        self.routes: dict[str, Route] = {
            "/hello": Route(get=at_once(self._hello)),
            "/slow": Route(get=at_once(self._slow)),
            "/echo": Route(post=at_once(lambda request: HttpResponse(request.body)), body_most=100),
            "/large": Route(get=at_once(lambda request: HttpResponse(b"x" * (16 << 20)))),
            "/livez": Route(get=at_once(self._live_probe), comes_first=True),
            "/later": Route(get=lambda request, reply: self.replies.append(reply)),
            "/live": Route(get=self._live),
            "/broken": Route(get=at_once(self._broken)),
            "/files/*": Route(get=at_once(lambda request: HttpResponse(request.path.encode()))),
            "/files/inner/*": Route(get=at_once(lambda request: HttpResponse(b"inner"))),
        }
        self.server = HttpServer(self.loop, self.routes, self.problems.append)
        self.address = self.server.listen(host)

    def _hello(self, request: PageRequest) -> HttpResponse:
        self.requests.append(request)
        return HttpResponse(b"hello\n")

    def _live_probe(self, request: PageRequest) -> HttpResponse:
        self.requests.append(request)
        return HttpResponse(b"alive\n")

    def _slow(self, request: PageRequest) -> HttpResponse:
        time.sleep(2 * TURN_S)  # Of the kind that is not waited for, but worked on.
        return self._hello(request)

    def _broken(self, request: PageRequest) -> HttpResponse:
        raise KeyError("planted")

    def _live(self, request: PageRequest, reply: HttpReply) -> None:
        head = HttpResponse(content_type=EVENTS)
        self.streams.append(reply.stream(head, self._on_room, self._on_closed))

    def _on_room(self) -> None:
        self.rooms += 1

    def _on_closed(self) -> None:
        self.closings += 1

    def stream(self) -> HttpStream:
        """The last one that began."""
        self.until(lambda: self.streams)
        stream = self.streams[-1]
        assert stream is not None
        return stream

    def connect(self, source: str = "") -> HttpClient:
        client = HttpClient(self, source)
        self.clients.append(client)
        return client

    def until(self, is_so: Callable[[], object]) -> None:
        loop_until(self.loop, is_so, look_every_s=0.01)

    def assert_undisturbed(self) -> None:
        """Whoever asks now is answered."""
        assert self.connect().get("/hello").until_answers().endswith("\n\nhello\n")

    def close(self) -> None:
        for client in self.clients:
            client.close()
        self.server.close()
        self.loop.close()


def headers_of(answer: str) -> Mapping[str, str]:
    lines = answer.partition("\n\n")[0].splitlines()[1:]
    return {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
