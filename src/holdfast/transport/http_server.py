"""An HTTP/1.1 server on the loop: health, metrics, and the dashboard with its live stream.

Rules
1. It is a guest on the loop on which heartbeats go out. Nothing waits, and one turn of the loop
   takes at most `EVENTS_A_TURN` of what all clients together have said, and begins nothing more
   after `TURN_S`; the rest has the next.
2. Nobody is waited for without bound. A request that has begun is whole within
   `buffers.FRAME_TIMEOUT_S`; who says nothing is let go after `IDLE_S`, sooner where others need
   its place; an answer is there and read within `ANSWER_S` each; a stream's client that takes
   nothing for `ANSWER_S` is dropped.
3. Nobody takes all. Heads end at `http_peer.HEAD_MOST`, bodies where their route says; what is
   held for all clients has the bounds of `transport.buffers`; there are at most
   `CONNECTIONS_MOST`, of one address only its share (`peers.Crowd`), and streams are half of them.
4. Who breaks HTTP's rules is told so (400, 408, 413, 431) and disconnected. A handler that fails
   is answered for with 500, and told to `on_problem`: no page is worth a job.
5. Nobody but this machine is listened to unless `listen` is given another address.

How it works: h11 makes sense of bytes, `http_peer` has one client's side of it, and here is what
they share. No name is resolved. A path of a route is meant exactly, or ends in `/*` and has all
below it; the longest wins.
"""

from __future__ import annotations

import socket
import time
from collections import deque
from collections.abc import Callable, Mapping

from holdfast.runtime.loop import Cancellable, Loop
from holdfast.transport.buffers import PeerBuffers
from holdfast.transport.frames import ProtocolError
from holdfast.transport.http_model import HttpResponse, Route, said
from holdfast.transport.http_peer import HttpPeer
from holdfast.transport.listener import (
    PATIENCE_WHEN_FULL_S,
    Listener,
    Overdue,
    connection_limit,
    listening_socket,
)
from holdfast.transport.peers import Crowd, peer_of

CONNECTIONS_MOST = 256
SHARE_OF_DESCRIPTORS = 1 / 4
SHARE_OF_STREAMS = 1 / 2
EVENTS_A_TURN = 64
TURN_S = 0.02
IDLE_S = 75.0
ANSWER_S = 60.0
LINGER_S = 2.0
"""How long a client that was told the last word has to hang up itself, and so to have read it."""
LOOPBACK = "127.0.0.1"

_IDLE = ProtocolError("idle", "nothing was asked", permanent=False)
_UNANSWERED = ProtocolError("unanswered", "the answer took too long", permanent=False)
_UNREAD = ProtocolError("slow reader", "the answer was not read in time", permanent=False)
_LINGERING = ProtocolError("lingering", "it did not hang up", permanent=False)


class HttpServer:
    """Serves routes. All calls and callbacks are on the loop's thread."""

    def __init__(
        self,
        loop: Loop,
        routes: Mapping[str, Route],
        on_problem: Callable[[str], None],
    ) -> None:
        """`on_problem` is told of handlers that failed; `routes` may be added to at any time."""
        self.routes, self.on_problem = routes, on_problem
        self._loop = loop
        self._listeners: list[Listener] = []
        self._peers: dict[HttpPeer, None] = {}
        self._streams: set[HttpPeer] = set()
        self._crowd = Crowd()
        self._limit = max(min(CONNECTIONS_MOST, int(connection_limit() * SHARE_OF_DESCRIPTORS)), 8)
        self.buffers = PeerBuffers(loop)
        self.idle = Overdue(loop, lambda: IDLE_S, _IDLE)
        self.unanswered = Overdue(loop, lambda: ANSWER_S, _UNANSWERED)
        self.unread = Overdue(loop, lambda: ANSWER_S, _UNREAD)
        self.lingering = Overdue(loop, lambda: LINGER_S, _LINGERING)
        self._left_this_turn, self._turn_until = EVENTS_A_TURN, 0.0
        self._deferred: deque[HttpPeer] = deque()
        self._next_turn: Cancellable | None = None

    # Connections.

    def listen(self, host: str = LOOPBACK, port: int = 0) -> tuple[str, int]:
        """Listen on a numeric address too; the address and the port. OSError where it cannot be.

        An empty one is all addresses of this machine.
        """
        listener = Listener(
            self._loop, listening_socket(host, port), self._on_accepted, self._has_room
        )
        self._listeners.append(listener)
        return listener.address

    @property
    def connections(self) -> int:
        return len(self._peers)

    def _has_room(self) -> bool:
        if len(self._peers) >= self._limit:
            self.idle.give_up_older_than(PATIENCE_WHEN_FULL_S)
        return len(self._peers) < self._limit

    def _on_accepted(self, sock: socket.socket) -> None:
        address = peer_of(sock)
        try:
            self._crowd.require_room_for(address, self._limit)
        except ProtocolError:
            sock.close()
            return
        self._crowd.add(address)
        self._peers[HttpPeer(self._loop, sock, address, self)] = None

    def ended(self, peer: HttpPeer) -> None:
        """A peer has closed its connection."""
        self._peers.pop(peer, None)
        self._streams.discard(peer)
        self._crowd.remove(peer.address)
        for overdue in (self.idle, self.unanswered, self.unread, self.lingering):
            overdue.settled(peer)

    def close(self) -> None:
        """Listen no more, and hang up on all; what was said and can be sent at once still is."""
        for listener in self._listeners:
            listener.close()
        self._listeners.clear()
        for peer in list(self._peers):
            peer.close()
        for overdue in (self.idle, self.unanswered, self.unread, self.lingering):
            overdue.close()
        self.buffers.close()
        if self._next_turn is not None:
            self._next_turn.cancel()
        self._deferred.clear()

    # What peers ask.

    def find(self, method: str, path: str) -> Route | HttpResponse:
        """Who answers, or what the answer is where nobody does."""
        route = self.routes.get(path)
        if route is None:
            folders = [at for at in self.routes if at.endswith("/*") and path.startswith(at[:-1])]
            route = self.routes[max(folders, key=len)] if folders else None
        if route is None:
            return said(404, "there is nothing at this path")
        if route.handler(method) is None:
            allowed = ", ".join(route.methods)
            words = f"this path answers {allowed}\n".encode()
            return HttpResponse(words, 405, headers=(("Allow", allowed),))
        return route

    def may_stream(self, peer: HttpPeer) -> bool:
        """Whether there is room for one more that stays; it is counted until its end."""
        if len(self._streams) >= self._limit * SHARE_OF_STREAMS:
            return False
        self._streams.add(peer)
        return True

    def stream_ended(self, peer: HttpPeer) -> None:
        """Its connection may go on to other things."""
        self._streams.discard(peer)

    def has_turn(self) -> bool:
        """Whether there is time left, in this turn of the loop, for one more thing to be taken."""
        if self._next_turn is None:
            self._next_turn = self._loop.call_soon(self._begin_turn)
            self._turn_until = time.monotonic() + TURN_S
        self._left_this_turn -= 1
        return self._left_this_turn >= 0 and time.monotonic() < self._turn_until

    def defer(self, peer: HttpPeer) -> None:
        """It goes on when it is its turn."""
        self._deferred.append(peer)

    def _begin_turn(self) -> None:
        self._next_turn = None
        self._left_this_turn = EVENTS_A_TURN
        waiting, self._deferred = self._deferred, deque()
        for peer in waiting:
            peer.go_on()
