"""The last output of workers, kept for `holdfast logs` and the dashboard.

Rules
1. Of each stream of each worker the last `KEPT_BYTES` are kept, as blocks with the time at which
   they came: output of several workers, and nodes, can be put in order by that.
2. A stream that goes straight into its file does not pass here; where its file is, is known.
3. Blocks are numbered. A reader asks for those behind a number, and may wait for the next.
"""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Callable

from msgspec import Struct, field

from holdfast.runtime.loop import Cancellable, Loop

KEPT_BYTES = 64 * 1024
LAST_BYTES = 1 << 20
"""Of all workers together: what is kept of a run that has ended."""


class OutputBlock(Struct, frozen=True):
    """What came at once."""

    number: int
    at: float
    """Seconds since 1970."""
    rank: int
    stream: int
    text: bytes


class KeptStream(Struct):
    """The last blocks of one stream."""

    blocks: deque[OutputBlock] = field(default_factory=deque)
    size: int = 0


class OutputWanted(Struct, frozen=True):
    """What somebody wants to see."""

    after: int = 0
    ranks: frozenset[int] = frozenset()
    """Empty for all of them."""
    most_bytes: int = KEPT_BYTES
    wait_s: float = 0.0


OnOutput = Callable[[list[OutputBlock], int], None]
"""Takes blocks, and the number to go on from."""


class LastOutput(Struct, frozen=True):
    """What is kept of a run that has ended."""

    blocks: list[OutputBlock]
    files: list[str]
    """Of workers that wrote straight into a file: "rank 3: /logs/…/stdout.log"."""


class WaitingForOutput(Struct):
    """A reader that waits for the next block."""

    wanted: OutputWanted
    then: OnOutput
    timer: Cancellable | None = None


class RecentOutput:
    """Of all workers of this node, through all rounds."""

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self._streams: dict[tuple[int, int], KeptStream] = {}
        self.files: dict[tuple[int, int], str] = {}
        """By rank and stream, the files that workers write into themselves (rule 2)."""
        self.last = 0
        """The number of the newest block."""
        self._waiting: list[WaitingForOutput] = []

    def take(self, rank: int, stream: int, block: bytes) -> None:
        """A worker wrote this."""
        self.last += 1
        kept = self._streams.get((rank, stream))
        if kept is None:
            kept = self._streams[rank, stream] = KeptStream()
        kept.blocks.append(OutputBlock(self.last, time.time(), rank, stream, block))
        kept.size += len(block)
        while kept.size - len(kept.blocks[0].text) >= KEPT_BYTES:
            kept.size -= len(kept.blocks.popleft().text)
        if self._waiting:
            self._tell(rank)

    def tail(self, rank: int, stream: int, after: int) -> bytes:
        """The end of one stream, of what came behind a block's number."""
        kept = self._streams.get((rank, stream), KeptStream()).blocks
        return b"".join(block.text for block in kept if block.number > after)

    def named_files(self, ranks: frozenset[int] = frozenset()) -> list[str]:
        """The files of these ranks (rule 2); of all without any."""
        return [
            f"rank {rank}: {file}"
            for (rank, _), file in sorted(self.files.items())
            if not ranks or rank in ranks
        ]

    def the_last(self) -> LastOutput:
        """The newest blocks, `LAST_BYTES` of them at most."""
        blocks: list[OutputBlock] = []
        size = 0
        for block in reversed(self._behind(OutputWanted(most_bytes=sys.maxsize))[0]):
            size += len(block.text)
            if size > LAST_BYTES:
                break
            blocks.append(block)
        return LastOutput(blocks[::-1], self.named_files())

    def after(self, wanted: OutputWanted, then: OnOutput) -> None:
        """Give the blocks behind a number, the oldest first; if there are none, wait for some."""
        found, last = self._behind(wanted)
        if found or wanted.wait_s <= 0.0:
            then(found, last)
            return
        waiting = WaitingForOutput(wanted, then)
        waiting.timer = self._loop.call_later(wanted.wait_s, self._answer, waiting)
        self._waiting.append(waiting)

    def _behind(self, wanted: OutputWanted) -> tuple[list[OutputBlock], int]:
        found = sorted(
            (
                block
                for (rank, _), kept in self._streams.items()
                if not wanted.ranks or rank in wanted.ranks
                for block in kept.blocks
                if block.number > wanted.after
            ),
            key=lambda block: block.number,
        )
        size = 0
        for index, block in enumerate(found):
            size += len(block.text)
            if index and size > wanted.most_bytes:
                return found[:index], found[index - 1].number
        return found, self.last

    def _tell(self, rank: int) -> None:
        for waiting in list(self._waiting):
            if not waiting.wanted.ranks or rank in waiting.wanted.ranks:
                self._answer(waiting)

    def _answer(self, waiting: WaitingForOutput) -> None:
        if waiting in self._waiting:
            self._waiting.remove(waiting)
            if waiting.timer is not None:
                waiting.timer.cancel()
            waiting.then(*self._behind(waiting.wanted))
