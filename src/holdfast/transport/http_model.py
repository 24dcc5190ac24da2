"""Requests, answers and routes over HTTP, as types of our own.

A handler takes a request and a `HttpReply`, which it uses once, now or later: for an answer that is
whole, or for a stream that goes on until one side ends it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from msgspec import Struct

if TYPE_CHECKING:
    from holdfast.transport.http_server import HttpPeer

TEXT = "text/plain; charset=utf-8"
JSON = "application/json"
EVENTS = "text/event-stream"
BODY_MOST = 64 << 10
"""Of a request, where its route does not say otherwise."""


class PageRequest(Struct, frozen=True):
    """One request, whole. The path is decoded; names of headers are in lower case."""

    method: str
    path: str
    query: Mapping[str, str] = {}
    """Of a name that is given twice, the last value."""
    headers: Mapping[str, str] = {}
    body: bytes = b""
    address: str = ""
    """The client's address, as `transport.peers` tells addresses apart."""


class HttpResponse(Struct, frozen=True):
    """An answer, or what a stream begins with."""

    body: bytes = b""
    status: int = 200
    content_type: str = TEXT
    headers: tuple[tuple[str, str], ...] = ()


class HttpStream:
    """An answer that goes on, until one side ends it."""

    def __init__(
        self, peer: HttpPeer, on_room: Callable[[], None], on_closed: Callable[[], None]
    ) -> None:
        self._peer: HttpPeer | None = peer
        self._on_room, self._on_closed = on_room, on_closed

    @property
    def is_open(self) -> bool:
        """Whether the client is still there."""
        return self._peer is not None

    @property
    def has_room(self) -> bool:
        """Whether it reads as fast as it is sent to. Wait for `on_room` where it does not."""
        return self._peer is not None and self._peer.has_room

    def send(self, data: bytes) -> None:
        """Never calls back. Too much that is not read ends the connection, later."""
        if self._peer is not None and data:
            self._peer.send_on(data)

    def close(self) -> None:
        """All is said. `on_closed` is not called for it."""
        peer, self._peer = self._peer, None
        if peer is not None:
            peer.end_stream()

    # What the peer tells.

    def on_room(self) -> None:
        if self._peer is not None:
            self._on_room()

    def on_closed(self) -> None:
        if self._peer is not None:
            self._peer = None
            self._on_closed()


class HttpReply:
    """One answer that is owed. Nothing comes of using it twice, or for a client that has gone."""

    def __init__(self, peer: HttpPeer) -> None:
        self._peer: HttpPeer | None = peer

    def forget(self) -> None:
        self._peer = None

    def __call__(self, response: HttpResponse) -> None:
        peer, self._peer = self._peer, None
        if peer is not None:
            peer.answer(response)

    def stream(
        self,
        response: HttpResponse,
        on_room: Callable[[], None],
        on_closed: Callable[[], None],
    ) -> HttpStream | None:
        """Begin one; None if the client has gone, wants only the head, or there are too many.

        `on_room` is called each time the client has read all; `on_closed` once, when it has gone.
        """
        peer, self._peer = self._peer, None
        if peer is None:
            return None
        stream = HttpStream(peer, on_room, on_closed)
        return stream if peer.begin_stream(stream, response) else None


Handler = Callable[[PageRequest, HttpReply], None]


class Route(Struct, frozen=True):
    """The handlers of a path. HEAD is answered by `get`, and its body left out."""

    get: Handler | None = None
    post: Handler | None = None
    body_most: int = BODY_MOST
    comes_first: bool = False
    """A probe's: others may take half of the time at the most while it waits."""

    @property
    def methods(self) -> tuple[str, ...]:
        got = ("GET", "HEAD") if self.get is not None else ()
        return (*got, "POST") if self.post is not None else got

    def handler(self, method: str) -> Handler | None:
        return {"GET": self.get, "HEAD": self.get, "POST": self.post}.get(method)


def at_once(answer: Callable[[PageRequest], HttpResponse]) -> Handler:
    """A handler of what is known already."""
    return lambda request, reply: reply(answer(request))


def text_response(status: int, words: str) -> HttpResponse:
    """A sentence."""
    return HttpResponse(f"{words}\n".encode(errors="replace"), status)


def event(data: str, name: str = "", number: str = "") -> bytes:
    """One server-sent event; a client that reconnects names the last `number` it has seen."""
    lines = [f"id: {number}"] if number else []
    lines += [f"event: {name}"] if name else []
    # A carriage return would end a line as well, and begin a field of the data's own.
    lines += [f"data: {line}" for line in data.replace("\r", "\n").split("\n")]
    return ("\n".join(lines) + "\n\n").encode()


def date() -> str:
    """Now, as HTTP writes it."""
    return time.strftime("%a, %d %b %Y %H:%M:%S GMT", time.gmtime())
