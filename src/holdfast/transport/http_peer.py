"""One client of an HTTP server: its requests, one after the other, and an answer to each.

Rules
- One request is answered at a time, and one taken in a turn of the loop. What a client says
  meanwhile waits, up to `AHEAD_MOST`; then it is read no further. On a stream it has nothing to
  say, and its end is the stream's.
- Nothing that handlers hand in calls back from within. What is sent is queued where the client
  does not read, and bounded (`OUTPUT_LIMIT`, and `transport.buffers` for all clients together).
- The last word of a connection is read before it is closed, as far as the client lets us: closing
  over what it still sends would reset the connection and lose the answer.

How it works: a connection is in one `PeerPhase`, and all that belongs to one request is in one
object (`_Asked`), which goes with it: nothing of a request is left when the next begins. The bytes
go into h11; when it is the client's turn (`HttpServer.wants_turn`) events come out, until a request
is whole or more is needed. Reading stops for a reason (`_holds`), and goes on when none is left.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from enum import Enum, auto
from http import HTTPStatus
from typing import TYPE_CHECKING
from urllib.parse import parse_qsl, unquote

import h11

from holdfast.runtime.loop import Loop
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

if TYPE_CHECKING:
    from holdfast.transport.http_server import HttpServer

HEAD_MOST = 16 << 10
AHEAD_MOST = 64 << 10
LEFTOVER_MOST = 1 << 20
"""Read and thrown away, at most, after the last answer."""
ROOM_BYTES = 64 << 10
"""A stream with more than this unread has no room."""
FIELDS_MOST = 64
"""Of a query."""
EVENTS_AT_ONCE = 64
"""Of one request, in one turn: a body may come in tiny chunks."""
LINE_PEEKED = 256
"""Of a request's first line: enough for the path of a probe."""
_Said = h11.Response | h11.InformationalResponse | h11.Data | h11.EndOfMessage
_STATUS_OF = {"slow message": 408, "unanswered": 503}
"""The status for a client that is given up, by reason; for other reasons nothing is sent."""


class PeerPhase(Enum):
    """The phase of a connection."""

    HEARING = auto()
    """A request is awaited, or not whole yet."""
    ANSWERING = auto()
    """One is whole: its answer is owed, or not read yet."""
    STREAMING = auto()
    ENDING = auto()
    """All is said, and what comes is thrown away."""
    CLOSED = auto()


