"""The named pipe through which workers ask for timers, as PyTorch's file timer does.

Rules
- A request is one line of JSON, short enough that the pipe takes it whole: requests of several
  workers are never mixed up. A line that means nothing is no request.
- The pipe can be opened and written by this user only: a request ends processes.

The server of the API (`holdfast.elastic.timer`) and the agent of `holdfast run`
(`processes.monitoring.file_timer`) both read it.
"""

from __future__ import annotations

import os
from typing import Annotated

import msgspec

LINE_LIMIT = 1 << 16


class TimerLine(msgspec.Struct):
    """A request as it is written: until when, in seconds since 1970; below 0 gives it back."""

    pid: Annotated[int, msgspec.Meta(ge=-(1 << 31), lt=1 << 31)]
    scope_id: str
    expiration_time: float
    signal: Annotated[int, msgspec.Meta(ge=-(1 << 31), le=64)]


_lines = msgspec.json.Decoder(TimerLine)
"""Made here, in one thread: msgspec crashes if two threads first meet a type at the same time."""


def read_line(line: bytes) -> TimerLine:
    """Raises `msgspec.DecodeError` for what is no request."""
    return _lines.decode(line)


def make_pipe(path: str) -> None:
    """In place of whatever was there."""
    remove_pipe(path)
    os.mkfifo(path, 0o600)


def remove_pipe(path: str) -> None:
    try:
        os.unlink(path)
    except FileNotFoundError:
        pass  # Nothing there is what is wanted.


class TimerPipe:
    """The reading end."""

    def __init__(self, path: str) -> None:
        # Opened for writing too: so there always is a writer, and never an end of the file.
        self.descriptor = os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        self._rest = b""

    def lines(self) -> list[bytes]:
        """What is there to read, without waiting."""
        read = bytearray(self._rest)
        try:
            while received := os.read(self.descriptor, 1 << 16):
                read += received
        except BlockingIOError:
            pass  # All is read.
        *lines, self._rest = bytes(read).split(b"\n")
        if len(self._rest) > LINE_LIMIT:
            self._rest = b""
        return lines

    def close(self) -> None:
        os.close(self.descriptor)
