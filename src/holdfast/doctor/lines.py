"""Connections between the nodes that the doctor looks at: who may speak, how much, and how long.

Rules
1. The first node and another prove to each other that they know the job's token, just as agents do
   (`transport.handshake`), with a key made of it. Without a token the connections are open.
2. A frame has bounds, small ones before the other side has proved itself, and a time to come in as
   a whole, however slowly its bytes drip in.
3. Whoever is mute, slow or wrong costs nobody else any time: connections are served side by side,
   a bounded number of them.
"""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import threading
import time
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

import msgspec

from holdfast.transport.auth import ConnectionSecurity
from holdfast.transport.frames import HANDSHAKE_LIMIT, Decoder, ProtocolError
from holdfast.transport.handshake import NONCE_BYTES, ClientSide, ServerSide, refusal_of
from holdfast.transport.listener import listening_socket

FRAME_MOST = 64 << 20
"""What the first node says of all of them."""
REPORT_MOST = 1 << 20
"""What one node says of itself."""
HANDSHAKE_S = 10.0
AT_ONCE = 256
_LENGTH = struct.Struct("!I")

T = TypeVar("T")


def key_of(token: bytes | None, job: str) -> bytes:
    """What the probes know instead of the token, which no worker is given. Empty without one."""
    if token is None:
        return b""
    import hmac

    return hmac.digest(token, f"holdfast doctor {job}".encode(), "sha256")


class Line:
    """One connection. What it raises is `OSError` or `ProtocolError`, whatever the others send."""

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock

    def send(self, said: Any, within_s: float) -> None:
        payload = msgspec.msgpack.encode(said)
        self._write(_LENGTH.pack(len(payload)) + payload, within_s)

    def receive(self, kind: type[T], most: int, within_s: float) -> T:
        decoder: Decoder[T] = Decoder(kind)
        return decoder.decode(self._read(most, within_s))

    def greet(self, side: ClientSide) -> None:
        """Prove ourselves, and see that the first node does."""
        self._write(side.opening(), HANDSHAKE_S)
        side.read_challenge(self._read(HANDSHAKE_LIMIT, HANDSHAKE_S))
        self._write(side.prove(), HANDSHAKE_S)
        side.read_welcome(self._read(HANDSHAKE_LIMIT, HANDSHAKE_S))

    def admit(self, side: ServerSide) -> None:
        """See that whoever is there may be. Raises `ProtocolError`, and says it to them."""
        try:
            opening = side.read_opening(self._read(HANDSHAKE_LIMIT, HANDSHAKE_S))
            if opening.kind != "admin":
                raise ProtocolError("garbage", "this is no meeting of agents")
            nonce = os.urandom(NONCE_BYTES)
            self._write(side.challenge(nonce), HANDSHAKE_S)
            answer = self._read(HANDSHAKE_LIMIT, HANDSHAKE_S)
            proven, _ = side.read_proof(answer, opening, nonce)
            self._write(side.welcome(proven, b""), HANDSHAKE_S)
        except ProtocolError as error:
            self._write(refusal_of(error), HANDSHAKE_S)
            raise

    def close(self) -> None:
        self._socket.close()

    def _write(self, frame: bytes, within_s: float) -> None:
        self._socket.settimeout(within_s)  # For all of it.
        self._socket.sendall(frame)

    def _read(self, most: int, within_s: float) -> bytes:
        deadline = time.monotonic() + within_s
        (length,) = _LENGTH.unpack(self._exactly(_LENGTH.size, deadline))
        if length > most:
            raise ProtocolError("oversize", f"a message of {length} bytes is above {most}")
        return self._exactly(length, deadline)

    def _exactly(self, size: int, deadline: float) -> bytes:
        received = bytearray()
        while len(received) < size:
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                raise TimeoutError("timed out")
            self._socket.settimeout(left_s)
            more = self._socket.recv(min(1 << 16, size - len(received)))
            if not more:
                raise ConnectionError(0, "the other side hung up")
            received += more
        return bytes(received)


class ThreadedServer:
    """Where others dial: each who does is served in a thread of its own, until it is closed."""

    def __init__(self, port: int, serve: Callable[[socket.socket], None]) -> None:
        self._socket = listening_socket("", port)
        self.port = int(self._socket.getsockname()[1])
        self._serve = serve
        self._free = threading.BoundedSemaphore(AT_ONCE)
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)  # Wakes the thread that accepts.
        self._socket.close()

    def _accept(self) -> None:
        while True:
            try:
                accepted = self._socket.accept()[0]
            except OSError:
                return
            if self._free.acquire(blocking=False):
                threading.Thread(target=self._one, args=(accepted,), daemon=True).start()
            else:
                accepted.close()

    def _one(self, accepted: socket.socket) -> None:
        try:
            self._serve(accepted)
        finally:
            self._free.release()


class Gathering:
    """The first node's side: takes in who may be there, up to a number of them."""

    def __init__(self, port: int, side: ServerSide, kind: type[Any]) -> None:
        self._side, self._kind = side, kind
        self._came: SimpleQueue[tuple[Line, Any]] = SimpleQueue()
        self._server = ThreadedServer(port, self._take_in)

    def next(self, deadline: float) -> tuple[Line, Any] | None:
        """The next who came, with its first word; None when the time is over."""
        try:
            return self._came.get(timeout=max(0.0, deadline - time.monotonic()))
        except Empty:
            return None

    def close(self) -> None:
        self._server.close()

    def _take_in(self, accepted: socket.socket) -> None:
        line = Line(accepted)
        try:
            line.admit(self._side)
            self._came.put((line, line.receive(self._kind, REPORT_MOST, HANDSHAKE_S)))
        except (OSError, ProtocolError):
            line.close()


def side_of_first(job: str, key: bytes) -> ServerSide:
    return ServerSide(job, ConnectionSecurity(key or None), os.urandom(NONCE_BYTES))


def side_of_other(job: str, node: str, key: bytes) -> ClientSide:
    return ClientSide(job, node, "admin", ConnectionSecurity(key or None))


def side_by_side(work: Callable[[Line], T], lines: list[Line], within_s: float) -> list[T]:
    """What came of it on each line where it could be done within that time."""
    done: SimpleQueue[list[T]] = SimpleQueue()

    def run(line: Line) -> None:
        found: list[T] = []
        with contextlib.suppress(OSError, ProtocolError):
            found.append(work(line))
        done.put(found)

    for line in lines:
        threading.Thread(target=run, args=(line,), daemon=True).start()
    deadline = time.monotonic() + within_s
    results: list[T] = []
    for _ in lines:
        try:
            results += done.get(timeout=max(0.0, deadline - time.monotonic()))
        except Empty:
            break
    return results
