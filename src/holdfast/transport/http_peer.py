"""One client of an HTTP server: its requests, one after the other, and an answer to each.

Rules
- One request is answered at a time. What a client says meanwhile waits, up to `AHEAD_MOST`; then
  it is read no further. On a stream it has nothing to say, and its end is the stream's.
- Nothing that handlers hand in calls back from within. What is sent is queued where the client
  does not read, and bounded (`OUTPUT_LIMIT`, and `transport.buffers` for all clients together).
- The last word of a connection is read before it is closed, as far as the client lets us: closing
  over what it still sends would reset the connection and lose the answer.

How it works: the bytes go into h11 and events come out, until it needs more, a request is whole, or
the turn is over (`HttpServer.has_turn`). Reading stops for a reason (`_holds`), and goes on when
none is left.
"""

from __future__ import annotations

import socket
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
    said,
)

if TYPE_CHECKING:
    from holdfast.transport.http_server import HttpServer

HEAD_MOST = 16 << 10
AHEAD_MOST = 64 << 10
LEFTOVER_MOST = 1 << 20
"""What is read and thrown away after the last word."""
ROOM_BYTES = 64 << 10
"""A stream with more than this unread has no room."""
FIELDS_MOST = 64
"""Of a query."""
_STATUS_OF = {"slow message": 408, "unanswered": 503}
"""How a client that is given up is told; others are not."""


