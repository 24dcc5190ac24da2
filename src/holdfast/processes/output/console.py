"""The agent's own stdout and stderr, written without ever blocking the loop.

Rules
- The flags of an inherited descriptor are never changed: its description is shared with the
  shell and with every other program on that terminal or pipe.
- What is written to one destination appears there in the order of the calls, also when
  stdout and stderr are the same terminal, pipe or file. What one source writes never continues a
  line that another source began.
- A destination that is gone swallows what is meant for it; nobody else is disturbed.

Behind each distinct destination stands an `Outlet` with one queue. How it transmits depends on
what is there:

    pipe, terminal        opened a second time through /proc, for a description of our own
                          that does not block
      … if that is refused  the inherited descriptor, a little at a time, when it has room
    socket                `send` with MSG_DONTWAIT
    file                  the inherited descriptor, since a second description would have its own
                          offset; in a lane for disk work, where there is one (`use_lane`)
    other device          the inherited descriptor: these wait for nobody

What does not go out at once is queued without a limit. Sources that can wait (workers' pipes) ask
`congested` before they bring more; those that cannot (the last words of a dead worker) just write.
A console that has taken nothing for `UNREAD_S` while so much waits counts as unread. A source whose
text is in a file too then need not wait: it tells how much it leaves out (`leave_out`), and that is
said in its place once the queue has become short again.

The `Footer` is one line below all output on a terminal. Before anything else is written it is taken
away. It is drawn only below a line that has ended, or below an open one that is plain text (a
progress bar), between whole characters and control sequences, and not any more once somebody has
moved the cursor, until `begin_anew`. A terminal that got narrower may have wrapped it: the cursor
waits at its beginning, or above it, so that all from there on can be cleared.
"""

from __future__ import annotations

import errno
import os
import re
import select
import socket
import stat
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from holdfast.core.policy.config import Output
from holdfast.core.protocol.bounds import clean
from holdfast.runtime.loop import Cancellable, Loop

if TYPE_CHECKING:
    from holdfast.processes.output.log_files import Lane

CONGESTED_BYTES = 4 * 1024 * 1024
CLEAR_BYTES = 1024 * 1024
UNREAD_S = 2.0

_FLUSH_BYTES_PER_TURN = 1024 * 1024
_JOIN_BYTES_MAX = 64 * 1024
_GATED_WRITE_BYTES = 4096
_NO_SPACE = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_NEWLINE = 0x0A

Transmit = Callable[[memoryview], int]


class Console:
    """The agent's stdout and stderr. Never blocks the loop."""

    def __init__(self, loop: Loop, descriptors: tuple[int, int] = (1, 2)) -> None:
        by_destination: dict[tuple[int, ...], Outlet] = {}
        self._outlets: dict[int, Outlet] = {}
        for number, descriptor in zip((1, 2), descriptors, strict=True):
            key = _destination(descriptor)
            if key not in by_destination:
                by_destination[key] = Outlet(loop, descriptor)
            self._outlets[number] = by_destination[key]

    def outlet(self, fd: int) -> Outlet:
        """Where stdout (1) or stderr (2) leads to: one and the same if that is one place."""
        return self._outlets[fd]

    def use_lane(self, lane: Lane) -> None:
        """Where stdout or stderr is a file, write to it there: a disk may not answer."""
        for outlet in set(self._outlets.values()):
            outlet.use_lane(lane)

    def write(self, fd: int, data: bytes, source: object = None) -> None:
        """Write `data` to stdout (1) or stderr (2), now or as soon as there is room.

        `source` says whose line it is; the agent's own lines have none.
        """
        self._outlets[fd].write(data, source)

    def pending(self) -> bool:
        """Whether something that was written is still queued."""
        return any(outlet.queued_bytes for outlet in self._outlets.values())

    def close(self) -> None:
        """Give up what is still queued and release what was opened. Idempotent."""
        for outlet in self._outlets.values():
            outlet.close()


