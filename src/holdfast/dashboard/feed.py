"""Asks the job for as long as somebody watches, and tells the pages.

Rules
1. While nobody watches, nothing is asked, and no timer runs.
2. A request is asked again when its answers are there, and not before `interval_s`: a large job is
   asked less often, so that its coordinator has time for other things.
3. However many watch, the job is asked once.
4. Events are heard of as they come: the request waits where they happen.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import TypeVar

import msgspec
from msgspec.structs import replace

from holdfast.core.protocol.model import Outcome
from holdfast.core.protocol.requests import (
    WAIT_MOST_S,
    Answer,
    DashboardAsked,
    DashboardTold,
    EventsAsked,
    EventsTold,
    HistoryAsked,
    HistoryTold,
    JobAsked,
    JobRequest,
    JobTold,
    LogsAsked,
    LogsTold,
    NodeOverview,
    RanksAsked,
    RanksTold,
)
from holdfast.dashboard import views
from holdfast.dashboard.logs import LINES_KEPT, lines_of
from holdfast.dashboard.pages import PageState
from holdfast.dashboard.source import AwaitedResponse, Recipients, Source
from holdfast.dashboard.wire import DashboardShown
from holdfast.observe.goodput import Interruption, Segment
from holdfast.observe.history import NodeHistory
from holdfast.observe.log_lines import LineMaker
from holdfast.observe.story import Key, StoryEvent
from holdfast.runtime.loop import Clock

LEAST_INTERVAL_S = 0.5
NODES_A_SECOND = 500
"""So many are asked by all pages of one agent together."""
RETRY_S = 1.0
LEAST_PAUSE_S = 0.1
HISTORY_S = 2.0
DASHBOARDS_S = 10.0
DASHBOARDS_MOST = 16
"""A page needs a few others, not all."""
_PAGE = re.compile(r"https?://([A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\]):[0-9]{1,5}/")
"""Where a dashboard can be: what a node says becomes a link, and nothing else than this may."""
Told = TypeVar("Told")
_event: msgspec.msgpack.Decoder[StoryEvent] = msgspec.msgpack.Decoder(StoryEvent)
_segment: msgspec.msgpack.Decoder[Segment] = msgspec.msgpack.Decoder(Segment)
_node: msgspec.msgpack.Decoder[NodeHistory] = msgspec.msgpack.Decoder(NodeHistory)
_interruption: msgspec.msgpack.Decoder[Interruption] = msgspec.msgpack.Decoder(Interruption)


def interval_s(nodes: int) -> float:
    return max(LEAST_INTERVAL_S, nodes / NODES_A_SECOND)


class Feed:
    """What is asked of the job, for as long as somebody watches."""

    def __init__(
        self, clock: Clock, source: Source, shown: PageState, tell: Callable[[], None]
    ) -> None:
        """`tell` is called when something of `shown` is new."""
        self._clock, self._source, self._shown, self._tell = clock, source, shown, tell
        self._cancels: dict[str, Callable[[], None]] = {}
        """What is asked and not answered, or waited for, by what it is about."""
        self._asked_at = 0.0
        self._nodes: list[NodeOverview] = []
        self._forget()

    def begin(self) -> None:
        """Somebody watches."""
        self._ask_job([])

    def rest(self) -> None:
        """Nobody does any more: who comes next sees nothing of what was true then."""
        for cancel in self._cancels.values():
            cancel()
        self._cancels.clear()
        self._forget()

    def _forget(self) -> None:
        self._shown.clear()
        self._mishaps = views.Mishaps()
        self._pace = views.StepPace()
        self._teller = ""
        """Whose events are followed."""
        self._heard: dict[str, int] = {}
        """The number of the last event of each who was."""
        self._tellers: dict[Key, str] = {}
        self._asked_for_dashboards: list[str] = []

    def _name_of(self, node: str) -> str:
        """Of one that has left, as events called it."""
        known = (one.name or one.host for one in self._nodes if one.node == node)
        told = (one.host for one in reversed(self._shown.events) if one.node == node and one.host)
        return next(known, "") or next(told, node)

    def end(self, outcome: Outcome, answer_of: Callable[[JobRequest], Answer | None]) -> None:
        """The job is over. The last that pages hear is what this node, which is `answer_of`, knows.

        What others knew, as of their last answers.
        """
        shown, job = self._shown, self._shown.job
        if job is None:
            return
        if job.coordinator == job.served_by:
            self._take_history(answer_of(HistoryAsked()))
            self._take_events(answer_of(EventsAsked(self._heard.get(self._teller, 0))))
        told = answer_of(LogsAsked())
        if isinstance(told, LogsTold):
            shown.lines = lines_of(LineMaker(), job.served_by, told)[-LINES_KEPT:]
        known = answer_of(JobAsked())
        step = known.step if isinstance(known, JobTold) else None
        views.ended(shown, outcome, step, self._mishaps.failed)
        self._tell()

    def _later(self, name: str, delay_s: float, what: Callable[[], None]) -> None:
        self._cancels[name] = self._clock.call_later(delay_s, what).cancel

    def _ask(
        self,
        name: str,
        request: JobRequest,
        then: Callable[[AwaitedResponse], None],
        of: Recipients = "coordinator",
        nodes: Sequence[str] = (),
    ) -> None:
        """Ask, in place of what was asked or waited for about the same before."""
        if name in self._cancels:
            self._cancels[name]()
        pending = AwaitedResponse(then)
        self._cancels[name] = pending.cancel
        self._source.ask(request, pending, of, nodes)

    # How the job is.

    def _ask_job(self, nodes: list[NodeOverview]) -> None:
        if not nodes:
            self._asked_at = self._clock.now()
        request = JobAsked(first_node=len(nodes))
        self._ask("job", request, partial(self._on_job, nodes))

    def _on_job(self, nodes: list[NodeOverview], answers: AwaitedResponse) -> None:
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
        if told.stage == "running":
            self._ask("job", RanksAsked(), partial(self._on_ranks, told, nodes), of="all")
        else:
            self._show(told, nodes, {})

    def _on_ranks(self, told: JobTold, nodes: list[NodeOverview], answers: AwaitedResponse) -> None:
        told_by = {n: one for n, one in answers.by_node.items() if isinstance(one, RanksTold)}
        self._show(told, views.placed(nodes, told_by), told_by)

    def _show(
        self, told: JobTold, nodes: list[NodeOverview], by_node: Mapping[str, RanksTold]
    ) -> None:
        shown = self._shown
        ranks = [rank for one in by_node.values() for rank in one.ranks]
        told = replace(told, world_size=told.world_size or len(ranks))
        self._pace.now = time.time()
        shown.job = views.job_shown(told, ranks, self._source, self._pace, self._mishaps)
        self._nodes = nodes
        shown.nodes = views.nodes_shown(told, nodes)
        self._follow(told.coordinator)
        shown.workers = views.workers_shown(told, nodes, by_node, self._mishaps, self._pace)
        self._tell()
        passed_s = self._clock.now() - self._asked_at
        delay_s = max(LEAST_PAUSE_S, interval_s(len(nodes)) - passed_s)
        self._later("job", delay_s, partial(self._ask_job, []))

    # Where the time went, and where else the job can be watched.

    def _ask_history(self) -> None:
        self._ask("history", HistoryAsked(), self._on_history)

    def _on_history(self, answers: AwaitedResponse) -> None:
        if self._take_history(answers.only):
            self._tell()
        self._later("history", HISTORY_S, self._ask_history)

    def _take_history(self, told: Answer | None) -> bool:
        if isinstance(told, HistoryTold):
            start = time.time() - told.total_s
            self._shown.ledger = views.ledger_shown(start, told.total_s, told.parts_s)
            self._shown.segments = views.segments_shown(_known(told.segments, _segment))
            lanes = [
                views.lane_shown(self._name_of(node), one.start, one.end, one.runs, one.is_gone)
                for node, packed in told.nodes.items()
                for one in _known([packed], _node)
            ]
            self._shown.lanes = sorted(lanes, key=lambda lane: (len(lane.node), lane.node))
            self._pace.steps_per_s = told.steps_per_s
            self._shown.incidents = views.incidents_shown(_known(told.interruptions, _interruption))
        return isinstance(told, HistoryTold)

    def _hosts(self) -> list[str]:
        names = [node.name for node in self._shown.nodes]
        return [*dict.fromkeys([self._teller, *names])][:DASHBOARDS_MOST]

    def _ask_dashboards(self) -> None:
        some = self._asked_for_dashboards = self._hosts()
        self._ask("dashboards", DashboardAsked(), self._on_dashboards, of="some", nodes=some)

    def _on_dashboards(self, answers: AwaitedResponse) -> None:
        self._shown.dashboards = [
            DashboardShown(node, one.url, one.key)
            for node, one in answers.by_node.items()
            if isinstance(one, DashboardTold) and _PAGE.fullmatch(one.url)
        ]
        self._tell()
        self._later("dashboards", DASHBOARDS_S, self._ask_dashboards)

    # What happened: the coordinator's node knows most.

    def _follow(self, teller: str) -> None:
        """Hear of events from whoever is the coordinator now."""
        if teller and teller != self._teller:
            self._teller = teller
            self._ask_events()
            self._ask_history()
            self._ask_dashboards()
        elif teller and self._hosts() != self._asked_for_dashboards:
            self._ask_dashboards()  # Whoever came last is there when all others are gone.

    def _ask_events(self) -> None:
        request = EventsAsked(self._heard.get(self._teller, 0), WAIT_MOST_S)
        self._ask("events", request, self._on_events)

    def _on_events(self, answers: AwaitedResponse) -> None:
        told = answers.by_node.get(self._teller)
        if not isinstance(told, EventsTold):
            self._later("events", RETRY_S, self._ask_events)
            return
        if self._take_events(told):
            self._tell()
            self._ask_history()
        self._ask_events()

    def _take_events(self, told: Answer | None) -> bool:
        """Whether there is any that is news."""
        if not isinstance(told, EventsTold):
            return False
        self._heard[self._teller] = told.last
        news = [event for event in _known(told.events, _event) if self._is_news(event)]
        for event in news:
            self._mishaps.take(event)
        self._shown.events += news
        return bool(news)

    def _is_news(self, event: StoryEvent) -> bool:
        """What several nodes tell is told once, by the first (`observe.merged_story`)."""
        return self._tellers.setdefault(event.key, event.by) == event.by


def _known(packed: Iterable[bytes], decoder: msgspec.msgpack.Decoder[Told]) -> list[Told]:
    """Without what we do not know: whoever tells may be of another version."""
    found = []
    for one in packed:
        with suppress(msgspec.MsgspecError):
            found.append(decoder.decode(one))
    return found