class HttpPeer:
    """One connection of a client."""

    def __init__(self, loop: Loop, sock: socket.socket, address: str, server: HttpServer) -> None:
        self._loop, self._socket, self._server = loop, sock, server
        self.address = address
        self.is_open = True
        self._http = h11.Connection(h11.SERVER, max_incomplete_event_size=HEAD_MOST)
        self._asked: _Asked | None = None
        """The request that is being received."""
        self._is_head_only = False
        self._unfinished_bytes = 0
        self._answering: HttpReply | HttpStream | None = None
        """What is made of the request that was received."""
        self._queue: list[bytes] = []
        self._queued_bytes = 0
        self._is_ending = self._is_going = False
        """All is said, and what comes is thrown away; `go_on` is under way."""
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
        if self._is_ending:
            self._throw_away(received)
        elif self._answering is not None:
            self._hear_ahead(received)
        else:
            self._hear(received)

    def _hear(self, received: bytes) -> None:
        self._http.receive_data(received)
        if received:
            self._server.idle.settled(self)
            is_new = self._unfinished_bytes == 0
            self._unfinished_bytes += len(received)
            self._server.buffers.receiving(self, self._unfinished_bytes, is_new)
        self.go_on()

    def _hear_ahead(self, received: bytes) -> None:
        if isinstance(self._answering, HttpStream):
            self.close()
            return
        self._http.receive_data(received)
        if not received or len(self._http.trailing_data[0]) > AHEAD_MOST:
            self._hold("ahead")

    def _throw_away(self, received: bytes) -> None:
        self._thrown_away += len(received)
        if not received or self._thrown_away > LEFTOVER_MOST:
            self.close()

    def go_on(self) -> None:
        """Take what was received, as far as there is a turn for it."""
        if self._is_going:
            return  # An answer that was given from within: the loop below sees it.
        self._is_going = True
        self._release("turn")
        try:
            while self.is_open and not self._is_ending and self._answering is None:
                if not self._server.has_turn():
                    self._hold("turn")
                    self._server.defer(self)
                    return
                if not self._take_next():
                    return
        finally:
            self._is_going = False

    def _take_next(self) -> bool:
        """Take what comes next; False where more has to be received first."""
        try:
            event = self._http.next_event()
        except h11.RemoteProtocolError as error:
            self._answer_last(said(error.error_status_hint, "this is not a request of HTTP/1.1"))
            return False
        if event is h11.NEED_DATA:
            if self._http.they_are_waiting_for_100_continue:
                go_ahead = h11.InformationalResponse(status_code=100, headers=[])
                self._write(self._http.send(go_ahead) or b"")
            return False
        if isinstance(event, h11.Request):
            self._begin_request(event)
        elif isinstance(event, h11.Data) and self._asked is not None:
            self._asked.body += event.data
            if len(self._asked.body) > self._asked.body_most:
                self._answer_last(said(413, f"at most {self._asked.body_most} bytes are taken"))
        elif isinstance(event, h11.EndOfMessage) and self._asked is not None:
            self._end_request(self._asked)
        else:
            self._end()  # It has hung up.
        return True

    def _begin_request(self, event: h11.Request) -> None:
        asked = self._asked = _Asked(event, self._server, self.address)
        self._is_head_only = asked.method == "HEAD"
        if asked.size > asked.body_most:
            refusal = asked.refusal or said(413, f"at most {asked.body_most} bytes are taken")
            self._answer_last(refusal)

    def _end_request(self, asked: _Asked) -> None:
        self._asked, self._unfinished_bytes = None, 0
        self._server.buffers.receiving(self, 0, is_new=False)
        self._answering = reply = HttpReply(self)
        if asked.refusal is not None or asked.route is None:
            reply(asked.refusal or said(404, "there is nothing at this path"))
            return
        handler = asked.route.handler(asked.method)
        assert handler is not None, "a route was found for this method"
        self._server.unanswered.watch(self)
        try:
            handler(asked.request(), reply)
        except Exception as error:  # noqa: BLE001 - a page that fails must not end the job
            self._server.on_problem(
                f"{asked.path} cannot be shown: {type(error).__name__}: {error}"
            )
            reply.forget()
            if self._http.our_state is h11.SEND_RESPONSE:
                self.answer(said(500, "this page cannot be shown, because of an error in Holdfast"))
            else:
                self.close()

    # Answering.

    def answer(self, response: HttpResponse) -> None:
        """The whole answer to what was asked last."""
        self._server.unanswered.settled(self)
        if not self.is_open:
            return
        self._say(response, with_end=True)
        self._answered()

    def begin_stream(self, stream: HttpStream, response: HttpResponse) -> bool:
        """Whether the stream has begun; else the answer is given."""
        self._server.unanswered.settled(self)
        if not self.is_open:
            return False
        if self._is_head_only:
            self.answer(response)
            return False
        if any(self._http.trailing_data):
            self._answer_last(said(400, "nothing can be said beside a stream"))
            return False
        if not self._server.may_stream(self):
            self.answer(said(503, "too many pages are open already; close one and try again"))
            return False
        self._answering = stream
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
        reason = HTTPStatus(response.status).phrase.encode()
        head = h11.Response(status_code=response.status, headers=headers, reason=reason)
        parts = [self._http.send(head)]
        if response.body and not self._is_head_only:
            parts.append(self._http.send(h11.Data(data=response.body)))
        if with_end:
            parts.append(self._http.send(h11.EndOfMessage()))
        self._write(b"".join(part for part in parts if part))

    def _answer_last(self, response: HttpResponse) -> None:
        """Say why nothing more is heard from this client, and let it go."""
        if self._http.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            self._say(response, with_end=True, is_last=True)
        self._end()

    def _answered(self) -> None:
        """The answer is said; go on when it is read."""
        if self._queue or not self.is_open:
            return
        self._answering = None
        self._release("ahead")
        if self._http.our_state is h11.DONE and self._http.their_state is h11.DONE:
            self._http.start_next_cycle()
            self._server.idle.watch(self)
            self.go_on()
        else:
            self._end()

    # Streaming.

    def send_on(self, data: bytes) -> None:
        self._write(self._http.send(h11.Data(data=data)) or b"")

    def end_stream(self) -> None:
        self._server.stream_ended(self)
        self._write(self._http.send(h11.EndOfMessage()) or b"")
        self._answering = HttpReply(self)  # Nothing streams; what is queued is still sent.
        self._answered()

    @property
    def has_room(self) -> bool:
        return self._queued_bytes <= ROOM_BYTES

    # Sending.

    def _write(self, data: bytes) -> None:
        if not data or not self.is_open:
            return
        if not self._queue:
            data = data[self._send(data) :]
            if not data:
                return
            self._loop.add_writer(self._socket.fileno(), self._on_writable)
            self._server.unread.watch(self)
        self._queue.append(data)
        self._note_unread(self._queued_bytes + len(data))
        if self._queued_bytes > OUTPUT_LIMIT and isinstance(self._answering, HttpStream):
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
        if isinstance(self._answering, HttpStream):
            self._server.unread.settled(self)
            self._server.unread.watch(self)
        self._queue = [waiting[sent:]] if sent < len(waiting) else []
        self._note_unread(len(waiting) - sent)
        if self._queue:
            return
        self._loop.remove_writer(self._socket.fileno())
        self._server.unread.settled(self)
        if self._is_ending:
            self._hang_up()
        elif isinstance(self._answering, HttpStream):
            self._answering.on_room()
        elif self._answering is not None:
            self._answered()

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
        if not self._holds and self.is_open:
            self._loop.remove_reader(self._socket.fileno())
        self._holds.add(reason)

    def _release(self, reason: str) -> None:
        if reason in self._holds:
            self._holds.discard(reason)
            if not self._holds and self.is_open:
                self._loop.add_reader(self._socket.fileno(), self._on_readable)

    # Ending.

    def refuse(self, error: ProtocolError) -> None:
        """It took too long over something."""
        status = _STATUS_OF.get(error.kind)
        if status is None or self._is_ending:
            self.close()
            return
        self._forget_answer()
        self._answer_last(said(status, error.reason))

    def _forget_answer(self) -> None:
        if isinstance(self._answering, HttpReply):
            self._answering.forget()
        self._answering = None

    def _end(self) -> None:
        """All is said: once it is read, hang up."""
        if self._is_ending or not self.is_open:
            return
        self._is_ending = True
        self._server.buffers.receiving(self, 0, is_new=False)
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
        if not self.is_open:
            return
        self.is_open = False
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
        answering = self._answering
        self._forget_answer()
        if isinstance(answering, HttpStream):
            answering.on_closed()


class _Asked:
    """A request that is being received."""

    def __init__(self, event: h11.Request, server: HttpServer, address: str) -> None:
        self.method = event.method.decode("ascii")
        self.body = bytearray()
        self.route: Route | None = None
        self.refusal: HttpResponse | None = None
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
            self.refusal = said(400, f"a query has at most {FIELDS_MOST} fields")
        self._query = dict(fields)
        if not self.path.startswith("/"):
            self.refusal = said(400, "a path begins with /")
        if self.refusal is not None:
            return
        found = server.find(self.method, self.path)
        if isinstance(found, Route):
            self.route = found
        else:
            self.refusal = found

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
