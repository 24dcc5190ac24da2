"""What a handler of HTTP is handed for its answer: used once, and of no effect on who has gone."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from holdfast.transport.http_model import HttpResponse

if TYPE_CHECKING:
    from holdfast.transport.http_peer import HttpPeer


class PeerReply:
    """The answer to one request, until it is used."""

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
    ) -> PeerStream | None:
        peer, self._peer = self._peer, None
        if peer is None:
            return None
        stream = PeerStream(peer, on_room, on_closed)
        return stream if peer.begin_stream(stream, response) else None


class PeerStream:
    """An answer that goes on, until one side ends it."""

    def __init__(
        self, peer: HttpPeer, on_room: Callable[[], None], on_closed: Callable[[], None]
    ) -> None:
        self._peer: HttpPeer | None = peer
        self._on_room, self._on_closed = on_room, on_closed

    @property
    def is_open(self) -> bool:
        return self._peer is not None

    @property
    def has_room(self) -> bool:
        return self._peer is not None and self._peer.has_room

    def send(self, data: bytes) -> None:
        if self._peer is not None and data:
            self._peer.send_on(data)

    def close(self) -> None:
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
