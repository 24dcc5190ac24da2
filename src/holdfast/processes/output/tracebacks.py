"""Finds a Python traceback in what a worker wrote to stderr.

It is for workers in which nothing of ours runs: a command, a Python without our hook.

Rules
1. Only a whole traceback counts: its heading, its frames and the line with the exception.
2. The last one is taken. One that the interpreter printed for a thread or a finaliser, which ends
   no process, is taken only for want of another; the line that says whose it is comes with it.
3. Whatever stands before the heading on its line, and before all lines that follow it too
   (`[rank0]: `), is a prefix, and is taken away.
"""

from __future__ import annotations

import re

HEADING = "Traceback (most recent call last):"
EXCEPTION = re.compile(r"[^\W\d][\w.<>]*(?::|$)")
HARMLESS = re.compile(r"Exception (?:in thread|ignored)\b")


def last_in(text: str) -> str:
    """The last whole Python traceback in a text, or an empty string."""
    lines = [line.rstrip("\r") for line in text.split("\n")]
    harmless = ""
    for first in reversed(range(len(lines))):
        found = _at(lines, first)
        if found and not (first > 0 and HARMLESS.search(lines[first - 1])):
            return found
        if found and not harmless:
            prefix = lines[first].partition(HEADING)[0]
            harmless = f"{lines[first - 1].removeprefix(prefix)}\n{found}"
    return harmless


def _at(lines: list[str], first: int) -> str:
    """The traceback whose heading is in a line, if it is whole."""
    before, found, after = lines[first].partition(HEADING)
    if not found or after.strip():
        return ""
    # What stands before the heading may also be a progress bar that nobody ended.
    for prefix in dict.fromkeys((before, "")):
        end = _end(lines, first, prefix)
        if end:
            rest = [line.removeprefix(prefix) for line in lines[first + 1 : end]]
            return "".join(f"{line}\n" for line in (HEADING, *rest))
    return ""


def _end(lines: list[str], first: int, prefix: str) -> int:
    """Where the frames and the exception after a heading end; 0 where they do not."""
    position = _skip_indented(lines, first + 1, prefix)
    if position == first + 1 or position == len(lines):
        return 0
    line = lines[position]
    if not line.startswith(prefix) or not EXCEPTION.match(line, len(prefix)):
        return 0
    # A text of several lines cannot be told from what was printed next, unless indented.
    return _skip_indented(lines, position + 1, prefix)


def _skip_indented(lines: list[str], position: int, prefix: str) -> int:
    starts = (f"{prefix} ", f"{prefix}\t")
    while position < len(lines) and lines[position].startswith(starts):
        if HEADING in lines[position]:
            break
        position += 1
    return position
