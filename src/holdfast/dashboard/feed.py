"""Asks the job for as long as somebody watches, and tells the pages.

Rules
1. While nobody watches, nothing is asked, and no timer runs.
2. A question is asked again when its answers are there, and not before `interval_s`: a large job is
   asked less often, so that its coordinator has time for other things.
3. However many watch, the job is asked once.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from holdfast.core.protocol.questions import JobAsked, JobTold, NodeOverview, Question
from holdfast.dashboard import views
from holdfast.dashboard.shown import Shown
from holdfast.dashboard.source import Asking, Source, Whom
from holdfast.runtime.loop import Clock

LEAST_INTERVAL_S = 0.5
NODES_A_SECOND = 500
"""So many are asked by all pages of one agent together."""
RETRY_S = 1.0


def interval_s(nodes: int) -> float:
    return max(LEAST_INTERVAL_S, nodes / NODES_A_SECOND)


class Feed:
    """What is asked of the job, for as long as somebody watches."""

    def __init__(
        self, clock: Clock, source: Source, shown: Shown, tell: Callable[[], None]
    ) -> None:
        """`tell` is called when something of `shown` is new."""
        self._clock, self._source, self._shown, self._tell = clock, source, shown, tell
        self._cancels: dict[str, Callable[[], None]] = {}
        """What is asked and not answered, or waited for, by what it is about."""
        self._asked_at = 0.0

    def begin(self) -> None:
        """Somebody watches."""
        self._ask_job([])

    def rest(self) -> None:
        """Nobody does any more."""
        for cancel in self._cancels.values():
            cancel()
        self._cancels.clear()

    def _later(self, name: str, delay_s: float, what: Callable[[], None]) -> None:
        self._cancels[name] = self._clock.call_later(delay_s, what).cancel

    def _ask(
        self,
        name: str,
        question: Question,
        then: Callable[[Asking], None],
        of: Whom = "coordinator",
    ) -> None:
        asking = Asking(then)
        self._cancels[name] = asking.cancel
        self._source.ask(question, asking, of)

    # How the job is.

    def _ask_job(self, nodes: list[NodeOverview]) -> None:
        if not nodes:
            self._asked_at = self._clock.now()
        question = JobAsked(first_node=len(nodes))
        self._ask("job", question, partial(self._on_job, nodes))

    def _on_job(self, nodes: list[NodeOverview], answers: Asking) -> None:
        told = answers.only
        if answers.problem or not isinstance(told, JobTold):
            self._shown.trouble = answers.problem or "its answer makes no sense"
            self._tell()
            self._later("job", RETRY_S, partial(self._ask_job, []))
            return
        nodes = [*nodes, *told.nodes]
        if told.nodes and len(nodes) < told.node_count:
            self._ask_job(nodes)
            return
        self._shown.trouble = ""
        self._shown.job = views.job_shown(told, self._source)
        self._shown.nodes = views.nodes_shown(told, nodes)
        self._tell()
        passed_s = self._clock.now() - self._asked_at
        self._later("job", max(0.0, interval_s(len(nodes)) - passed_s), partial(self._ask_job, []))
