"""The little of HTTP/1.1 that etcd's servers speak, on one connection, against a deadline.

Rules
1. Every wait counts towards the deadline of the call, each byte of it: a server that trickles
   gains nothing.
2. Whatever is wrong with an answer is an `OSError`; then the connection can only be closed. Only
   the timeout of a line leaves everything as it was, so that a stream can be read on later.
3. An answer has bounds: it is held in memory.

How it works: a socket with a timeout, and a decoder that takes a body of a given length or in
chunks, as far as it has come. `http.client` is not used: it imports `ssl` and `email` (28 ms of
an agent's start, for jobs without TLS too), counts time for each `recv` alone, and cannot go on
reading a stream after a timeout, which a watch does all day.
"""

from __future__ import annotations

import socket
from collections.abc import Mapping
from time import monotonic

from msgspec import Struct

from holdfast.core.model import Endpoint

LONGEST_HEAD = 64 * 1024
LONGEST_BODY = 1024 * 1024


class Unavailable(OSError):
    """The endpoint answered, but cannot serve now, or not in a way that can be understood."""


class Request(Struct, frozen=True):
    """What is asked, of whichever endpoint."""

    method: str
    path: str
    body: bytes = b""
    headers: Mapping[str, str] = {}

    def encoded(self, host: str) -> bytes:
        lines = [f"{self.method} {self.path} HTTP/1.1", f"Host: {host}"]
        lines += [f"{name}: {value}" for name, value in self.headers.items()]
        if self.body or self.method != "GET":
            lines.append(f"Content-Length: {len(self.body)}")
        return "\r\n".join([*lines, "", ""]).encode("latin-1", "replace") + self.body


class Answer(Struct, frozen=True):
    """What came back. Names of headers are in lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class Connection:
    """A connection to one endpoint: one answer after another, or an answer line by line."""

    def __init__(self, endpoint: Endpoint, sock: socket.socket) -> None:
        self.endpoint = endpoint
        self._socket = sock
        self._received = bytearray()
        self._body = bytearray()
        self._left: int | None = 0
        """Of the body, in bytes; None while it comes in chunks."""
        self._is_complete = True
        self.is_reusable = True

    def ask(self, request: Request, deadline: float) -> Answer:
        """The whole answer."""
        status, headers = self.begin(request, deadline)
        while not self._is_complete:
            self._fill(deadline)
            self._decode()
        return Answer(status, headers, bytes(self._body))

    def begin(self, request: Request, deadline: float) -> tuple[int, Mapping[str, str]]:
        """Send the request; the status and the headers of the answer, of which the body is due."""
        self._send(request.encoded(str(self.endpoint)), deadline)
        while (end := self._received.find(b"\r\n\r\n")) < 0:
            if len(self._received) > LONGEST_HEAD:
                raise Unavailable("the answer's head is too long")
            self._fill(deadline)
        head = self._received[:end].decode("latin-1")
        del self._received[: end + 4]
        status, headers = _parse_head(head)
        self._begin_body(status, headers)
        return status, headers

    def _send(self, data: bytes, deadline: float) -> None:
        self._socket.settimeout(seconds_until(deadline))
        try:
            self._socket.sendall(data)
        except TimeoutError:
            raise
        except OSError:
            # What the server said before it hung up tells more: that a certificate is missing.
            self._fill(deadline)
            raise

    def _begin_body(self, status: int, headers: Mapping[str, str]) -> None:
        self._body.clear()
        self._is_complete = False
        self.is_reusable = "close" not in headers.get("connection", "").lower()
        if "chunked" in headers.get("transfer-encoding", "").lower():
            self._left = None
        elif status == 204:
            self._left = 0
        else:
            self._left = _parse_size(headers.get("content-length", "none"), 10)
        self._decode()

    def line(self, deadline: float) -> bytes | None:
        """The next line of the body; None when the time is over, b"" at its end."""
        while (end := self._body.find(b"\n")) < 0:
            if self._is_complete:
                return b""
            try:
                self._fill(deadline)
            except TimeoutError:
                return None
            self._decode()
        line = bytes(self._body[: end + 1])
        del self._body[: end + 1]
        return line

    def _fill(self, deadline: float) -> None:
        self._socket.settimeout(seconds_until(deadline))
        received = self._socket.recv(64 * 1024)
        if not received:
            raise ConnectionResetError("the connection was closed by the server")
        self._received += received

    def _decode(self) -> None:
        """Move what is there of the body from the received bytes."""
        if self._left is None:
            while not self._is_complete and self._take_chunk():
                pass
        else:
            taken = self._received[: self._left]
            del self._received[: self._left]
            self._body += taken
            self._left -= len(taken)
            self._is_complete = self._left == 0
        if max(len(self._body), len(self._received), self._left or 0) > LONGEST_BODY:
            raise Unavailable("the answer is too long")

    def _take_chunk(self) -> bool:
        """Whether a whole chunk was there. The last of them is empty and ends the body."""
        end = self._received.find(b"\r\n")
        if end < 0:
            return False
        size = _parse_size(self._received[:end].decode("latin-1").partition(";")[0], 16)
        if size == 0:
            return self._take_trailers(end)
        begin, stop = end + 2, end + 2 + size
        if len(self._received) < stop + 2:
            return False
        self._body += self._received[begin:stop]
        del self._received[: stop + 2]
        return True

    def _take_trailers(self, begin: int) -> bool:
        """Whether the end of the body was there; headers may come after it, of no interest."""
        end = self._received.find(b"\r\n\r\n", begin)
        if end < 0:
            return False
        del self._received[: end + 4]
        self._is_complete = True
        return True

    def interrupt(self) -> None:
        """Wake whoever waits for it, from any thread."""
        try:
            # Not TLS's own `shutdown`, which pulls the TLS state away from the reader.
            socket.socket.shutdown(self._socket, socket.SHUT_RDWR)
        except OSError:
            pass  # It is not connected any more.

    def close(self) -> None:
        self._socket.close()


def _parse_head(head: str) -> tuple[int, Mapping[str, str]]:
    first, *lines = head.split("\r\n")
    protocol, _, rest = first.partition(" ")
    if not protocol.startswith("HTTP/1.") or not rest[:3].isdecimal():
        raise Unavailable("the answer is not HTTP")
    pairs = (line.partition(":") for line in lines)
    return int(rest[:3]), {name.strip().lower(): value.strip() for name, _, value in pairs}


def _parse_size(text: str, number_base: int) -> int:
    try:
        size = int(text, number_base)
    except ValueError:
        size = -1
    if size < 0:
        raise Unavailable("the answer does not say where it ends")
    return size


def seconds_until(deadline: float) -> float:
    """For a socket's timeout; raises `TimeoutError` when there are none left."""
    left_s = deadline - monotonic()
    if left_s <= 0:
        raise TimeoutError("did not answer in time")
    return left_s
