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
BEGIN = re.compile(rf"^(?P<prefix>.*?){re.escape(HEADING)}[ \t]*$", re.MULTILINE)
HARMLESS = re.compile(r"Exception (?:in thread|ignored)\b")


def last_in(text: str) -> str:
    """The last whole Python traceback in a text, or an empty string."""
    text = re.sub(r"\r+$", "", text, flags=re.MULTILINE)
    harmless = ""
    for begin in reversed(list(BEGIN.finditer(text))):
        found = _at(text, begin)
        before = text[: begin.start()].rpartition("\n")[0].rpartition("\n")[2]
        if found and not HARMLESS.search(before):
            return found
        if found and not harmless:
            harmless = f"{before.removeprefix(begin['prefix'])}\n{found}"
    return harmless


def _at(text: str, begin: re.Match[str]) -> str:
    """The traceback with that heading, if it is whole."""
    # What stands before the heading may also be a progress bar that nobody ended.
    for prefix in dict.fromkeys((begin["prefix"], "")):
        start = re.escape(prefix)
        indented = rf"\n{start}[ \t](?!.*{re.escape(HEADING)}).*"
        # A text of several lines cannot be told from what was printed next, unless indented.
        whole = rf"(?:{indented})+\n{start}[^\W\d][\w.<>]*(?::.*)?$(?:{indented})*"
        if found := re.compile(whole, re.MULTILINE).match(text, begin.end()):
            return HEADING + found[0].replace(f"\n{prefix}", "\n") + "\n"
    return ""
