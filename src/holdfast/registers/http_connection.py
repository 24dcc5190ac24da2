"""HTTP/1.1 to one of etcd's servers, on one connection, against a deadline.

Rules
1. Every wait counts towards the deadline of the call, each byte of it: a server that trickles
   gains nothing.
2. Whatever is wrong with an answer is an `OSError`; then the connection can only be closed. Only
   the timeout of a line leaves everything as it was, so that a stream can be read on later.
3. An answer has bounds: it is held in memory. It says where it ends, since one that just stops
   cannot be told from a whole one.

How it works: h11 reads and writes HTTP and knows no sockets; the socket, with its timeout, is ours.
`http.client` is not used: it brings `ssl` and `email` to jobs without TLS, counts time for each
`recv` alone, and cannot go on reading a stream after a timeout, which a watch does all day.
"""

from __future__ import annotations

import socket
from collections.abc import Mapping
from time import monotonic

import h11
from msgspec import Struct

from holdfast.core.protocol.model import Endpoint

LONGEST_HEAD = 64 * 1024
LONGEST_BODY = 1024 * 1024
WITHOUT_BODY = (204, 304)


class Unavailable(OSError):
    """The endpoint answered, but cannot serve now, or not in a way that can be understood."""


class HttpRequest(Struct, frozen=True):
    """A request, for any of the endpoints."""

    method: str
    path: str
    body: bytes = b""
    headers: Mapping[str, str] = {}


class HttpAnswer(Struct, frozen=True):
    """A response. Names of headers are in lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class HttpConnection:
    """A connection to one endpoint: one answer after another, or an answer line by line."""

    def __init__(self, endpoint: Endpoint, sock: socket.socket) -> None:
        self.endpoint = endpoint
        self._socket = sock
        self._http = h11.Connection(h11.CLIENT, max_incomplete_event_size=LONGEST_HEAD)
        self._body = bytearray()

    @property
    def is_reusable(self) -> bool:
        """Whether the connection can be used again: the response is complete, and last."""
        is_over = self._http.our_state is h11.DONE and self._http.their_state is h11.DONE
        return is_over and not self._http.trailing_data[0]

    def ask(self, request: HttpRequest, deadline: float) -> HttpAnswer:
        """The whole answer."""
        status, headers = self.begin(request, deadline)
        while self._body_is_due():
            self._read_body(deadline)
        return HttpAnswer(status, headers, bytes(self._body))

    def begin(self, request: HttpRequest, deadline: float) -> tuple[int, Mapping[str, str]]:
        """Send the request; the status and the headers of the answer, of which the body is due."""
        if self._http.our_state is h11.DONE:
            self._http.start_next_cycle()
        self._body.clear()
        self._send(self._encoded(request), deadline)
        while not isinstance(head := self._next_event(deadline), h11.Response):
            pass  # "100 Continue" and its like announce the answer.
        headers = {name.decode(): value.decode("latin-1") for name, value in head.headers}
        says_its_end = headers.keys() & {"content-length", "transfer-encoding"}
        if not says_its_end and head.status_code not in WITHOUT_BODY:
            raise Unavailable("the answer does not say where it ends")
        return head.status_code, headers

    def line(self, deadline: float) -> bytes | None:
        """The next line of the body; None when the time is over, b"" at its end."""
        while (end := self._body.find(b"\n")) < 0:
            if not self._body_is_due():
                return b""
            try:
                self._read_body(deadline)
            except TimeoutError:
                return None
        line = bytes(self._body[: end + 1])
        del self._body[: end + 1]
        return line

    def _encoded(self, request: HttpRequest) -> bytes:
        headers = {"Host": str(self.endpoint), **request.headers}
        if request.body or request.method != "GET":
            headers["Content-Length"] = str(len(request.body))
        try:
            head = h11.Request(
                method=request.method, target=request.path, headers=list(headers.items())
            )
            parts = (head, h11.Data(data=request.body), h11.EndOfMessage())
            return b"".join(self._http.send(part) for part in parts)
        except (h11.LocalProtocolError, UnicodeEncodeError):
            # Not in their words, which have the header in them: it may be a password.
            raise Unavailable("cannot be asked with a header that HTTP does not allow") from None

    def _send(self, data: bytes, deadline: float) -> None:
        self._socket.settimeout(seconds_until(deadline))
        try:
            self._socket.sendall(data)
        except TimeoutError:
            raise
        except OSError:
            # What the server said before it hung up tells more: that a certificate is missing.
            self._receive(deadline)
            raise

    def _body_is_due(self) -> bool:
        return self._http.their_state is h11.SEND_BODY

    def _read_body(self, deadline: float) -> None:
        """Take in a piece of the body, or its end."""
        event = self._next_event(deadline)
        if isinstance(event, h11.Data):
            self._body += event.data
        if len(self._body) > LONGEST_BODY:
            raise Unavailable("the answer is too long")

    def _next_event(self, deadline: float) -> object:
        try:
            while (event := self._http.next_event()) is h11.NEED_DATA:
                self._http.receive_data(self._receive(deadline))
        except h11.RemoteProtocolError as error:
            is_endless = error.error_status_hint == 431
            problem = "has a head that is too long" if is_endless else "is not proper HTTP"
            raise Unavailable(f"the answer {problem}") from None
        return event

    def _receive(self, deadline: float) -> bytes:
        self._socket.settimeout(seconds_until(deadline))
        received = self._socket.recv(64 * 1024)
        if not received:
            raise ConnectionResetError("the connection was closed by the server")
        return received

    def interrupt(self) -> None:
        """Wake the thread that waits for it, from any thread."""
        try:
            # Not TLS's own `shutdown`, which pulls the TLS state away from the reader.
            socket.socket.shutdown(self._socket, socket.SHUT_RDWR)
        except OSError:
            pass  # It is not connected any more.

    def close(self) -> None:
        self._socket.close()


def seconds_until(deadline: float) -> float:
    """For a socket's timeout; raises `TimeoutError` when there are none left."""
    left_s = deadline - monotonic()
    if left_s <= 0:
        raise TimeoutError("did not answer in time")
    return left_s
