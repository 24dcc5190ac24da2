"""One connection on the loop: received bytes become frames, sent frames become bytes.

Rules
- `on_ended` is called exactly once, and nothing is called after it. After `close()` nothing
  is called at all.
- `send` never calls back: whatever it finds out (the peer is gone, the peer does not read)
  is told from the loop, later. A peer that has gone is only *noticed* by sending; the end is
  told when everything that it said before is read.
- What a peer does not read is kept up to `OUTPUT_LIMIT`; then the connection ends.
- An owner of many connections gives them `PeerBuffers` (`transport.buffers`), which hear of every
  change in what is held for the peer, and bound it for all of them together.
- An end is clean only if the peer closed in order (FIN) and between two frames. A reset, a
  time-out, half a frame or garbage is not.

How it works: one `recv`, then all whole frames in it; more only where it was full. A frame is sent
at once where nothing is queued; what is queued goes out joined, when the peer reads again.
"""

from __future__ import annotations

import errno
import os
import socket
import struct
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

from msgspec import Struct

from holdfast.runtime.loop import Loop
from holdfast.transport.frames import HANDSHAKE_LIMIT, FrameReader, ProtocolError
from holdfast.transport.handshake import refusal_of

if TYPE_CHECKING:
    from holdfast.transport.buffers import PeerBuffers

RECEIVE_BYTES = 1 << 16
RECEIVED_AT_ONCE = 16
"""How often one connection is read before the others have their turn."""
OUTPUT_LIMIT = 4 << 20
KEEPALIVE_IDLE_S = 15
KEEPALIVE_INTERVAL_S = 5
KEEPALIVE_PROBES = 3


class Stream(Protocol):
    """A non-blocking stream of bytes: a socket, or TLS on one."""

    def fileno(self) -> int: ...
    def recv(self, size: int, /) -> bytes: ...
    def send(self, data: bytes | memoryview, /) -> int: ...
    def shutdown(self, how: int, /) -> None: ...
    def close(self) -> None: ...


class Ending(Struct, frozen=True):
    """How a connection ended. `kind` is a word to count by; empty for what is no offence."""

    reason: str
    clean: bool = False
    kind: str = ""


CLOSED = Ending("the connection was closed", clean=True)
CUT_SHORT = Ending("the connection was closed in the middle of a message", kind="garbage")
NOT_READING = Ending("it did not read what was sent to it", kind="slow reader")


def words_for(error: OSError) -> str:
    """A connection's error in words, for people."""
    if error.errno in (errno.ECONNRESET, errno.EPIPE):
        return "the connection was reset"
    if error.errno == errno.ETIMEDOUT:
        return "the connection timed out"
    if error.errno == errno.ECONNREFUSED:
        return "refused the connection"
    return f"the connection failed ({error.strerror or error})"


def configure(sock: socket.socket) -> None:
    """Send at once, and notice a silent peer. On a listener, for all that it accepts."""
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, KEEPALIVE_IDLE_S)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, KEEPALIVE_INTERVAL_S)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, KEEPALIVE_PROBES)
    # Unanswered data must not keep a connection longer than silence does.
    silence_ms = 1000 * (KEEPALIVE_IDLE_S + KEEPALIVE_INTERVAL_S * KEEPALIVE_PROBES)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, silence_ms)


