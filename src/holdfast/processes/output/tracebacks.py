"""Finds a Python traceback in what a worker wrote to stderr.

It is for workers in which nothing of ours runs: a command, a Python without our hook.

Rules
1. Only a whole traceback counts: its heading, its frames and the line with the exception.
   One whose beginning or end is not in the text is not there.
2. The last one is taken, together with those it is chained to. One that the interpreter
   printed for a thread or a finaliser, which ends no process, is taken only for want of
   another; the line that says whose it is comes with it.
3. Whatever stands before the heading on its line, and before all lines that follow it too
   (`[rank0]: `), is a prefix, and is taken away.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from msgspec import Struct

HEADING = "Traceback (most recent call last):"
EXCEPTION = re.compile(r"[^\W\d][\w.<>]*(?::|$)")
GROUP_HEADING = re.compile(r"(.*)(  \+ Exception Group )")
GROUP_LINE = re.compile(r"\s+[|+]")
GROUP_END = re.compile(r"\s+\+-+$")
HARMLESS = re.compile(r"Exception (?:in thread|ignored)\b")
CHAIN = re.compile(
    r"During handling of the above exception, another exception occurred:"
    r"|The above exception was the direct cause of the following exception:"
)


class Block(Struct, frozen=True):
    """One traceback: what stands in the text from line `first` up to line `end`."""

    first: int
    end: int
    lines: tuple[str, ...]
    is_harmless: bool = False


def last_in(text: str) -> str:
    """The last whole Python traceback in a text, or an empty string."""
    lines = [line.rstrip("\r") for line in text.split("\n")]
    blocks: list[Block] = []
    for block in _blocks(lines):
        blocks.append(_chained(lines, block, blocks[-1]) if blocks else block)
    serious = [block for block in blocks if not block.is_harmless]
    return "".join(f"{line}\n" for block in (serious or blocks)[-1:] for line in block.lines)


def _blocks(lines: list[str]) -> Iterator[Block]:
    """The whole tracebacks of a text, in order, each for itself."""
    position = 0
    while position < len(lines):
        block = _block_at(lines, position)
        if block is not None:
            yield block
        position = block.end if block else position + 1


def _block_at(lines: list[str], first: int) -> Block | None:
    """The traceback whose heading is in a line, if it is whole."""
    before, found, after = lines[first].partition(HEADING)
    if not found or after.strip():
        return None
    is_harmless = first > 0 and bool(HARMLESS.search(lines[first - 1]))
    group = GROUP_HEADING.fullmatch(before)
    # What stands before the heading may also be a progress bar that nobody ended.
    for prefix in dict.fromkeys((group[1] if group else before, "")):
        end = (_end_of_group if group else _end_of_plain)(lines, first, prefix)
        if end:
            whose = [lines[first - 1].removeprefix(prefix)] if is_harmless else []
            heading = f"{group[2] if group else ''}{HEADING}"
            rest = [line.removeprefix(prefix) for line in lines[first + 1 : end]]
            return Block(first, end, (*whose, heading, *rest), is_harmless)
    return None


def _end_of_plain(lines: list[str], first: int, prefix: str) -> int:
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


def _end_of_group(lines: list[str], first: int, prefix: str) -> int:
    """Where the tree that is drawn for an exception group ends; 0 where it does not."""
    position = first + 1
    while position < len(lines) and GROUP_LINE.match(lines[position].removeprefix(prefix)):
        position += 1
    return position if GROUP_END.match(lines[position - 1].removeprefix(prefix)) else 0


def _chained(lines: list[str], block: Block, before: Block) -> Block:
    """The block, begun where its chain begins if `before` leads to it."""
    prefix = lines[block.first].partition(HEADING)[0]
    between = [line.removeprefix(prefix) for line in lines[before.end : block.first]]
    spoken = [line for line in between if line.strip() not in ("", prefix.strip())]
    if not spoken or not CHAIN.fullmatch(spoken[-1].strip()):
        return block
    chain = (*before.lines, *between, *block.lines)
    return Block(before.first, block.end, chain, before.is_harmless)
