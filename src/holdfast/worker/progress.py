"""Progress of a worker, its step and phase, in a page that it shares with its agent.

Rules
1. It never delays and never breaks the training. A sign is a few writes to memory, and no system
   call (`worker.page`); where there is no agent, nobody reads them.
2. The first step of a process is told over the channel too, at once: how long a recovery took is
   counted up to it. Later ones are read by the agent when it looks.
3. The longest wait between two signs is kept for each phase by itself, so that a checkpoint of ten
   minutes says nothing about how long a step may take.
4. Where the page cannot be had (another namespace, another user), the channel carries one step a
   second.

A forked child goes on in its parent's page: it speaks for the worker, as its parent does.
"""

from __future__ import annotations

import operator
import os
from time import monotonic

from holdfast.worker.channel import VARIABLE as CHANNEL
from holdfast.worker.channel import Channel
from holdfast.worker.page import (
    AT,
    BEGUN,
    DONE,
    HAS_STEP,
    LONGEST_EACH,
    LONGEST_FROM,
    MOVED_AT,
    PHASE,
    STEP,
    Page,
    open_page,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import SupportsIndex

WITHOUT_PAGE_S = 1.0
"""Interval between steps that are sent over the channel, where there is no page."""
NEVER = float("-inf")
SOME = -1.0
"""Below any wait: in this phase none has ended yet."""


class Signs:
    """The signs of one process, and the page for them, which is opened with the first sign."""

    __slots__ = (
        "_channel", "_count", "_has_deadlines", "_last", "_longest", "_page", "_rows", "_times",
        "_told_at", "_words",
    )  # fmt: skip

    def __init__(self) -> None:
        self._page: Page | None = None
        self._words: memoryview[int] = memoryview(b"")
        self._times: memoryview[float] = memoryview(b"").cast("d")
        self._count = 0
        self._last = 0.0
        """Time of the last sign."""
        self._longest = NEVER
        """Of the waits in this phase; a longer one is looked at more closely. So is every sign
        while it is `NEVER`: before the first step, and where there is no page."""
        self._told_at = NEVER
        self._has_deadlines = False
        self._channel = Channel()
        self._rows: dict[str, int] = {}
        """Rows of phases in the page, by name."""

    def progress(self, step: SupportsIndex) -> None:
        """Say which step the training has reached.

        Cheap enough for every step: a fraction of a microsecond, and no system call. Raises
        `TypeError` for what is not a whole number, whether or not an agent listens.
        """
        now = monotonic()
        if now - self._last > self._longest:
            self._look_closer(now, operator.index(step))
        self._last = now
        self._count = count = self._count + 1
        words = self._words
        words[BEGUN] = count
        try:
            words[STEP] = step  # type: ignore[call-overload]  # It takes what `index` does.
        except ValueError:
            pass  # More than 64 bits: no step of anything, and no reason to end a training.
        finally:
            self._times[AT] = now
            words[DONE] = count

    def enter(self, name: str) -> int:
        """Begin a phase; returns the row of the one before it."""
        row = self._rows.get(name)
        if row is None:
            row = self._rows[name] = self._own_page().row_of(name)
        before = self._words[PHASE]
        self.move(row)
        return before

    def move(self, row: int) -> None:
        """The wait that ends here is of the phase that was, the next of the one that begins."""
        now = monotonic()
        if now - self._last > self._longest:
            self._keep_longest(now)
        self._last = now
        self._count = count = self._count + 1
        words = self._words
        words[BEGUN] = count
        words[PHASE] = row
        self._times[MOVED_AT] = now
        words[DONE] = count
        if self._longest != NEVER:
            self._longest = self._times[LONGEST_FROM + LONGEST_EACH * row] or SOME

    def begin_scope(self, seconds: float, scope: str) -> int | None:
        """A deadline from now on; the agent is told once that there are such."""
        page = self._own_page()
        row = page.set_deadline(monotonic() + seconds, scope)
        if not self._has_deadlines:
            self._has_deadlines = True
            self._channel.send({"deadlines": True})
        return row

    def end_scope(self, row: int | None) -> None:
        if row is not None:
            self._own_page().clear_deadline(row)

    def _look_closer(self, now: float, step: int) -> None:
        """A first step, a longer wait than any before in this phase, or no page to write to."""
        page = self._own_page()
        page.words[HAS_STEP] = 1
        self._keep_longest(now)
        by_channel = not page.is_shared and CHANNEL in os.environ
        if self._told_at == NEVER or (by_channel and now - self._told_at >= WITHOUT_PAGE_S):
            self._told_at = now
            self._channel.send({"progress": step})
        self._longest = NEVER if by_channel else page.longest_s(page.words[PHASE]) or SOME

    def _keep_longest(self, now: float) -> None:
        """Note the end of a wait that was longer than all before it in its phase."""
        page = self._own_page()
        row = page.words[PHASE]
        if self._last and now - self._last > page.longest_s(row):
            page.keep_longest(row, now - self._last)

    def _own_page(self) -> Page:
        if self._page is None:
            self._page = open_page(os.environ)
            self._words, self._times = self._page.words, self._page.times
            self._count = self._words[DONE]  # A helper of the worker goes on where that one was.
        return self._page


_signs = Signs()
progress = _signs.progress


class phase:  # noqa: N801 - it is called like a function, and is one in all but its end
    """Say what the worker is at from now on; with `with`, until the end of the block.

        with holdfast.phase("checkpoint"):
            save(model)

    How long each phase takes is learned by itself, so that a long checkpoint is no hang and
    excuses none. Up to 15 names are told apart.
    """

    __slots__ = ("_before",)

    def __init__(self, name: str) -> None:
        self._before = _signs.enter(name)

    def __enter__(self) -> phase:
        return self

    def __exit__(self, *exception: object) -> None:
        _signs.move(self._before)


class expires:  # noqa: N801 - as `phase`
    """A deadline for a block: where it takes longer, this worker is ended, and its stack is kept.

        with holdfast.expires(60, "loading"):
            batch = load()

    It is noticed within a heartbeat. Scopes may be nested, up to 16 at a time; one more has no
    deadline. Where there is no agent, nothing happens.
    """

    __slots__ = ("_row", "_scope", "_seconds")

    def __init__(self, seconds: float, scope: str = "") -> None:
        if not seconds > 0:
            raise ValueError(f"a deadline must be more than 0 seconds from now, not {seconds}")
        self._seconds, self._scope = float(seconds), scope or "a scope"
        self._row: int | None = None

    def __enter__(self) -> expires:
        self._row = _signs.begin_scope(self._seconds, self._scope)
        return self

    def __exit__(self, *exception: object) -> None:
        _signs.end_scope(self._row)
