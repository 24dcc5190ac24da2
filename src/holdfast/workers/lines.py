"""What is done with the lines of a stream: show them, pick some, remember the last.

Rules
- No line is handled one by one, unless a filter matches in its block: blocks are cut at
  their last newline, and prefixes come in with one `replace`.
- Memory is bounded: the start of a line is held up to `LINE_BYTES_MAX`, then the line is
  broken by force; the tail has a fixed size.
- Any byte may come, in blocks of any size.
"""

from __future__ import annotations

from holdfast.workers.console import Console
from holdfast.workers.event_loop import Cancellable, Loop
from holdfast.workers.log_files import FilterFiles

LINE_BYTES_MAX = 16 * 1024 * 1024
TAIL_BYTES = 64 * 1024

_NEWLINE = 0x0A
_SILENCE_S = 0.05
_TAIL_LINE_LENGTH_MAX = 2000


class LineCutter:
    """Cuts a stream of blocks at its last newline and holds the rest back.

    A line that grows beyond `LINE_BYTES_MAX` is broken by force.
    """

    def __init__(self) -> None:
        self._held: list[bytes] = []
        self.held_bytes = 0

    def feed(self, block: bytes) -> bytes:
        """Return the whole lines that are complete now, or nothing."""
        cut = block.rfind(b"\n") + 1
        if cut == 0:
            self._hold(block)
            return self.take() + b"\n" if self.held_bytes > LINE_BYTES_MAX else b""
        if cut == len(block) and not self._held:
            return block
        self._hold(block[:cut])
        whole = self.take()
        self._hold(block[cut:])
        return whole

    def take(self) -> bytes:
        """Return what is held, which is the start of a line, and hold it no longer."""
        held = b"".join(self._held)
        self._held.clear()
        self.held_bytes = 0
        return held

    def _hold(self, part: bytes) -> None:
        if part:
            self._held.append(part)
            self.held_bytes += len(part)


class LineView:
    """Shows one stream on the console in whole lines, each with the prefix.

    On a terminal the start of a line is shown too, once its writer has paused: a prompt or a
    progress bar may never send its newline. If another source has written since, the rest
    goes on a new line, with a prefix of its own.
    """

    def __init__(self, console: Console, fd: int, prefix: bytes, loop: Loop) -> None:
        self._console = console
        self._fd = fd
        self._prefix = prefix
        self._loop = loop
        self._cutter = LineCutter()
        self._line_shown = False
        self._pause: Cancellable | None = None

    def feed(self, block: bytes) -> None:
        whole = self._cutter.feed(block)
        if whole:
            self._show(whole)
        if self._console.terminal(self._fd) is not None:
            self._cancel_pause()
            if self._cutter.held_bytes:
                self._pause = self._loop.call_later(_SILENCE_S, self.flush)

    def flush(self) -> None:
        """Show what is held, though its line is not complete."""
        self._cancel_pause()
        if self._cutter.held_bytes:
            self._show(self._cutter.take())

    def _show(self, text: bytes) -> None:
        goes_on = self._line_shown and self._console.continues(self._fd, self)
        if self._line_shown and not goes_on and text[0] == _NEWLINE:
            text = text[1:]  # the newline that the console put in between was this one
        self._line_shown = bool(text) and text[-1] != _NEWLINE
        self._console.write(self._fd, self._prefixed(text, goes_on), self)

    def _prefixed(self, text: bytes, goes_on: bool) -> bytes:
        if not self._prefix or not text:
            return text
        start = b"" if goes_on else self._prefix
        if text[-1] != _NEWLINE:
            return start + text.replace(b"\n", b"\n" + self._prefix)
        return b"".join((start, text[:-1].replace(b"\n", b"\n" + self._prefix), b"\n"))

    def _cancel_pause(self) -> None:
        if self._pause is not None:
            self._pause.cancel()
            self._pause = None


class LineFilter:
    """Copies the lines of one stream that contain one of the needles."""

    def __init__(
        self, number: int, needles: tuple[bytes, ...], prefix: bytes, files: FilterFiles
    ) -> None:
        self._number = number
        self._needles = needles
        self._prefix = prefix
        self._files = files
        self._cutter = LineCutter()

    def feed(self, block: bytes) -> None:
        self._copy_matches(self._cutter.feed(block))

    def flush(self) -> None:
        if self._cutter.held_bytes:
            self._copy_matches(self._cutter.take() + b"\n")

    def _copy_matches(self, whole: bytes) -> None:
        if not any(needle in whole for needle in self._needles):
            return
        matching = [
            b"".join((self._prefix, line, b"\n"))
            for line in whole[:-1].split(b"\n")
            if any(needle in line for needle in self._needles)
        ]
        self._files.append(self._number, b"".join(matching))


class Tail:
    """The last part of a stream: bounded, cheap to feed."""

    def __init__(self) -> None:
        self._bytes = bytearray()

    def feed(self, block: bytes) -> None:
        self._bytes += block[-TAIL_BYTES:]
        if len(self._bytes) > 2 * TAIL_BYTES:
            del self._bytes[:-TAIL_BYTES]

    def read(self) -> bytes:
        return bytes(self._bytes[-TAIL_BYTES:])


def last_lines(tail: bytes, max_lines: int) -> str:
    """The last lines of `tail`, as a terminal would have left them on the screen."""
    lines = tail.decode(errors="replace").rstrip("\n").split("\n")[-max_lines:]
    return "\n".join(map(_as_left_on_screen, lines))


def _as_left_on_screen(line: str) -> str:
    """What a progress bar shows last, and of a very long line its end."""
    last = line.rstrip("\r").rpartition("\r")[2]
    if len(last) <= _TAIL_LINE_LENGTH_MAX:
        return last
    return "…" + last[-_TAIL_LINE_LENGTH_MAX:]
