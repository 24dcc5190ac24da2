"""What is done with the lines of a stream: show them, pick some.

Rules
- No line is handled one by one, unless a filter matches in its block.
- Memory is bounded: the start of a line is held up to `LINE_BYTES_MAX`.
- What was written is shown within a fraction of a second, whether or not its line has ended.

Whole lines go out at once (`LineView`). The start of a line is held for `HELD_S`, because most
writers bring the rest of it at once. If another source writes after that, it does so on a line of
its own, and the rest follows on a new line with a prefix of its own.

Progress bars (`tqdm`) redraw a line: a carriage return, the new text, no newline. On a line of its
own the return is left out, so that it reads well in `less`; on its own open line it stays, with the
prefix after it, so that a screen shows one bar that moves. No redraw is dropped: how often to draw
is for the program to say.
"""

from __future__ import annotations

import re
from pathlib import Path

from holdfast.processes.output.console import Outlet
from holdfast.processes.output.log_files import LogFile
from holdfast.runtime.loop import Cancellable, Loop

LINE_BYTES_MAX = 16 * 1024 * 1024
HELD_S = 0.2
"""Less would break lines on a busy machine, where a process may have to wait in the midst of one.
"""

_NEWLINE = 0x0A
_RETURNS_BEFORE_TEXT = re.compile(rb"\r+(?!\n)")
_RETURNS_AFTER_NEWLINE = re.compile(rb"(?<=\n)\r+(?!\n)")
_TAIL_LINE_LENGTH_MAX = 2000


class LineCutter:
    """Cuts a stream of blocks at its last newline and holds the rest back."""

    def __init__(self) -> None:
        self._held: list[bytes] = []
        self.held_bytes = 0

    def feed(self, block: bytes) -> bytes:
        """Return the whole lines that are complete now, or nothing."""
        cut = block.rfind(b"\n") + 1
        if cut == 0:
            self._hold(block)
            return b""
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

    def take_but_return(self) -> bytes:
        """Return what is held; a return at its end stays, for what follows may be the newline."""
        held = self.take()
        cut = len(held) - held.endswith(b"\r")
        self._hold(held[cut:])
        return held[:cut]

    def _hold(self, part: bytes) -> None:
        if part:
            self._held.append(part)
            self.held_bytes += len(part)


class LineView:
    """Shows one stream on the console, each line with the prefix and never within another's.

    With a file that has all of it (`kept_in`), nothing more is brought to a console that nobody
    reads, but counted there.
    """

    def __init__(
        self, outlet: Outlet, prefix: bytes, loop: Loop, kept_in: Path | None = None
    ) -> None:
        self._outlet = outlet
        self._prefix = prefix
        self._loop = loop
        self._kept_in = kept_in
        self._cutter = LineCutter()
        self._line_shown = False
        """The start of a line has been shown, and its end has not."""
        self._timer: Cancellable | None = None
        self._is_newer = False
        """The line that is held began after the timer was set: it has not been held for as long."""

    def feed(self, block: bytes) -> None:
        if self._kept_in is not None and self._outlet.is_unread:
            self._leave_out(block, self._kept_in)
            return
        whole = self._cutter.feed(block)
        if whole:
            self._is_newer = True
            self._show(whole)
        if self._cutter.held_bytes > LINE_BYTES_MAX:
            self._show(self._cutter.take_but_return())
        elif self._cutter.held_bytes and self._timer is None:
            self._hold()

    def flush(self) -> None:
        """Show what is held, though its line is not complete: nothing more comes."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._show(self._cutter.take())

    def _hold(self) -> None:
        self._is_newer = False
        self._timer = self._loop.call_later(HELD_S, self._show_held)

    def _show_held(self) -> None:
        """Show the start of a line that has been held for long enough."""
        self._timer = None
        if not self._cutter.held_bytes:
            return
        if self._is_newer or self._outlet.congested:  # Congested: it is we who have paused.
            self._hold()
        else:
            self._show(self._cutter.take_but_return())

    def _show(self, text: bytes) -> None:
        goes_on = self._line_shown and self._outlet.continues(self)
        if self._line_shown and not goes_on and text.startswith((b"\n", b"\r\n")):
            text = text[text.index(b"\n") + 1 :]  # the console put it in between: it was this one
            self._line_shown = False
        if b"\r" in text:
            text = self._redrawn(text, goes_on)
        if text:
            self._line_shown = text[-1] != _NEWLINE
            self._outlet.write(self._prefixed(text, goes_on), self)

    def _redrawn(self, text: bytes, goes_on: bool) -> bytes:
        """Returns at the start of a line left out, the others with the prefix after them."""
        needless = None if goes_on else _RETURNS_BEFORE_TEXT.match(text)
        if needless:
            text = text[needless.end() :]
        if b"\n\r" in text:
            text = _RETURNS_AFTER_NEWLINE.sub(b"", text)
        if not self._prefix:
            return text
        restarted = b"\r" + self._prefix
        text = text.replace(b"\r", restarted).replace(restarted + b"\n", b"\r\n")
        return text.removesuffix(self._prefix) if text.endswith(restarted) else text

    def _prefixed(self, text: bytes, goes_on: bool) -> bytes:
        if not self._prefix:
            return text
        start = b"" if goes_on else self._prefix
        if text[-1] != _NEWLINE:
            return start + text.replace(b"\n", b"\n" + self._prefix)
        return b"".join((start, text[:-1].replace(b"\n", b"\n" + self._prefix), b"\n"))

    def _leave_out(self, block: bytes, kept_in: Path) -> None:
        unseen = self._cutter.held_bytes + len(block)
        self._cutter.take()
        self._line_shown = False
        self._outlet.leave_out(unseen, kept_in)


class LineFilter:
    """Copies the lines of one stream that contain one of the needles."""

    def __init__(self, needles: tuple[bytes, ...], prefix: bytes, file: LogFile) -> None:
        self._needles = needles
        self._prefix = prefix
        self._file = file
        self._cutter = LineCutter()

    def feed(self, block: bytes) -> None:
        self._copy_matches(self._cutter.feed(block))
        if self._cutter.held_bytes > LINE_BYTES_MAX:
            self.flush()

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
        self._file.write(b"".join(matching))


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