class HttpPeer:
    """One connection of a client."""

    def __init__(self, loop: Loop, sock: socket.socket, address: str, server: HttpServer) -> None:
        self._loop, self._socket, self._server = loop, sock, server
        self.address = address
        self._http = h11.Connection(h11.SERVER, max_incomplete_event_size=HEAD_MOST)
        self._phase = PeerPhase.HEARING
        self._asked: _Asked | None = None
        """The request that is received or answered, from its head to the end of its answer."""
        self._queue: list[bytes] = []
        self._queued_bytes = 0
        self._thrown_away = 0
        self._holds: set[str] = set()
        loop.add_reader(sock.fileno(), self._on_readable)
        server.idle.watch(self)

    # Receiving.

    def _on_readable(self) -> None:
        try:
            received = self._socket.recv(RECEIVE_BYTES)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            self.close()
            return
        if self._phase is PeerPhase.ENDING:
            self._throw_away(received)
        elif self._phase is PeerPhase.STREAMING:
            self.close()
        else:
            self._receive(received)

    def _receive(self, received: bytes) -> None:
        self._http.receive_data(received)
        if not received or len(self._waiting) > AHEAD_MOST:
            self._hold("ahead")
        if self._phase is PeerPhase.HEARING:
            self._note_unfinished()
            self._server.wants_turn(self)

    @property
    def _waiting(self) -> bytes:
        """Bytes received and not taken yet."""
        return self._http.trailing_data[0]

    @property
    def has_unread(self) -> bool:
        """Whether it has said something that was not received yet."""
        try:
            return bool(self._socket.recv(1, socket.MSG_PEEK))
        except OSError:
            return False

    def _note_unfinished(self) -> None:
        """Tell how much of a request is held that is not whole."""
        size = len(self._waiting)
        if self._asked is not None:
            size += len(self._asked.body) + 1
        self._server.buffers.receiving(self, size, is_new=False)

    def _throw_away(self, received: bytes) -> None:
        self._thrown_away += len(received)
        if not received or self._thrown_away > LEFTOVER_MOST:
            self.close()

    @property
    def asks_first(self) -> bool:
        """Whether what it says next is a request that `comes_first`, as far as can be seen yet."""
        words = self._waiting[:LINE_PEEKED].split(b" ", 2)
        if len(words) < 2:
            return False
        route = self._server.routes.get(words[1].partition(b"?")[0].decode("latin-1"))
        return route is not None and route.comes_first

    def take_request(self) -> None:
        """It has its turn: take what was received, up to the end of one request."""
        for _ in range(EVENTS_AT_ONCE):
            if self._phase is not PeerPhase.HEARING or not self._take_next():
                return
        self._server.wants_turn(self)

    def _take_next(self) -> bool:
        """Take one event; False where more has to be received first, or the request is whole."""
        try:
            event = self._http.next_event()
        except h11.RemoteProtocolError as error:
            self._answer_last(
                text_response(error.error_status_hint, "this is not a request of HTTP/1.1")
            )
            return False
        if event is h11.NEED_DATA:
            self._release("ahead")
            self._note_unfinished()
            if self._http.they_are_waiting_for_100_continue:
                self._tell(h11.InformationalResponse(status_code=100, headers=[]))
            return False
        if isinstance(event, h11.Request):
            self._begin_request(event)
        elif isinstance(event, h11.Data) and self._asked is not None:
            self._asked.body += event.data
            if len(self._asked.body) > self._asked.body_most:
                self._answer_last(
                    text_response(413, f"at most {self._asked.body_most} bytes are taken")
                )
        elif isinstance(event, h11.EndOfMessage) and self._asked is not None:
            self._answer(self._asked)
            return False
        else:
            self._end()  # It has hung up.
        return True

    def _begin_request(self, event: h11.Request) -> None:
        asked = self._asked = _Asked(event, self._server, self.address)
        if asked.size > asked.body_most:
            refusal = asked.refusal or text_response(
                413, f"at most {asked.body_most} bytes are taken"
            )
            self._answer_last(refusal)

    def _answer(self, asked: _Asked) -> None:
        """It is whole: have it answered, now or later."""
        self._phase = PeerPhase.ANSWERING
        self._server.buffers.receiving(self, 0, is_new=False)
        self._server.idle.settled(self)
        self._server.unanswered.watch(self)
        asked.reply = reply = HttpReply(self)
        if asked.refusal is not None or asked.route is None:
            reply(asked.refusal or text_response(404, "there is nothing at this path"))
            return
        handler = asked.route.handler(asked.method)
        assert handler is not None, "a route was found for this method"
        try:
            handler(asked.request(), reply)
        except Exception as error:  # noqa: BLE001 - a page that fails must not end the job
            self._server.on_problem(
                f"{asked.path} cannot be shown: {type(error).__name__}: {error}"
            )
            reply.forget()
            if self._asked is asked and self._http.our_state is h11.SEND_RESPONSE:
                self.answer(
                    text_response(500, "this page cannot be shown, because of an error in Holdfast")
                )
            else:
                self.close()

    # Answering.

    def answer(self, response: HttpResponse) -> None:
        """The whole answer to what was asked last."""
        if self._phase is PeerPhase.ANSWERING:
            self._server.unanswered.settled(self)
            self._say(response, with_end=True)
            self._hear_next()

    def begin_stream(self, stream: HttpStream, response: HttpResponse) -> bool:
        """Whether the stream has begun; else the answer is given."""
        if self._phase is not PeerPhase.ANSWERING or self._asked is None:
            return False
        self._server.unanswered.settled(self)
        if self._asked.method == "HEAD":
            self.answer(response)
            return False
        if any(self._http.trailing_data):
            self._answer_last(text_response(400, "nothing can be said beside a stream"))
            return False
        if not self._server.may_stream(self):
            self.answer(
                text_response(503, "too many pages are open already; close one and try again")
            )
            return False
        self._phase, self._asked.stream = PeerPhase.STREAMING, stream
        self._say(response, with_end=False)
        return True

    def _say(self, response: HttpResponse, *, with_end: bool, is_last: bool = False) -> None:
        headers = [
            ("Date", date()),
            ("Content-Type", response.content_type),
            ("Cache-Control", "no-store"),
            ("X-Content-Type-Options", "nosniff"),
        ]
        named = {name.lower() for name, _ in response.headers}
        headers = [pair for pair in headers if pair[0].lower() not in named] + [*response.headers]
        if with_end:
            headers.append(("Content-Length", str(len(response.body))))
        if is_last:
            headers.append(("Connection", "close"))
        with self._our_mistakes():
            reason = HTTPStatus(response.status).phrase.encode()
            events: list[_Said] = [
                h11.Response(status_code=response.status, headers=headers, reason=reason)
            ]
            if response.body and not (self._asked is not None and self._asked.method == "HEAD"):
                events.append(h11.Data(data=response.body))
            if with_end:
                events.append(h11.EndOfMessage())
            self._tell(*events)

    def _tell(self, *events: _Said) -> None:
        with self._our_mistakes():
            self._write(b"".join(self._http.send(event) or b"" for event in events))

    @contextmanager
    def _our_mistakes(self) -> Iterator[None]:
        """Where what is sent is not HTTP, it is this client's end, and nobody else's."""
        try:
            yield
        except (h11.LocalProtocolError, ValueError) as error:
            self._server.on_problem(f"a client over HTTP cannot be answered: {error}")
            self._loop.call_soon(self.close)

    def _answer_last(self, response: HttpResponse) -> None:
        """Say why nothing more is heard from this client, and let it go."""
        if self._http.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            self._say(response, with_end=True, is_last=True)
        self._end()

    def _hear_next(self) -> None:
        """The request is done with, if its answer is said and read."""
        if self._phase is not PeerPhase.ANSWERING or self._queue:
            return
        if self._http.our_state is h11.DONE and self._http.their_state is h11.DONE:
            self._asked = None
            self._http.start_next_cycle()
            self._phase = PeerPhase.HEARING
            self._server.idle.watch(self)
            self._server.wants_turn(self)
        elif self._http.our_state is not h11.SEND_RESPONSE:
            self._end()

    # Streaming.

    def send_on(self, data: bytes) -> None:
        self._tell(h11.Data(data=data))

    def end_stream(self) -> None:
        self._server.stream_ended(self)
        self._phase = PeerPhase.ANSWERING  # What is queued is still sent.
        self._tell(h11.EndOfMessage())
        self._hear_next()

    @property
    def has_room(self) -> bool:
        return self._queued_bytes <= ROOM_BYTES

    # Sending.

    def _write(self, data: bytes) -> None:
        if not data or self._phase is PeerPhase.CLOSED:
            return
        if not self._queue:
            data = data[self._send(data) :]
            if not data:
                return
            self._loop.add_writer(self._socket.fileno(), self._on_writable)
            self._server.unread.watch(self)
        self._queue.append(data)
        self._note_unread(self._queued_bytes + len(data))
        if self._queued_bytes > OUTPUT_LIMIT and self._phase is PeerPhase.STREAMING:
            self.give_up_sending()

    def _send(self, data: bytes) -> int:
        """How much was taken. A client that has gone takes all: its end is read, and told."""
        try:
            return self._socket.send(data)
        except (BlockingIOError, InterruptedError):
            return 0
        except OSError:
            self._loop.call_soon(self.close)
            return len(data)

    def _on_writable(self) -> None:
        waiting = b"".join(self._queue)
        sent = self._send(waiting)
        if self._phase is PeerPhase.STREAMING:
            self._server.unread.settled(self)
            self._server.unread.watch(self)
        self._queue = [waiting[sent:]] if sent < len(waiting) else []
        self._note_unread(len(waiting) - sent)
        if self._queue:
            return
        self._loop.remove_writer(self._socket.fileno())
        self._server.unread.settled(self)
        if self._phase is PeerPhase.ENDING:
            self._hang_up()
        elif self._asked is not None and self._asked.stream is not None:
            self._asked.stream.on_room()
        self._hear_next()

    def _note_unread(self, size: int) -> None:
        self._queued_bytes = size
        self._server.buffers.sending(self, size)

    def give_up_sending(self) -> None:
        """It does not read what was said."""
        self._loop.call_soon(self.close)

    # Not reading.

    def pause(self) -> None:
        self._hold("memory")

    def resume(self) -> None:
        self._release("memory")

    def _hold(self, reason: str) -> None:
        if not self._holds and self._phase is not PeerPhase.CLOSED:
            self._loop.remove_reader(self._socket.fileno())
        self._holds.add(reason)

    def _release(self, reason: str) -> None:
        if reason in self._holds:
            self._holds.discard(reason)
            if not self._holds and self._phase is not PeerPhase.CLOSED:
                self._loop.add_reader(self._socket.fileno(), self._on_readable)

    # Ending.

    def refuse(self, error: ProtocolError) -> None:
        """It took too long over something."""
        if error.kind == "idle" and (self._asked is not None or self._waiting):
            self._server.idle.watch(self)  # It asks now: that has a time of its own.
            return
        status = _STATUS_OF.get(error.kind)
        if status is None or self._phase not in (PeerPhase.HEARING, PeerPhase.ANSWERING):
            self.close()
            return
        self._answer_last(text_response(status, error.reason))

    def _end(self) -> None:
        """All is said: once it is read, hang up."""
        if self._phase in (PeerPhase.ENDING, PeerPhase.CLOSED):
            return
        self._phase = PeerPhase.ENDING
        if self._asked is not None:
            self._asked.forget_reply()
        self._server.buffers.receiving(self, 0, is_new=False)
        self._server.idle.settled(self)
        self._server.unanswered.settled(self)
        for reason in list(self._holds):
            self._release(reason)
        if not self._queue:
            self._hang_up()

    def _hang_up(self) -> None:
        if self._http.their_state is h11.CLOSED:
            self.close()
            return
        self._server.lingering.watch(self)
        try:
            self._socket.shutdown(socket.SHUT_WR)
        except OSError:
            self.close()

    def close(self) -> None:
        """Let go at once. A stream is told; nothing else is."""
        if self._phase is PeerPhase.CLOSED:
            return
        self._phase = PeerPhase.CLOSED
        number = self._socket.fileno()
        if not self._holds:
            self._loop.remove_reader(number)
        if self._queue:
            self._loop.remove_writer(number)
            self._queue.clear()
        self._server.buffers.receiving(self, 0, is_new=False)
        self._note_unread(0)
        self._server.ended(self)
        self._socket.close()
        asked, self._asked = self._asked, None
        if asked is not None:
            asked.forget_reply()
            if asked.stream is not None:
                asked.stream.on_closed()