class FramedConnection:
    """A framed stream. Its owner changes `on_frame` as the conversation goes on."""

    __slots__ = (
        "_loop",
        "_queue",
        "_queued_bytes",
        "_reader",
        "_send_failure",
        "_stream",
        "_unfinished_bytes",
        "address",
        "buffers",
        "is_open",
        "is_paused",
        "kind",
        "node",
        "on_ended",
        "on_frame",
        "state",
    )

    def __init__(
        self,
        loop: Loop,
        stream: Stream,
        on_frame: Callable[[FramedConnection, bytes | bytearray], None],
        on_ended: Callable[[FramedConnection, Ending], None],
    ) -> None:
        self._loop = loop
        self._stream = stream
        self._reader = FrameReader(HANDSHAKE_LIMIT)
        self._queue: list[bytes | memoryview] | None = None
        self._queued_bytes = 0
        self._unfinished_bytes = 0
        self._send_failure = ""
        self.buffers: PeerBuffers | None = None
        self.address = ""
        """Of the peer, as far as its owner wants to know it."""
        self.is_paused = False
        self.is_open = True
        self.on_frame = on_frame
        self.on_ended = on_ended
        self.node = ""
        self.kind = ""
        self.state: Any = None
        """Whatever the owner has to remember about this stage of the conversation."""
        loop.add_reader(stream.fileno(), self._on_readable)

    def allow_frames_up_to(self, limit: int) -> None:
        self._reader.limit = limit

    # Receiving.

    def _on_readable(self) -> None:
        # A peer with much to say must not seem silent because its heartbeat is at the end.
        for _ in range(RECEIVED_AT_ONCE):
            received = self._receive()
            if received:
                self._take_frames(received)
            if len(received) < RECEIVE_BYTES or not self.is_open or self.is_paused:
                return

    def pause(self) -> None:
        """Read no more until `resume`: what comes stays with the kernel, and then with the peer."""
        if self.is_open and not self.is_paused:
            self.is_paused = True
            self._loop.remove_reader(self._stream.fileno())

    def resume(self) -> None:
        if self.is_open and self.is_paused:
            self.is_paused = False
            self._loop.add_reader(self._stream.fileno(), self._on_readable)

    def _receive(self) -> bytes:
        """Received bytes, if any. Ends the connection where the peer has."""
        try:
            received = self._stream.recv(RECEIVE_BYTES)
        except (BlockingIOError, InterruptedError):
            return b""
        except OSError as error:
            self._end(Ending(words_for(error)))
            return b""
        if received:
            return received
        if self._send_failure:
            self._end(Ending(self._send_failure))
        else:
            self._end(CLOSED if self._reader.is_between_frames else CUT_SHORT)
        return b""

    def _take_frames(self, received: bytes) -> None:
        reader, is_new = self._reader, self._unfinished_bytes == 0
        try:
            reader.feed(received)
            while self.is_open:
                payload = reader.take()
                if payload is None:
                    self._note_unfinished(reader.unfinished_bytes, is_new)
                    return
                is_new = True
                self.on_frame(self, payload)
        except ProtocolError as error:
            self.refuse(error)

    def _note_unfinished(self, size: int, is_new: bool) -> None:
        if size != self._unfinished_bytes or (size and is_new):
            self._unfinished_bytes = size
            if self.buffers is not None:
                self.buffers.receiving(self, size, is_new)

    # Sending.

    def send(self, frame: bytes) -> None:
        """Send a frame, or queue it behind what the peer has not read yet."""
        if not self.is_open or self._send_failure:
            return
        if self._queue is not None:
            self._enqueue(frame)
            return
        try:
            sent = self._stream.send(frame)
        except (BlockingIOError, InterruptedError):
            sent = 0
        except OSError as error:
            self._send_failure = words_for(error)
            return
        if sent < len(frame):
            self._queue = []
            self._loop.add_writer(self._stream.fileno(), self._on_writable)
            self._enqueue(memoryview(frame)[sent:])

    def _enqueue(self, data: bytes | memoryview) -> None:
        assert self._queue is not None
        self._queue.append(data)
        self._note_unread(self._queued_bytes + len(data))
        if self._queued_bytes > OUTPUT_LIMIT:
            self.give_up_sending()

    def give_up_sending(self) -> None:
        """The peer does not read: forget what waits for it, and end, but not from within this."""
        if self.is_open and self._queue is not None:
            self._stop_sending(NOT_READING.reason)
            self._loop.call_soon(self._end, NOT_READING)

    @property
    def has_unread(self) -> bool:
        """Whether something waits here for the peer to read."""
        return self._queue is not None

    def _note_unread(self, size: int) -> None:
        self._queued_bytes = size
        if self.buffers is not None:
            self.buffers.sending(self, size)

    def _on_writable(self) -> None:
        if self._queue is None:
            return
        waiting = b"".join(self._queue)
        try:
            sent = self._stream.send(waiting)
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            self._stop_sending(words_for(error))
            return
        if sent == len(waiting):
            self._stop_sending("")
        else:
            self._queue = [waiting[sent:]]
            self._note_unread(len(waiting) - sent)

    def _stop_sending(self, failure: str) -> None:
        self._queue = None
        self._note_unread(0)
        self._send_failure = failure
        self._loop.remove_writer(self._stream.fileno())

    # Ending.

    def refuse(self, error: ProtocolError) -> None:
        """Tell the peer why, as far as it can still be told, and end. Silent on a tether."""
        if self.is_open and self.kind != "tether" and self._queue is None:
            try:
                self._stream.send(refusal_of(error))
                self._stream.shutdown(socket.SHUT_WR)
                # Closing over unread input resets the connection, and the reason is lost.
                self._stream.recv(RECEIVE_BYTES)
            except OSError:
                pass  # It is going away anyhow, and nothing more is owed to it.
        self._end(Ending(error.reason, kind=error.kind))

    def _end(self, ending: Ending) -> None:
        if self.is_open:
            if self.kind == "tether":
                self.reset()
            else:
                self.close()
            self.on_ended(self, ending)

    def reset(self) -> None:
        """Close so that the peer does not take it for the end of a process.

        A kernel that closes for a dead process sends FIN; this sends RST, even if it closes last.
        """
        if self.is_open and isinstance(self._stream, socket.socket):
            no_lingering = struct.pack("ii", 1, 0)
            self._stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, no_lingering)
        self.close()

    def duplicate(self) -> int:
        """Another descriptor of the same connection, for somebody else to hold."""
        return os.dup(self._stream.fileno())

    def close(self) -> None:
        """Close without telling anyone on this side."""
        if not self.is_open:
            return
        self.is_open = False
        number = self._stream.fileno()
        self._loop.remove_reader(number)
        if self._queue is not None:
            self._loop.remove_writer(number)
            self._queue = None
            self._note_unread(0)
        self._note_unfinished(0, is_new=False)
        self._stream.close()
