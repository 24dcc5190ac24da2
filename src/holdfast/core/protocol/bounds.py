"""Bounds of all outside input: numbers, names and texts of other processes.

Rules
1. A field that another machine, a disk or a register fills has one of these types. They are
   checked where bytes become records, so input that breaks one of them is *garbage*: nothing
   behind the border ever sees it, and only its sender is refused.
2. A float within bounds is finite: no comparison with NaN is true.
3. A bound is far above what an honest sender needs. A text that can grow beyond it by itself is
   cut by its author (`cut`), so that no honest message is ever garbage.
4. Text may hold anything but length; `clean` and `clean_lines` make it fit to be shown. A page
   made of it goes out through `one_line_each`, so that no forgotten part forges a line.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Annotated

from msgspec import Meta

NUMBER_MOST = 2**53
"""The largest integer that every reader of JSON can hold."""
COUNT_MOST = 1_000_000
SLOTS_MOST = 1024
"""Workers of one node."""
NAME_MOST = 512
HOST_MOST = 255
PORT_MOST = 65535
LINE_MOST = 2000
TEXT_MOST = 1 << 17
PACKED_MOST = 1 << 19
"""Half of what a frame holds."""
PATH_MOST = 4096
SECONDS_MOST = 1e15

_SHOWN = r"[^\x00-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff]*"
_NO_SPACE = r"[^\s\x00-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff]*"
_COLOUR = r"\x1b\[[0-9;:]*m"
_PRINTABLE = rf"\A{_SHOWN}\Z"
_WORD = rf"\A{_NO_SPACE}\Z"

Number = Annotated[int, Meta(ge=0, le=NUMBER_MOST)]
"""Counted up, never allocated: rounds, epochs, instances, heartbeats, steps."""
Count = Annotated[int, Meta(ge=0, le=COUNT_MOST)]
"""A number from a node by which memory may be allocated."""
Rank = Annotated[int, Meta(ge=0, le=2**31 - 1)]
"""A worker's rank, or the number of workers."""
Slots = Annotated[int, Meta(ge=1, le=SLOTS_MOST)]
Port = Annotated[int, Meta(ge=0, le=PORT_MOST)]
SignalNumber = Annotated[int, Meta(ge=1, le=64)]
ExitCode = Annotated[int, Meta(ge=-(2**31), le=2**31 - 1)]
"""A worker's exit code, which a foreign caller may have set: not only a kernel's."""
ExitStatusOfJob = Annotated[int, Meta(ge=0, le=255)]
Patience = Annotated[float, Meta(ge=0.0, le=1e7)]
"""A wait in seconds; never NaN or infinite."""
Seconds = Annotated[float, Meta(ge=-SECONDS_MOST, le=SECONDS_MOST)]
"""A moment or a duration; never NaN or infinite."""

Name = Annotated[str, Meta(min_length=1, max_length=NAME_MOST, pattern=_PRINTABLE)]
"""A node's identity: compared, and shown to people."""
NameOrNone = Annotated[str, Meta(max_length=NAME_MOST, pattern=_PRINTABLE)]
"""A name, or empty; a role, or a topology key."""
Host = Annotated[str, Meta(max_length=HOST_MOST, pattern=_PRINTABLE)]
Address = Annotated[str, Meta(max_length=HOST_MOST, pattern=_WORD)]
"""A host name or a numeric address; empty where it is filled in later."""
Path = Annotated[str, Meta(max_length=PATH_MOST)]
Line = Annotated[str, Meta(max_length=LINE_MOST)]
"""A reason, in a sentence or two. Shown only after `clean`."""
Text = Annotated[str, Meta(max_length=TEXT_MOST)]
"""A program's output: many lines. Shown only after `clean_lines`."""
Packed = Annotated[bytes, Meta(max_length=PACKED_MOST)]
"""Passed on unread; its reader has bounds of its own."""


def cut(text: str, most: int = LINE_MOST) -> str:
    """The beginning of a text, within the bound, with a sign where text was cut."""
    return text if len(text) <= most else text[: most - 1] + "…"


def clean(text: str) -> str:
    """A text from outside on one line, without anything that moves a cursor or hides a word."""
    return text if text.isprintable() else _shown(" ".join(text.split()))


def clean_lines(text: str) -> str:
    """The same for many lines: each stays one, with its indentation."""
    lines = text.expandtabs().splitlines()
    return "\n".join(line if line.isprintable() else _shown(line) for line in lines)


def one_line_each(lines: Iterable[str]) -> str:
    """A page of these lines, each one of which stays one, with its indentation."""
    return "".join(f"{_kept_on_its_line(line)}\n" for line in lines)


def _kept_on_its_line(line: str) -> str:
    if line.isprintable():
        return line
    indent = len(line) - len(line.lstrip(" "))
    return f"{' ' * indent}{clean(line)}"


def _shown(line: str) -> str:
    """Colours are left out; any other control character is replaced visibly."""
    plain = re.sub(_COLOUR, "", line)
    return "".join(one if one.isprintable() else "\N{REPLACEMENT CHARACTER}" for one in plain)