class _Asked:
    """One request, and what is made of it."""

    def __init__(self, event: h11.Request, server: HttpServer, address: str) -> None:
        self.method = event.method.decode("ascii")
        self.body = bytearray()
        self.route: Route | None = None
        self.refusal: HttpResponse | None = None
        self.reply: HttpReply | None = None
        self.stream: HttpStream | None = None
        self._address = address
        self._headers = {name.decode(): value.decode("latin-1") for name, value in event.headers}
        target, _, query = event.target.decode("latin-1").partition("?")
        if target.startswith("http://"):
            target = "/" + target.removeprefix("http://").partition("/")[2]
        self.path = unquote(target)
        try:
            fields = parse_qsl(query, keep_blank_values=True, max_num_fields=FIELDS_MOST)
        except ValueError:
            fields = []
            self.refusal = text_response(400, f"a query has at most {FIELDS_MOST} fields")
        self._query = dict(fields)
        if not self.path.startswith("/"):
            self.refusal = text_response(400, "a path begins with /")
        if self.refusal is not None:
            return
        found = server.find(self.method, self.path)
        if isinstance(found, Route):
            self.route = found
        else:
            self.refusal = found

    def forget_reply(self) -> None:
        """Nothing comes of it any more."""
        if self.reply is not None:
            self.reply.forget()

    @property
    def size(self) -> int:
        """Of the body, as far as the head says it."""
        if "transfer-encoding" in self._headers:
            return 1
        return int(self._headers.get("content-length", 0))

    @property
    def body_most(self) -> int:
        if self.route is None:
            return 0
        return self.route.body_most if self.method == "POST" else 0

    def request(self) -> PageRequest:
        return PageRequest(
            self.method, self.path, self._query, self._headers, bytes(self.body), self._address
        )
