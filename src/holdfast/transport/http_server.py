"""An HTTP/1.1 server on the loop: health, metrics, and the dashboard with its live stream.

Rules
1. It is a guest on the loop on which heartbeats go out. Nothing waits. In one turn of the loop each
   client has one request at most, addresses take turns (`FairTurns`), routes that `comes_first`
   have every other request, and nothing more is begun after `REQUESTS_A_TURN` or `TURN_S`.
2. Nobody is waited for without bound. A request that has begun is whole within
   `buffers.FRAME_TIMEOUT_S`; who says nothing is let go after `IDLE_S`; an answer is there and
   read within `ANSWER_S` each; a stream's client that takes nothing for `ANSWER_S` is dropped.
3. Nobody takes all. Heads end at `http_peer.HEAD_MOST`, bodies where their route says; what is
   held for all clients has the bounds of `transport.buffers`. How many clients there may be is the
   process's budget (`transport.descriptors`); of one address only its share (`peers.Crowd`), and
   streams are half of them. When places run out, the address with the most clients that have not
   asked anything yet loses the oldest of those: a newcomer is let in, whatever the others do.
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
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Mapping
from typing import Generic, TypeVar

from holdfast.runtime import descriptors
from holdfast.runtime.loop import Cancellable, Loop
from holdfast.transport.buffers import PeerBuffers
from holdfast.transport.frames import ProtocolError
from holdfast.transport.http_model import HttpResponse, Route, text_response
from holdfast.transport.http_peer import HttpPeer
from holdfast.transport.listener import Listener, Overdue, listening_socket
from holdfast.transport.peers import Crowd, peer_of

SHARE_OF_STREAMS = 1 / 2
REQUESTS_A_TURN = 64
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


P = TypeVar("P")


class FairTurns(Generic[P]):
    """Clients that wait, in order within one address; nobody is in it twice."""

    def __init__(self) -> None:
        self._lines: OrderedDict[str, deque[P]] = OrderedDict()
        self._waiting: set[P] = set()

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def add(self, client: P, address: str) -> None:
        if client not in self._waiting:
            self._waiting.add(client)
            self._lines.setdefault(address, deque()).append(client)

    def take(self) -> P | None:
        """The next client; its address goes to the end of the line."""
        if not self._lines:
            return None
        address, line = self._lines.popitem(last=False)
        client = line.popleft()
        self._waiting.discard(client)
        if line:
            self._lines[address] = line
        return client


class HttpServer:
    """Serves routes. All calls and callbacks are on the loop's thread."""

    def __init__(
        self,
        loop: Loop,
        routes: Mapping[str, Route],
        on_problem: Callable[[str], None],
        kind: descriptors.Kind = "dashboard",
    ) -> None:
        """`on_problem` is told of handlers that failed; `routes` may be added to at any time."""
        self.routes, self.on_problem = routes, on_problem
        self._loop = loop
        self._listeners: list[Listener] = []
        self._peers: dict[HttpPeer, None] = {}
        self._streams: set[HttpPeer] = set()
        self._crowd = Crowd()
        self._limit = descriptors.most(kind)
        self.buffers = PeerBuffers(loop)
        self.idle: Overdue[HttpPeer] = Overdue(loop, lambda: IDLE_S, _IDLE)
        """Connections without a request at the moment."""
        self.unanswered: Overdue[HttpPeer] = Overdue(loop, lambda: ANSWER_S, _UNANSWERED)
        self.unread: Overdue[HttpPeer] = Overdue(loop, lambda: ANSWER_S, _UNREAD)
        self.lingering: Overdue[HttpPeer] = Overdue(loop, lambda: LINGER_S, _LINGERING)
        self._probes: FairTurns[HttpPeer] = FairTurns()
        self._others: FairTurns[HttpPeer] = FairTurns()
        self._wanting: dict[HttpPeer, None] = {}
        """Connections that want a turn and are not in line: one each in a turn of the loop."""
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
        return len(self._peers) < self._limit or self._dispensable() is not None

    def _dispensable(self, address: str | None = None) -> HttpPeer | None:
        """The oldest of those who were told the last word, or have not asked; from that address, or
        from where most of them are."""
        silent = [*self.lingering, *(peer for peer in self.idle if not peer.has_unread)]
        if address is None and silent:
            address = Counter(peer.address for peer in silent).most_common(1)[0][0]
        return next((peer for peer in silent if peer.address == address), None)

    def _on_accepted(self, sock: socket.socket) -> None:
        address = peer_of(sock)
        older = None
        if not self._crowd.has_room_for(address, self._limit):
            older = self._dispensable(address)
        elif len(self._peers) >= self._limit:
            older = self._dispensable()
        if older is not None:
            older.close()
        if not self._crowd.has_room_for(address, self._limit):
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

    # What peers ask.

    def find(self, method: str, path: str) -> Route | HttpResponse:
        """The handler, or the answer where there is none."""
        route = self.routes.get(path)
        if route is None:
            folders = [at for at in self.routes if at.endswith("/*") and path.startswith(at[:-1])]
            route = self.routes[max(folders, key=len)] if folders else None
        if route is None:
            return text_response(404, "there is nothing at this path")
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

    # Turns.

    def wants_turn(self, peer: HttpPeer) -> None:
        """It has said something that was not heard yet."""
        self._wanting[peer] = None
        self._go_on()

    def _go_on(self) -> None:
        if self._next_turn is None:
            self._next_turn = self._loop.call_soon(self._take_turn)

    def _take_turn(self) -> None:
        self._next_turn = None
        wanting, self._wanting = self._wanting, {}
        for peer in wanting:
            line = self._probes if peer.asks_first else self._others
            line.add(peer, peer.address)
        until = time.monotonic() + TURN_S
        first, second = self._probes, self._others
        for _ in range(REQUESTS_A_TURN):
            next_peer = first.take() or second.take()
            if next_peer is None:
                return
            self._let_ask(next_peer)
            if time.monotonic() >= until:
                break
            first, second = second, first
        self._go_on()

    def _let_ask(self, peer: HttpPeer) -> None:
        try:
            peer.take_request()
        except Exception as error:  # noqa: BLE001 - no client is worth a job
            self.on_problem(f"a client over HTTP failed: {type(error).__name__}: {error}")
            peer.close()
