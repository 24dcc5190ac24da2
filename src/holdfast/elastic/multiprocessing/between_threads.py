"""The lines between the thread that watches processes and everybody else.

`News` is for other threads of this process: no lock is held while anybody waits or is told, so a
signal handler that comes in between may do the same things again. What they want of the loop they
hand to it (`runtime.thread_calls`). `Reply` is for a worker, `Relay` for a stream that exists in
Python only.
"""

from __future__ import annotations

import codecs
import contextlib
import os
import socket
import time
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import TextIO

from holdfast.elastic.multiprocessing.calls import SIZE
from holdfast.runtime.loop import EventLoop

_READ_BYTES = 65536


class News:
    """Wakes waiting threads: it is worth another look."""

    def __init__(self) -> None:
        self._waiting: list[SimpleQueue[None]] = []

    def tell(self) -> None:
        for queue in self._waiting.copy():
            queue.put(None)

    def wait_for(self, condition: Callable[[], bool], timeout_s: float | None) -> bool:
        """Whether it holds, which is waited for that long at most."""
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        queue: SimpleQueue[None] = SimpleQueue()
        self._waiting.append(queue)  # Before the first look: what comes after it is told.
        try:
            while not condition():
                left = None if deadline is None else max(0.0, deadline - time.monotonic())
                try:
                    queue.get(timeout=left)
                except Empty:
                    return condition()
            return True
        finally:
            self._waiting.remove(queue)


class Reply:
    """The line to one worker: its call goes out, the value of its function comes back."""

    def __init__(self, sock: socket.socket, loop: EventLoop, cargo: bytes) -> None:
        self._socket = sock
        self._socket.setblocking(False)
        self._loop = loop
        self._outgoing = memoryview(cargo)
        self._incoming = bytearray()

    def open(self, returned: Callable[[bytes], None]) -> None:
        """Serve it from now on; `returned` is called at most once, with the pickled value."""
        self._loop.add_reader(self._socket, self._read, returned)
        if self._outgoing:
            self._loop.add_writer(self._socket, self._write)

    def close(self) -> None:
        """Let the worker go. Idempotent."""
        if self._socket.fileno() >= 0:
            self._loop.remove_reader(self._socket)
            self._loop.remove_writer(self._socket)
            self._socket.close()

    def _write(self) -> None:
        try:
            sent = self._socket.send(self._outgoing, socket.MSG_NOSIGNAL)
        except BlockingIOError:
            return
        except OSError:
            sent = len(self._outgoing)  # It is dead, of which we shall hear.
        self._outgoing = self._outgoing[sent:]
        if not self._outgoing:
            self._outgoing = memoryview(b"")  # A part of it, be it empty, keeps all of it.
            self._loop.remove_writer(self._socket)

    def _read(self, returned: Callable[[bytes], None]) -> None:
        try:
            block = self._socket.recv(_READ_BYTES)
        except BlockingIOError:
            return
        except OSError:
            block = b""
        self._incoming += block
        if not block:
            self._loop.remove_reader(self._socket)
        elif len(self._incoming) >= SIZE.size:
            (size,) = SIZE.unpack_from(self._incoming)
            if len(self._incoming) == SIZE.size + size:
                whole, self._incoming = self._incoming, bytearray()
                self._loop.remove_reader(self._socket)
                returned(bytes(memoryview(whole)[SIZE.size :]))


class Relay:
    """A pipe whose other end is printed to a stream that exists in Python only."""

    def __init__(self, stream: TextIO, loop: EventLoop) -> None:
        self._stream = stream
        self._loop = loop
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._end, self.descriptor = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        loop.add_reader(self._end, self._print)

    def _print(self) -> bool:
        """Print what is there; whether there was anything."""
        try:
            block = os.read(self._end, _READ_BYTES)
        except BlockingIOError:
            return False
        # The stream is the user's own, and may raise anything; the processes go on.
        with contextlib.suppress(Exception):
            self._stream.write(self._decoder.decode(block))
            self._stream.flush()
        return bool(block)

    def close(self) -> None:
        while self._print():
            pass
        self._loop.remove_reader(self._end)
        os.close(self._end)
        os.close(self.descriptor)
