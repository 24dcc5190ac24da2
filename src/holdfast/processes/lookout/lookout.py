"""Where the workers of a round are, and how far: looked at now and then, and whenever it is asked.

Workers say how far they are in their pages (`worker.page`), where it wakes nobody. The first step
of each comes over the channel, at once; from then on the pages are read as often as a heartbeat is
sent, and when a worker has ended, so that its last word is told before its end. Where no worker
says anything, nobody looks.

Where they are is asked of the workers themselves (`lookout.stacks`), when somebody wants to know.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct

from holdfast.core.node.io import AgentEvent, StepReported
from holdfast.core.protocol.model import Ranks
from holdfast.processes.lookout.pages import RoundPages, Sign
from holdfast.processes.lookout.stack_files import StackFiles
from holdfast.runtime.loop import Cancellable, Loop
from holdfast.worker.page import VARIABLE

if TYPE_CHECKING:
    from holdfast.processes.lookout import stacks

    OnStacks = Callable[[stacks.StackSnapshot | None], None]
    """None where no worker runs."""

TOLD_APART_S = 1.0
"""The channel is for the first step. Who has no page says more there, and is told this often."""


class Watched(Struct):
    """A worker that is looked at."""

    rank: int
    pid: int
    step: int | None = None
    """The last that was told."""
    unsaid: int | None = None
    """What came over the channel since, too soon to be told."""
    next_at: float = 0.0
    has_ended: bool = False


class WatchedRound(Struct, frozen=True):
    """What is to be known of a round."""

    number: int
    workers: int
    interval_s: float
    """How often to look."""
    with_stacks: bool = True
    stacks_folder: Path | None = None
    """Where stacks are written; None where nothing is."""


class Lookout:
    """Looks at the workers of one round, from their start to the end of the round."""

    def __init__(self, watched: WatchedRound, post: Callable[[AgentEvent], None]) -> None:
        self._round = watched
        self._post = post
        self._workers: dict[int, Watched] = {}
        self._timer: Cancellable | None = None
        self._stacks = StackFiles()
        self._taking: stacks.StackTaking | None = None
        self._awaited: list[OnStacks] = []
        self._taken = 0
        self._pages: RoundPages | None
        try:
            self._pages = RoundPages(watched.workers)
        except OSError:
            self._pages = None  # Workers then say it over the channel.

    def variables(self, local_rank: int) -> dict[str, str]:
        """What the environment of this worker has for our sake."""
        page = {} if self._pages is None else {VARIABLE: self._pages.variable(local_rank)}
        return page | (self._stacks.variables(local_rank) if self._round.with_stacks else {})

    def born(self, ranks: Ranks, pid: int) -> None:
        """It exists."""
        self._workers[ranks.local_rank] = Watched(ranks.rank, pid)

    def heard(self, local_rank: int, step: int, loop: Loop) -> None:
        """It said this over the channel: look from now on."""
        worker = self._workers.get(local_rank)
        if worker is None:
            return
        if self._timer is None:
            self._timer = loop.call_later(self._round.interval_s, self._look, loop)
        worker.unsaid = step
        now = time.monotonic()
        if now >= worker.next_at:
            worker.next_at = now + TOLD_APART_S
            self._tell(local_rank, worker, step)

    def ended(self, local_rank: int) -> None:
        """Its process is gone: tell its last word."""
        worker = self._workers.get(local_rank)
        if worker is not None:
            worker.has_ended = True
            self._look_at(local_rank, worker)

    def take_stacks(
        self,
        reason: str,
        means: stacks.StackMeans,
        then: OnStacks,
    ) -> None:
        """Ask all that run where they are. Who asks while others wait for an answer gets theirs."""
        from holdfast.processes.lookout import stacks  # Few jobs ever need it.

        self._awaited.append(then)
        if self._taking is not None:
            return
        asked = [
            stacks.AskedWorker(local_rank, worker.rank, worker.pid)
            for local_rank, worker in self._workers.items()
            if not worker.has_ended
        ]
        taken = partial(self._on_taken, reason, means)
        self._taking = stacks.StackTaking(self._stacks, asked, means, taken)
        self._taking.begin()

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._taking is not None:
            self._taking.end()
            self._hand_over(None)
        self._stacks.close()
        if self._pages is not None:
            self._pages.close()
            self._pages = None

    def _on_taken(
        self, reason: str, means: stacks.StackMeans, snapshot: stacks.StackSnapshot
    ) -> None:
        folder = self._round.stacks_folder
        if folder is None or not snapshot.answers:
            self._hand_over(snapshot)
            return
        self._taken += 1
        keep = partial(snapshot.kept, folder / f"stacks_{self._taken}.txt", reason)
        means.lane.do(keep, self._hand_over)

    def _hand_over(self, snapshot: stacks.StackSnapshot | None) -> None:
        self._taking = None
        awaited, self._awaited = self._awaited, []
        for then in awaited:
            then(snapshot)

    def _look(self, loop: Loop) -> None:
        self._timer = loop.call_later(self._round.interval_s, self._look, loop)
        for local_rank, worker in self._workers.items():
            if not worker.has_ended:
                self._look_at(local_rank, worker)

    def _look_at(self, local_rank: int, worker: Watched) -> None:
        sign = self._sign(local_rank)
        step = worker.unsaid if sign is None or sign.step is None else sign.step
        if step is not None:
            self._tell(local_rank, worker, step)

    def _sign(self, local_rank: int) -> Sign | None:
        return None if self._pages is None else self._pages.read(local_rank)

    def _tell(self, local_rank: int, worker: Watched, step: int) -> None:
        worker.unsaid = None
        if step != worker.step:
            worker.step = step
            self._post(StepReported(self._round.number, local_rank, step))
