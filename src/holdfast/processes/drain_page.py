"""The agent's side of the page on which workers see that they are to save (`worker.draining`).

One page for a node: memory without a name, which workers get as a descriptor and map. The first
byte says whether anything is on it, and is written last.
"""

from __future__ import annotations

import mmap
import os
import signal
import zlib
from collections.abc import Iterable

import msgspec

from holdfast.core.node_io import ShowSaving
from holdfast.processes.sealed_memory import sealed_memory
from holdfast.worker.draining import (
    BODY_AT,
    LENGTH_AT,
    PAGE_SIZE,
    REASON_MOST,
    SIGNALS_AT,
    SUM_AT,
)


class DrainPage:
    """A page of memory that this node's workers can read."""

    def __init__(self, signals: Iterable[str] = ()) -> None:
        """`signals` ask a node to leave: workers that ask do not die of them (`worker.shield`)."""
        self.descriptor = sealed_memory("holdfast-drain", PAGE_SIZE)
        self._page = mmap.mmap(self.descriptor, PAGE_SIZE)
        mask = sum(1 << signal.Signals[name] for name in signals)
        self._page[SIGNALS_AT:PAGE_SIZE] = mask.to_bytes(PAGE_SIZE - SIGNALS_AT, "little")

    def show(self, effect: ShowSaving) -> None:
        """`until` is on the clock of the loop, which the processes of a host share."""
        shown = {
            "until": effect.until,
            "reason": effect.reason[:REASON_MOST],
            "step": effect.step,
            "serial": effect.serial,
            "leaves": effect.leaves,
        }
        body = msgspec.json.encode(shown)
        self._page[BODY_AT : BODY_AT + len(body)] = body
        self._page[LENGTH_AT : LENGTH_AT + 4] = len(body).to_bytes(4, "little")
        self._page[SUM_AT : SUM_AT + 4] = zlib.crc32(body).to_bytes(4, "little")
        self._page[0] = 1

    def clear(self) -> None:
        """For the workers of the next round, or where nothing is to be saved any more."""
        self._page[0] = 0

    def close(self) -> None:
        self._page.close()
        os.close(self.descriptor)
