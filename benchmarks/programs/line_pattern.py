"""What a talkative worker writes: lines that each say whose they are and where they belong.

A block is made with one `replace`, so that the writer, and the checker later, are many times
faster than what is measured.
"""

from __future__ import annotations

LINE_BYTES = 128
LINES_PER_BLOCK = 512
BLOCK_BYTES = LINE_BYTES * LINES_PER_BLOCK
_PLACE = b"########"


def block_template(rank: int) -> bytes:
    """A block of numbered lines, in which the number of the block is still open."""
    lines = (
        b"rank %02d block %b line %04d " % (rank, _PLACE, line) for line in range(LINES_PER_BLOCK)
    )
    return b"".join(line.ljust(LINE_BYTES - 1, b".") + b"\n" for line in lines)


def block(template: bytes, number: int) -> bytes:
    """The block of that number."""
    return template.replace(_PLACE, b"%08d" % number)


def block_count(megabytes: int) -> int:
    """How many blocks make up at least so many million bytes."""
    return -(-megabytes * 1_000_000 // BLOCK_BYTES)
