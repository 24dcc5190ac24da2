"""One line below all output on a terminal, which is out of the way of whatever is written.

Rules
1. Before anything else is written, the line is taken away, and the cursor is where it was: whatever
   is written finds the terminal as if there were no such line.
2. It is drawn only where that cannot disturb: below a line that has ended, or below an open one
   that is plain text (a progress bar), between whole characters and whole control sequences.
3. Who moves the cursor (several bars below each other, a program that fills the screen) may use
   the rows below: from then on the line is not drawn, until `begin_anew`.
4. A terminal that got narrower may have wrapped the line: the cursor waits at its beginning, or
   above it, so that all from there on can be cleared.

Here are only bytes: who draws, and when, is for `console` and `agent.live_line`.
"""

from __future__ import annotations

import re
from typing import Literal

_SEQUENCE = re.compile(rb"\x1b\[[0-9;:]*[mK]")
"""Colours, and clearing what is left of a line: these leave the cursor where it is."""
_UNFINISHED = re.compile(rb"\x1b(\[[0-9;:?]*)?\Z")

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
        self._carried = unfinished[0] if unfinished else _cut_character(seen)
        if b"\x1b" in seen or b"\x0b" in seen or b"\x0c" in seen:
            whole = seen[: len(seen) - len(self._carried)]
            self._moves = bool(_MOVES_PLAINLY.search(_SEQUENCE.sub(b"", whole)))


_MOVES_PLAINLY = re.compile(rb"[\x1b\x0b\x0c]")


def _cut_character(data: bytes) -> bytes:
    """The bytes at the end that begin a character of UTF-8 and do not end it."""
    for back in range(1, min(4, len(data)) + 1):
        byte = data[-back]
        if byte < 0x80:
            return b""
        if byte >= 0xC0:
            wanted = 2 if byte < 0xE0 else 3 if byte < 0xF0 else 4
            return data[-back:] if back < wanted else b""
    return b""
