"""An HTTP/1.1 server on the loop: health, metrics, and the dashboard with its live stream.

Rules
1. A connection has one request, and ends with its answer: nothing of a request is left for another.
2. The server is a guest on the loop on which heartbeats go out. Nothing waits. In one turn of the
   loop no request is begun after `TURN_S`, and routes that `comes_first` have every other one.
3. Every wait has a bound. A request is whole within `buffers.FRAME_TIMEOUT_S` of its first byte; a
   client that says nothing is let go after `IDLE_S`; an answer is there and read within `ANSWER_S`
   each; a stream's client that takes nothing for `ANSWER_S` is dropped.
4. Memory and places have bounds. Heads end at `HEAD_MOST`, bodies where their route says; what is
   held for all clients has the bounds of `transport.buffers`. The number of clients is the
   process's budget (`runtime.descriptors`); one address has only its share (`peers.Crowd`), and
   streams are half of them. Where no place is left, the oldest connection without a whole request
   goes.
5. A client that breaks HTTP's rules is told so (400, 408, 411, 413, 431). A handler that fails is
   answered for with 500, and told to `on_problem`: no page is worth a job.
6. The last word is read before the connection is closed, as far as the client lets us: closing over
   what it still sends would reset the connection and lose the answer.
7. Nothing that handlers hand in calls back from within. It listens on loopback only, unless
   `listen` is given another address. No name is resolved.

How it works: h11 makes sense of bytes, and an `HttpPeer` is in one `PeerPhase`. A path of a route
is meant exactly, or ends in `/*` and has all below it; the longest wins.
"""

from __future__ import annotations

import socket
import time
from collections import deque
from collections.abc import Callable, Mapping
from enum import Enum, auto
from http import HTTPStatus
from urllib.parse import parse_qsl, unquote

import h11
from msgspec.structs import replace

from holdfast.runtime import descriptors
from holdfast.runtime.loop import Cancellable, Loop
from holdfast.transport.buffers import PeerBuffers
from holdfast.transport.connection import OUTPUT_LIMIT, RECEIVE_BYTES
from holdfast.transport.frames import ProtocolError
from holdfast.transport.http_model import (
    HttpReply,
    HttpResponse,
    HttpStream,
    PageRequest,
    Route,
    date,
    text_response,
)
from holdfast.transport.listener import Listener, listening_socket
from holdfast.transport.peers import Crowd, peer_of

SHARE_OF_STREAMS = 1 / 2
TURN_S = 0.02
IDLE_S = 75.0
ANSWER_S = 60.0
LINGER_S = 2.0
"""How long a client that was told the last word has to hang up itself, and so to have read it."""
HEAD_MOST = 16 << 10
LEFTOVER_MOST = 1 << 20
"""Read and thrown away, at most, after the answer."""
ROOM_BYTES = 64 << 10
"""A stream with more than this unread has no room."""
FIELDS_MOST = 64
"""Of a query."""
LOOPBACK = "127.0.0.1"

_Said = h11.Response | h11.InformationalResponse | h11.Data | h11.EndOfMessage


class PeerPhase(Enum):
    """The phase of a connection."""

    HEARING = auto()
    """Its request is awaited, or not whole yet."""
    ANSWERING = auto()
    """The request is whole, and its answer is owed. Nothing is read."""
    STREAMING = auto()
    """The client has nothing to say, and its end is the stream's."""
    ENDING = auto()
    """All is said, though it may not be sent yet, and what comes is thrown away."""
    CLOSED = auto()


