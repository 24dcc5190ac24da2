"""How far the workers of a round are: looked at now and then, and told where it is news.

Workers say it in their pages (`worker.page`), where it wakes nobody. The first step of each comes
over the channel, at once; from then on the pages are read as often as a heartbeat is sent, and when
a worker has ended, so that its last word is told before its end. Where no worker says anything,
nobody looks.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from msgspec import Struct

from holdfast.core.node.io import AgentEvent, StepReported
from holdfast.processes.lookout.pages import RoundPages, Sign
from holdfast.runtime.loop import Cancellable, Loop
from holdfast.worker.page import VARIABLE

TOLD_APART_S = 1.0
"""The channel is for the first step. Who has no page says more there, and is told this often."""


class Watched(Struct):
    """A worker that is looked at."""

    step: int | None = None
    """The last that was told."""
    unsaid: int | None = None
    """What came over the channel since, too soon to be told."""
    next_at: float = 0.0
    has_ended: bool = False


class Lookout:
    """Looks at the workers of one round, from their start to the end of the round."""

    def __init__(
        self, round: int, workers: int, interval_s: float, post: Callable[[AgentEvent], None]
    ) -> None:
        self.round = round
        self._post = post
        self._interval_s = interval_s
        self._watched: dict[int, Watched] = {}
        self._timer: Cancellable | None = None
        self._pages: RoundPages | None
        try:
            self._pages = RoundPages(workers)
        except OSError:
            self._pages = None  # Workers then say it over the channel.

    def variables(self, local_rank: int) -> dict[str, str]:
        """What the environment of this worker has for our sake."""
        return {} if self._pages is None else {VARIABLE: self._pages.variable(local_rank)}

    def born(self, local_rank: int) -> None:
        """It exists."""
        self._watched[local_rank] = Watched()

    def heard(self, local_rank: int, step: int, loop: Loop) -> None:
        """It said this over the channel: look from now on."""
        worker = self._watched.get(local_rank)
        if worker is None:
            return
        if self._timer is None:
            self._timer = loop.call_later(self._interval_s, self._look, loop)
        worker.unsaid = step
        now = time.monotonic()
        if now >= worker.next_at:
            worker.next_at = now + TOLD_APART_S
            self._tell(local_rank, worker, step)

    def ended(self, local_rank: int) -> None:
        """Its process is gone: tell its last word."""
        worker = self._watched.get(local_rank)
        if worker is not None:
            worker.has_ended = True
            self._look_at(local_rank, worker)

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._pages is not None:
            self._pages.close()
            self._pages = None

    def _look(self, loop: Loop) -> None:
        self._timer = loop.call_later(self._interval_s, self._look, loop)
        for local_rank, worker in self._watched.items():
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
            self._post(StepReported(self.round, local_rank, step))
