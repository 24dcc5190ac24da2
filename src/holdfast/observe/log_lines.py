"""Lines of workers, from blocks of output (`requests.LogsTold`)."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import Struct, field

from holdfast.core.protocol.bounds import clean_lines
from holdfast.core.protocol.requests import LogBlock


class LineMaker(Struct):
    """Puts lines together from blocks, each stream by itself."""

    begun: dict[tuple[str, int, int], bytes] = field(default_factory=dict)

    def take(self, node: str, block: LogBlock) -> Iterator[tuple[float, int, str]]:
        """The lines that end in this block: time, rank, and text."""
        at = (node, block.rank, block.stream)
        *lines, rest = (self.begun.pop(at, b"") + block.text).split(b"\n")
        if rest:
            self.begun[at] = rest
        for line in lines:
            yield block.at, block.rank, _shown(line)

    def rest(self) -> Iterator[tuple[int, str]]:
        """The last lines without a newline."""
        for (_, rank, _), text in sorted(self.begun.items()):
            yield rank, _shown(text)
        self.begun.clear()


def _shown(line: bytes) -> str:
    """The last state of a progress bar."""
    return clean_lines(line.decode(errors="replace").rstrip("\r").rpartition("\r")[2])