class Outlet:
    """One destination, and what waits to be written there."""

    def __init__(self, loop: Loop, descriptor: int) -> None:
        self.descriptor = descriptor
        self.is_terminal = os.isatty(descriptor)
        self.queued_bytes = 0
        self.line_open = False
        self.source: object = None
        self.unread_since: float | None = None
        self.footer: Footer | None = None
        """The line below all that is written."""
        self._left_out_bytes = 0
        self._left_out_of: set[Path] = set()
        self._sent_bytes = 0
        self._judging: Cancellable | None = None
        """The next look at whether anybody reads."""
        self._loop = loop
        self._waiting: deque[bytearray] = deque()
        self._head_sent = 0
        self._gone = self._is_file = False
        self._on_clear: list[Callable[[], None]] = []
        self._own: socket.socket | int | None = None
        """What we opened ourselves, and close again."""
        self._transmit = self._choose_way()

    @property
    def congested(self) -> bool:
        """Whether so much is queued that sources should wait, if they can."""
        return self.queued_bytes > CONGESTED_BYTES

    @property
    def is_unread(self) -> bool:
        """Whether so much is queued, and nobody takes any of it."""
        return self.unread_since is not None

    def continues(self, source: object) -> bool:
        """Whether what `source` writes next would go on with a line of its own."""
        return self.line_open and self.source is source

    def write(self, data: bytes, source: object) -> None:
        """Write it now, or as soon as there is room."""
        if not data:
            return
        if self.line_open and source is not self.source:
            data = b"\n" + data
        self.source = source
        self.line_open = data[-1] != _NEWLINE
        if self.footer is not None:
            data = self.footer.around(data, self.line_open)
        self._put(data)

    def show_footer(self, text: bytes) -> None:
        """Have the line below say this, unless the terminal has enough to do."""
        if self.footer is not None and not self._waiting:
            self._put(self.footer.show(text, self.line_open))

    def hide_footer(self) -> None:
        """Take that line away, for good."""
        if self.footer is not None:
            self._put(self.footer.hide())
            self.footer = None

    def _put(self, data: bytes) -> None:
        if self._waiting:
            self._queue(data)
        elif not self._gone:
            self._queue(self._send(memoryview(data)))

    def use_lane(self, lane: Lane) -> None:
        def transmit(view: memoryview) -> int:
            data = bytes(view)
            self.queued_bytes += len(data)
            if self.congested:
                self._judge_later()
            lane.do(partial(_write_all, self.descriptor, data), self._on_written, len(data))
            return len(data)

        if self._is_file:
            self._transmit = transmit

    def _on_written(self, done: tuple[int, int, OSError | None]) -> None:
        size, written, error = done
        if self._gone:
            return
        self.queued_bytes -= size
        self._sent_bytes += written
        if error is not None and error.errno not in _NO_SPACE:
            self._give_up()
        else:
            self._tell_waiters()

    def when_clear(self, callback: Callable[[], None]) -> None:
        """Call `callback` once, from the loop, when the congestion is over or nobody reads."""
        if self.congested:
            self._on_clear.append(callback)
        else:
            self._loop.call_soon(callback)

    def leave_out(self, count: int, kept_in: Path) -> None:
        """So many bytes are not brought here, because it is unread; the file has them."""
        self._left_out_bytes += count
        self._left_out_of.add(kept_in)

    def close(self) -> None:
        self._give_up()
        if self._judging is not None:
            self._judging.cancel()
        if isinstance(self._own, int):
            os.close(self._own)
        elif self._own is not None:
            self._own.close()
        self._own = None

    def _choose_way(self) -> Transmit:
        try:
            mode = os.fstat(self.descriptor).st_mode
        except OSError:
            self._gone = True  # Closed by our parent: nothing is ever transmitted.
            return len
        if stat.S_ISSOCK(mode):
            self._own = peer = socket.socket(fileno=os.dup(self.descriptor))
            return lambda view: peer.send(view, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
        self._is_file = stat.S_ISREG(mode)
        if not (stat.S_ISFIFO(mode) or self.is_terminal):
            return lambda view: os.write(self.descriptor, view)
        try:
            self._own = own = os.open(
                f"/proc/self/fd/{self.descriptor}", os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY
            )
        except OSError:
            # A terminal or pipe of another user (after `su`), or a pipe without reader.
            return _when_ready(self.descriptor)
        return lambda view: os.write(own, view)

    def _send(self, view: memoryview) -> memoryview:
        """Write what the destination takes now, and return the rest."""
        while view:
            try:
                view = view[self._transmit(view) :]
            except BlockingIOError:
                break
            except OSError as error:
                view = view[:0]
                if error.errno not in _NO_SPACE:
                    self._give_up()
        return view

    def _queue(self, data: bytes | memoryview) -> None:
        if not data:
            return
        if not self._waiting:
            self._loop.add_writer(self._writable_descriptor(), self._flush)
        last = self._waiting[-1] if self._waiting else None
        if last is not None and len(last) + len(data) <= _JOIN_BYTES_MAX:
            last += data
        else:
            self._waiting.append(bytearray(data))
        self.queued_bytes += len(data)
        if self.congested:
            self._judge_later()

    def _flush(self) -> None:
        budget = _FLUSH_BYTES_PER_TURN
        while self._waiting and budget > 0:
            view = memoryview(self._waiting[0])[self._head_sent : self._head_sent + budget]
            rest = self._send(view)
            if self._gone:
                return
            self._forget(len(view) - len(rest))
            budget -= len(view)
            if rest:
                break
        self._tell_waiters()

    def _judge_later(self) -> None:
        if self._judging is None and self.unread_since is None:
            self._judging = self._loop.call_later(UNREAD_S, self._judge, self._sent_bytes)

    def _judge(self, sent_bytes: int) -> None:
        """See whether anything was taken since `sent_bytes` were."""
        self._judging = None
        if self.queued_bytes <= CLEAR_BYTES:
            return
        if self._sent_bytes > sent_bytes:
            self._judge_later()
            return
        self.unread_since = time.monotonic() - UNREAD_S
        self._call_waiters()

    def _be_read_again(self, unread_since: float) -> None:
        """Say what was left out, where it would have stood."""
        self.unread_since = None
        if self._left_out_bytes:
            text = (
                f"holdfast: the console was not read for {time.monotonic() - unread_since:.0f} s: "
                f"{_in_words(self._left_out_bytes)} left out here; "
                f"everything is in {os.path.commonpath(map(os.path.abspath, self._left_out_of))}\n"
            )
            self._left_out_bytes = 0
            self._left_out_of.clear()
            self.write(os.fsencode(text), None)

    def _forget(self, sent: int) -> None:
        self.queued_bytes -= sent
        self._sent_bytes += sent
        self._head_sent += sent
        if self._head_sent == len(self._waiting[0]):
            self._waiting.popleft()
            self._head_sent = 0

    def _tell_waiters(self) -> None:
        if self.queued_bytes <= CLEAR_BYTES:
            if self.unread_since is not None:
                self._be_read_again(self.unread_since)
            self._call_waiters()
        if not self._waiting:
            self._loop.remove_writer(self._writable_descriptor())

    def _call_waiters(self) -> None:
        for callback in self._on_clear:
            self._loop.call_soon(callback)
        self._on_clear.clear()

    def _give_up(self) -> None:
        """The destination takes nothing more: drop what waits, and let nobody wait for it."""
        self._gone = True
        self._waiting.clear()
        self._head_sent = self.queued_bytes = 0
        self._tell_waiters()

    def _writable_descriptor(self) -> int:
        if isinstance(self._own, socket.socket):
            return self._own.fileno()
        return self.descriptor if self._own is None else self._own


def _destination(descriptor: int) -> tuple[int, ...]:
    """The same for two descriptors that lead to the same place."""
    try:
        status = os.fstat(descriptor)
    except OSError:
        return (descriptor,)
    return (status.st_dev, status.st_ino, status.st_rdev)


def _in_words(count: int) -> str:
    """A number of bytes, as people say it."""
    return f"{count / 1e6:.1f} MB" if count >= 100_000 else f"{count / 1e3:.1f} kB"


def _write_all(descriptor: int, data: bytes) -> tuple[int, int, OSError | None]:
    """How much there was to write, how much was written, and what ended it. Waits for the disk."""
    written = 0
    try:
        while written < len(data):
            written += os.write(descriptor, data[written:])
    except OSError as error:
        return len(data), written, error
    return len(data), written, None


def _when_ready(descriptor: int) -> Transmit:
    """Write through a descriptor that blocks, only when and as much as it has room for."""
    poll = select.poll()
    poll.register(descriptor, select.POLLOUT)

    def transmit(view: memoryview) -> int:
        if not poll.poll(0):
            raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
        return os.write(descriptor, view[:_GATED_WRITE_BYTES])

    return transmit


_SEQUENCE = re.compile(rb"\x1b\[[0-9;:]*[mK]")
"""Colours, and clearing what is left of a line: these leave the cursor where it is."""
_MOVES_PLAINLY = re.compile(rb"[\x1b\x0b\x0c]")
_UNFINISHED = re.compile(
    rb"(\x1b(\[[0-9;:?]*)?|[\xc0-\xff]|[\xe0-\xff][\x80-\xbf]|[\xf0-\xff][\x80-\xbf]{2})\Z"
)
"""The beginning of a control sequence, or of a character of UTF-8."""

_CLEAR_HERE = b"\x1b[J"
_CLEAR_BELOW = b"\x1b7\x1b[B\r\x1b[J\x1b8"
_GO_BELOW = b"\x1bD\x1b[A\x1b7\x1b[B\r\x1b[2K"
"""A row below is made if there is none, without leaving the column; then down to it."""
_COME_BACK = b"\x1b8"


class Footer:
    """The line, and what is known of the terminal above it."""

    def __init__(self) -> None:
        self._text = b""
        self._shown: Literal["", "here", "below"] = ""
        self._moves = False
        self._carried = b""
        """The beginning of a control sequence, or of a character, whose end is to come."""

    def around(self, data: bytes, line_open: bool) -> bytes:
        """What to write for `data`, so that the line stays below it."""
        taken_away = self._take_away()
        self._look(data)
        return taken_away + data + self._draw(line_open)

    def show(self, text: bytes, line_open: bool) -> bytes:
        """What to write so that the line says this from now on."""
        if text == self._text and self._shown:
            return b""
        taken_away = self._take_away()
        self._text = text
        return taken_away + self._draw(line_open)

    def hide(self) -> bytes:
        """What to write so that there is no such line any more."""
        self._text = b""
        return self._take_away()

    def begin_anew(self) -> None:
        """The process that moved the cursor is gone."""
        self._moves = False
        self._carried = b""

    def _take_away(self) -> bytes:
        shown, self._shown = self._shown, ""
        if not shown:
            return b""
        return _CLEAR_HERE if shown == "here" else _CLEAR_BELOW

    def _draw(self, line_open: bool) -> bytes:
        if not self._text or self._moves or self._carried:
            return b""
        self._shown = "below" if line_open else "here"
        if line_open:
            return _GO_BELOW + self._text + _COME_BACK
        return self._text + b"\r"

    def _look(self, data: bytes) -> None:
        """See whether the cursor is moved, and whether all that was begun is whole."""
        if self._moves:
            return
        seen = self._carried + data
        unfinished = _UNFINISHED.search(seen)
        self._carried = unfinished[0] if unfinished else b""
        if b"\x1b" in seen or b"\x0b" in seen or b"\x0c" in seen:
            whole = seen[: len(seen) - len(self._carried)]
            self._moves = bool(_MOVES_PLAINLY.search(_SEQUENCE.sub(b"", whole)))


NAME = "holdfast: "


def stamp(output: Output) -> str:
    """What stands before a line of ours."""
    if not output.timestamps:
        return ""
    seconds, milliseconds = divmod(round(time.time() * 1000), 1000)
    return f"{time.strftime('%H:%M:%S', time.localtime(seconds))}.{milliseconds:03d} "


def own_line(output: Output, text: str, node: str = "") -> str:
    """A sentence as a line. Much of what is said comes from other machines: it stays one line."""
    if not output.json:
        return f"{stamp(output)}{NAME}{clean(text)}\n"
    import msgspec

    said = {"at": round(time.time(), 3), "kind": "said", "words": clean(text), "by": node}
    return msgspec.json.encode(said).decode() + "\n"
