"""Messages on the private sockets between agent, spawner and zygote.

A frame is the length of its body and the number of its descriptors, four bytes each, then
the body, a marshalled message (`private_messages.py`); descriptors travel with the first byte of
their frame or, where they are more than the kernel takes at once, with its first bytes.

`marshal` would be wrong on a network, or between versions of Python. Here both ends are our
own, run by the same interpreter, and inherited, never named, so nobody else can speak; and it
needs no import, where `json` would add several milliseconds to each of three starts.
Standard library only: the spawner and the zygote load this file by path.
"""

from __future__ import annotations

import array
import os
import socket
import struct
from collections import deque

from holdfast.processes.stdlib_only.private_messages import Message

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

STORE = "store"
"""The name of the one process in requests that is no worker: it serves PyTorch's store."""
ADMIN_SESSION = "visit"
"""What another program asks there that has requests about the job (`admin.sessions`)."""
HEADER = struct.Struct("!II")
MAX_DESCRIPTORS = 240
READ_SIZE = 1 << 18


class PrivateConnection:
    """One end of such a socket. `receive` blocks only if nothing is readable."""

    def __init__(self, sock: socket.socket) -> None:
        self.socket = sock
        self._incoming = bytearray()
        self._descriptors: deque[int] = deque()
        self._outgoing: deque[tuple[memoryview, list[int]]] = deque()
        self.close_sent: Callable[[int], None] = os.close
        """How a descriptor is closed that was sent: to close a file may take a disk a while."""

    def queue(self, message: Message, descriptors: list[int] | None = None) -> None:
        """Add a frame to what `flush` sends. Descriptors are closed once they have been sent."""
        body = message.to_bytes()
        attached = descriptors or []
        frame = HEADER.pack(len(body), len(attached)) + body
        self._outgoing.append((memoryview(frame), attached))

    def flush(self) -> bool:
        """Send what can be sent without waiting; whether all is gone."""
        return self._send(socket.MSG_DONTWAIT)

    def flush_blocking(self) -> None:
        self._send(0)

    def _send(self, flags: int) -> bool:
        while self._outgoing:
            frame, descriptors = self._outgoing[0]
            now, later = descriptors[:MAX_DESCRIPTORS], descriptors[MAX_DESCRIPTORS:]
            ancillary = []
            if now:
                packed = array.array("i", now)
                ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, packed)]
            try:
                part = frame[:1] if later else frame
                sent = self.socket.sendmsg([part], ancillary, flags | socket.MSG_NOSIGNAL)
            except BlockingIOError:
                return False
            self._close_sent(now)
            if sent == len(frame):
                self._outgoing.popleft()
            else:
                self._outgoing[0] = (frame[sent:], later)
        return True

    def close(self) -> None:
        """Close the socket, and the descriptors that were never sent or handed out."""
        for _, descriptors in self._outgoing:
            self._close_sent(descriptors)
        self._outgoing.clear()
        while self._descriptors:
            os.close(self._descriptors.popleft())
        self.socket.close()

    def _close_sent(self, descriptors: list[int]) -> None:
        for descriptor in descriptors:
            self.close_sent(descriptor)

    def receive(self) -> list[tuple[Message, list[int]]]:
        """All complete frames after one read; raises EOFError when the other end is gone."""
        space = socket.CMSG_SPACE(MAX_DESCRIPTORS * array.array("i").itemsize)
        data, ancillary, _, _ = self.socket.recvmsg(READ_SIZE, space, socket.MSG_CMSG_CLOEXEC)
        for level, kind, payload in ancillary:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                received = array.array("i")
                received.frombytes(payload[: len(payload) - len(payload) % received.itemsize])
                self._descriptors.extend(received)
        if not data:
            raise EOFError
        self._incoming += data
        return self._complete_frames()

    def _complete_frames(self) -> list[tuple[Message, list[int]]]:
        messages = []
        while len(self._incoming) >= HEADER.size:
            length, attached = HEADER.unpack_from(self._incoming)
            end = HEADER.size + length
            if len(self._incoming) < end:
                break
            body = bytes(self._incoming[HEADER.size : end])
            del self._incoming[:end]
            descriptors = [self._descriptors.popleft() for _ in range(attached)]
            messages.append((Message.from_bytes(body), descriptors))
        return messages