class HttpPeer:
    """One connection of a client, its request and the answer."""

    def __init__(self, loop: Loop, sock: socket.socket, address: str, server: HttpServer) -> None:
        self._loop, self._socket, self._server = loop, sock, server
        self.address = address
        self.phase = PeerPhase.HEARING
        self._http = h11.Connection(h11.SERVER, max_incomplete_event_size=HEAD_MOST)
        self._request = PageRequest("", "")
        self._is_head = False
        """Whether the client wants no body."""
        self._route = Route()
        self._body = bytearray()
        self._reply = HttpReply(self)
        self._stream: HttpStream | None = None
        self._output = bytearray()
        self._thrown_away = 0
        self._is_reading = False
        self._timer: Cancellable | None = None
        self._read(True)
        self._wait(IDLE_S, self.close)

    def _read(self, is_on: bool) -> None:
        if is_on != self._is_reading:
            self._is_reading = is_on
            if is_on:
                self._loop.add_reader(self._socket.fileno(), self._on_readable)
            else:
                self._loop.remove_reader(self._socket.fileno())

    def _wait(self, seconds: float, on_late: Callable[[], None]) -> None:
        """In place of what was waited for before."""
        self._wait_no_more()
        self._timer = self._loop.call_later(seconds, on_late)

    def _wait_no_more(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    # Receiving.

    def _on_readable(self) -> None:
        try:
            received = self._socket.recv(RECEIVE_BYTES)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            self.close()
            return
        if self.phase is PeerPhase.HEARING:
            self._hear(received)
            return
        self._thrown_away += len(received)
        is_enough = not received or self._thrown_away > LEFTOVER_MOST
        if is_enough or self.phase is PeerPhase.STREAMING:
            self.close()

    def _hear(self, received: bytes) -> None:
        self._wait_no_more()  # From here on `transport.buffers` has an eye on the time.
        try:
            self._http.receive_data(received)
            while (event := self._http.next_event()) is not h11.NEED_DATA:
                if isinstance(event, h11.Request):
                    refusal = self._begin(event)
                    if refusal is not None:
                        self._say_last(refusal)
                        return
                elif isinstance(event, h11.Data):
                    self._body += event.data
                elif isinstance(event, h11.EndOfMessage):
                    self._is_whole()
                    return
                else:
                    self.close()  # It has hung up.
                    return
        except h11.RemoteProtocolError as error:
            words = "this is not a request of HTTP/1.1"
            self._say_last(text_response(error.error_status_hint, words))
            return
        except Exception as error:  # noqa: BLE001 - no client is worth a job
            self._server.on_problem(f"a client over HTTP failed: {type(error).__name__}: {error}")
            self.close()
            return
        held = len(self._http.trailing_data[0]) + len(self._body) + bool(self._request.method)
        self._server.buffers.receiving(self, held, is_new=False)
        if self._http.they_are_waiting_for_100_continue:
            self._tell(h11.InformationalResponse(status_code=100, headers=[]))

    def _begin(self, event: h11.Request) -> HttpResponse | None:
        """Take the head of the request; the answer, if that says it already."""
        self._is_head = event.method == b"HEAD"
        request = _request_of(event, self.address)
        if isinstance(request, HttpResponse):
            return request
        self._request = request
        route = self._server.find(request.method, request.path)
        if isinstance(route, HttpResponse):
            return route
        self._route = route
        if "transfer-encoding" in request.headers:
            return text_response(411, "a body has to say its length")
        most = route.body_most if request.method == "POST" else 0
        if int(request.headers.get("content-length", 0)) > most:
            return text_response(413, f"at most {most} bytes are taken")
        return None

    def _is_whole(self) -> None:
        self._enter(PeerPhase.ANSWERING)
        self._wait(ANSWER_S, self._on_unanswered)
        self._server.wants_turn(self, self._route.comes_first)

    def _enter(self, phase: PeerPhase) -> None:
        """Leave the phase of hearing, or any other."""
        self.phase = phase
        self._read(phase in (PeerPhase.STREAMING, PeerPhase.ENDING))
        self._server.buffers.receiving(self, 0, is_new=False)
        if not self._output:
            self._wait_no_more()

    @property
    def is_dispensable(self) -> bool:
        """Whether it may go where others want its place: it has not asked, or was answered."""
        return self.phase in (PeerPhase.HEARING, PeerPhase.ENDING)

    # Answering.

    def take_turn(self) -> None:
        """Have the request answered, now or later."""
        if self.phase is not PeerPhase.ANSWERING:
            return
        request = self._request
        handler = self._route.handler(request.method)
        assert handler is not None, "a route was found for this method"
        try:
            handler(replace(request, body=bytes(self._body)), self._reply)
        except Exception as error:  # noqa: BLE001 - a page that fails must not end the job
            self._server.on_problem(
                f"{request.path} cannot be shown: {type(error).__name__}: {error}"
            )
            self._reply.forget()
            if self._http.our_state is h11.SEND_RESPONSE:
                words = "this page cannot be shown, because of an error in Holdfast"
                self._say_last(text_response(500, words))
            else:
                self.close()

    def _on_unanswered(self) -> None:
        self._say_last(text_response(503, "the answer took too long"))

    def answer(self, response: HttpResponse) -> None:
        """The whole answer."""
        if self.phase is PeerPhase.ANSWERING:
            self._say_last(response)

    def begin_stream(self, stream: HttpStream, response: HttpResponse) -> bool:
        """Whether the stream has begun; else the answer is given."""
        if self.phase is not PeerPhase.ANSWERING:
            return False
        if self._is_head:
            self._say_last(response)
            return False
        if not self._server.may_stream(self):
            words = "too many pages are open already; close one and try again"
            self._say_last(text_response(503, words))
            return False
        self._enter(PeerPhase.STREAMING)
        self._stream = stream
        self._say(response, with_end=False)
        return True

    def send_on(self, data: bytes) -> None:
        self._tell(h11.Data(data=data))

    def end_stream(self) -> None:
        self._server.stream_ended(self)
        self._stream = None
        self._tell(h11.EndOfMessage())
        self._end()

    @property
    def has_room(self) -> bool:
        return len(self._output) <= ROOM_BYTES

    def _say_last(self, response: HttpResponse) -> None:
        """Answer, and let the client go."""
        self._say(response, with_end=True)
        self._end()

    def _say(self, response: HttpResponse, *, with_end: bool) -> None:
        headers = {
            "date": date(),
            "content-type": response.content_type,
            "cache-control": "no-store",
            "x-content-type-options": "nosniff",
            "connection": "close",
            **{name.lower(): value for name, value in response.headers},
        }
        if with_end:
            headers["content-length"] = str(len(response.body))
        events: list[_Said] = []
        if response.body and not self._is_head:
            events.append(h11.Data(data=response.body))
        if with_end:
            events.append(h11.EndOfMessage())
        try:
            head = h11.Response(
                status_code=response.status,
                headers=list(headers.items()),
                reason=HTTPStatus(response.status).phrase.encode(),
            )
        except (h11.LocalProtocolError, ValueError) as error:
            self._on_mistake(error)
            return
        self._tell(head, *events)

    def _tell(self, *events: _Said) -> None:
        try:
            self._write(b"".join(self._http.send(event) or b"" for event in events))
        except h11.LocalProtocolError as error:
            self._on_mistake(error)

    def _on_mistake(self, error: Exception) -> None:
        """What a handler has sent is not HTTP: it is this client's end, and nobody else's."""
        self._server.on_problem(f"a client over HTTP cannot be answered: {error}")
        self._loop.call_soon(self.close)

    # Sending.

    def _write(self, data: bytes) -> None:
        if not data or self.phase is PeerPhase.CLOSED:
            return
        if not self._output:
            data = data[self._send(data) :]
            if not data:
                return
            self._loop.add_writer(self._socket.fileno(), self._on_writable)
            self._wait(ANSWER_S, self.close)
        self._output += data
        self._server.buffers.sending(self, len(self._output))
        if len(self._output) > OUTPUT_LIMIT and self.phase is PeerPhase.STREAMING:
            self.give_up_sending()

    def _send(self, data: bytes | bytearray) -> int:
        """How much was taken. A client that has gone takes all: its end is read, and told."""
        try:
            return self._socket.send(data)
        except (BlockingIOError, InterruptedError):
            return 0
        except OSError:
            self._loop.call_soon(self.close)
            return len(data)

    def _on_writable(self) -> None:
        del self._output[: self._send(self._output)]
        self._server.buffers.sending(self, len(self._output))
        if self._output:
            if self.phase is PeerPhase.STREAMING:
                self._wait(ANSWER_S, self.close)
            return
        self._loop.remove_writer(self._socket.fileno())
        self._wait_no_more()
        if self.phase is PeerPhase.ENDING:
            self._hang_up()
        elif self._stream is not None:
            self._stream.on_room()

    # What the account of all clients asks (`transport.buffers`).

    def pause(self) -> None:
        self._read(False)

    def resume(self) -> None:
        self._read(self.phase is PeerPhase.HEARING)

    def refuse(self, error: ProtocolError) -> None:
        """The request was not whole in time."""
        self._say_last(text_response(408, error.reason))

    def give_up_sending(self) -> None:
        """It does not read what was said."""
        self._loop.call_soon(self.close)

    # Ending.

    def _end(self) -> None:
        """All is said: once it is sent, hang up."""
        if self.phase in (PeerPhase.ENDING, PeerPhase.CLOSED):
            return
        self._enter(PeerPhase.ENDING)
        self._reply.forget()
        if not self._output:
            self._hang_up()

    def _hang_up(self) -> None:
        self._wait(LINGER_S, self.close)
        try:
            self._socket.shutdown(socket.SHUT_WR)
        except OSError:
            self.close()

    def close(self) -> None:
        """Let go at once. A stream is told; nothing else is."""
        if self.phase is PeerPhase.CLOSED:
            return
        if self._output:
            self._loop.remove_writer(self._socket.fileno())
            self._output.clear()
        self._enter(PeerPhase.CLOSED)
        self._server.buffers.sending(self, 0)
        self._server.ended(self)
        self._socket.close()
        self._reply.forget()
        stream, self._stream = self._stream, None
        if stream is not None:
            stream.on_closed()


def _request_of(event: h11.Request, address: str) -> PageRequest | HttpResponse:
    """The request by its head, without its body; or the answer to what is none."""
    headers = {name.decode(): value.decode("latin-1") for name, value in event.headers}
    target, _, query = event.target.decode("latin-1").partition("?")
    if target.startswith("http://"):
        target = "/" + target.removeprefix("http://").partition("/")[2]
    path = unquote(target)
    if not path.startswith("/"):
        return text_response(400, "a path begins with /")
    try:
        fields = parse_qsl(query, keep_blank_values=True, max_num_fields=FIELDS_MOST)
    except ValueError:
        return text_response(400, f"a query has at most {FIELDS_MOST} fields")
    return PageRequest(event.method.decode("ascii"), path, dict(fields), headers, b"", address)


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
        """Oldest first."""
        self._streams: set[HttpPeer] = set()
        self._crowd = Crowd()
        self._limit = descriptors.most(kind)
        self.buffers = PeerBuffers(loop)
        self._lines: tuple[deque[HttpPeer], deque[HttpPeer]] = (deque(), deque())
        """Clients whose requests wait for their turn: of routes that come first, and of others."""
        self._next_turn: Cancellable | None = None

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

    def _dispensable(self, address: str = "") -> HttpPeer | None:
        """The oldest that may go, of an address or of all."""
        peers = (peer for peer in self._peers if peer.is_dispensable)
        return next((peer for peer in peers if address in ("", peer.address)), None)

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

    def close(self) -> None:
        """Listen no more, and hang up on all; what was said and can be sent at once still is."""
        for listener in self._listeners:
            listener.close()
        self._listeners.clear()
        for peer in list(self._peers):
            peer.close()
        self.buffers.close()
        if self._next_turn is not None:
            self._next_turn.cancel()

    # What peers ask.

    def find(self, method: str, path: str) -> Route | HttpResponse:
        """The route, or the answer where there is none."""
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
        self._streams.discard(peer)

    def ended(self, peer: HttpPeer) -> None:
        """A peer has closed its connection."""
        self._peers.pop(peer, None)
        self._streams.discard(peer)
        self._crowd.remove(peer.address)

    # Turns.

    def wants_turn(self, peer: HttpPeer, comes_first: bool) -> None:
        """Its request is whole, and to be answered."""
        self._lines[0 if comes_first else 1].append(peer)
        self._go_on()

    def _go_on(self) -> None:
        if self._next_turn is None:
            self._next_turn = self._loop.call_soon(self._take_turns)

    def _take_turns(self) -> None:
        self._next_turn = None
        until = time.monotonic() + TURN_S
        while any(self._lines):
            for line in self._lines:
                if line:
                    line.popleft().take_turn()
            if time.monotonic() >= until:
                self._go_on()
                return
