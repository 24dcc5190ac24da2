"""How workers learn that they are to save (`core.features.saving`), and what they say of it.

The agent shows it on one page of memory for the node (`worker.draining`), which workers get as a
descriptor and map; those that wait hear over the channel that there is news. The first byte of the
page says whether anything is on it, and is written last.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import signal
import zlib
from collections.abc import Callable, Iterable, Mapping
from typing import get_args

import msgspec

from holdfast.core.node_io import NO_STEP, NodeEvent, SaveAnswered, SavingAnswer, ShowSaving
from holdfast.processes.channel_server import Answer, ChannelServer
from holdfast.worker.draining import (
    BODY_AT,
    KEY,
    LENGTH_AT,
    NEWS,
    PAGE_SIZE,
    REASON_MOST,
    SIGNALS_AT,
    SUM_AT,
)

SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL


def sealed_memory(name: str, size: int) -> int:
    """The descriptor of so many bytes without a name in a file system. Raises `OSError`."""
    descriptor = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.ftruncate(descriptor, size)
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, SEALS)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


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


ANSWERS: tuple[SavingAnswer, ...] = get_args(SavingAnswer)
"""What a worker may say about saving."""


class SavingNews:
    """The page of a node, made when the first worker listens or is to be shown something."""

    def __init__(self, post: Callable[[NodeEvent], None], signals: Iterable[str]) -> None:
        """`signals` ask a node to leave."""
        self._post = post
        self._signals = signals
        self._page: DrainPage | None = None

    def show(self, effect: ShowSaving, channel: ChannelServer) -> None:
        self._shown().show(effect)
        channel.tell_news(NEWS)

    def hide(self, channel: ChannelServer) -> None:
        self.clear()
        channel.tell_news(NEWS)

    def take(self, round: int, local_rank: int, message: Mapping[str, object]) -> Answer | None:
        """A worker asks for the page, or says how it stands with saving."""
        said, step, serial = message[KEY], message.get("step"), message.get("serial")
        answer = next((one for one in ANSWERS if one == said), None)
        if answer is None:
            return None
        at = step if type(step) is int else NO_STEP
        of = serial if type(serial) is int else 0
        self._post(SaveAnswered(round, local_rank, answer, at, of))
        return Answer(NEWS, self._shown().descriptor) if answer == "listens" else None

    def clear(self) -> None:
        """For the workers of the next round."""
        if self._page is not None:
            self._page.clear()

    def close(self) -> None:
        if self._page is not None:
            self._page.close()

    def _shown(self) -> DrainPage:
        if self._page is None:
            self._page = DrainPage(self._signals)
        return self._page
