"""The feed of all pages of one agent: asks a running job while a page is open.

Rules
1. While no page is open, nothing is asked, and no timer runs.
2. A request is repeated when its answers are there, and not before `interval_s`: a large job is
   asked less often, so that its coordinator has time for other things.
3. However many pages are open, the job is asked once.
4. Three chains of requests go on independently, so that a silent node delays only its own: how the
   job is (and its workers), what happened (and where the time went), and other dashboards.
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
from holdfast.dashboard.source import AwaitedResponse, Recipients, Source, interval_s
from holdfast.dashboard.wire import DashboardShown, LaneShown
from holdfast.observe.goodput import Interruption, Segment
from holdfast.observe.history import NodeHistory
from holdfast.observe.log_lines import LineMaker
from holdfast.observe.story import Key, StoryEvent
from holdfast.runtime.loop import Clock

RETRY_S = 1.0
LEAST_PAUSE_S = 0.1
STORY_S = 2.0
"""How long to wait for an event before asking again where the time went."""
DASHBOARDS_S = 3.0
DASHBOARDS_MOST = 16
"""A page needs a few others, not all."""
_PAGE = re.compile(r"https?://([A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\]):[0-9]{1,5}/")
"""A dashboard's address. Nodes report theirs unchecked, and only this may become a link."""
Told = TypeVar("Told")
_event: msgspec.msgpack.Decoder[StoryEvent] = msgspec.msgpack.Decoder(StoryEvent)
_segment: msgspec.msgpack.Decoder[Segment] = msgspec.msgpack.Decoder(Segment)
_node: msgspec.msgpack.Decoder[NodeHistory] = msgspec.msgpack.Decoder(NodeHistory)
_interruption: msgspec.msgpack.Decoder[Interruption] = msgspec.msgpack.Decoder(Interruption)


class Feed:
    """Keeps the content of pages up to date while one is open."""

    def __init__(
        self, clock: Clock, source: Source, shown: PageState, tell: Callable[[], None]
    ) -> None:
        """`tell` is called when something of `shown` is new."""
        self._clock, self._source, self._shown, self._tell = clock, source, shown, tell
        self._cancels: dict[str, Callable[[], None]] = {}
        """Of each chain, how to cancel its pending request or timer."""
        self._asked_at = 0.0
        self._nodes: list[NodeOverview] = []
        self._forget()

    def begin(self) -> None:
        """The first page is open."""
        self._ask_job([])

    def rest(self) -> None:
        """The last page is closed: the next one sees nothing of what was true then."""
        for cancel in self._cancels.values():
            cancel()
        self._cancels.clear()
        self._forget()

    def _forget(self) -> None:
        self._shown.clear()
        self._mishaps = views.Mishaps()
        self._pace = views.StepPace()
        self._teller = ""
        """The coordinator, whose events are followed."""
        self._heard: dict[str, int] = {}
        """By coordinator, the number of its last event here."""
        self._tellers: dict[Key, str] = {}

    def _name_of(self, node: str) -> str:
        """Of a node that has left, as events called it."""
        known = (one.name or one.host for one in self._nodes if one.node == node)
        told = (one.host for one in reversed(self._shown.events) if one.node == node and one.host)
        return next(known, "") or next(told, node)

    def end(self, outcome: Outcome, answer_of: Callable[[JobRequest], Answer | None]) -> None:
        """The job is over. Pages are told what this node knows, which `answer_of` returns.

        Facts of other nodes stay as of their last answers.
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

    def _later(self, chain: str, delay_s: float, what: Callable[[], None]) -> None:
        self._cancels[chain] = self._clock.call_later(delay_s, what).cancel

    def _ask(
        self,
        chain: str,
        request: JobRequest,
        then: Callable[[AwaitedResponse], None],
        of: Recipients = "coordinator",
        nodes: Sequence[str] = (),
    ) -> None:
        """Ask, in place of the chain's pending request or timer."""
        if chain in self._cancels:
            self._cancels[chain]()
        pending = AwaitedResponse(then)
        self._cancels[chain] = pending.cancel
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
        if told.coordinator != self._teller:
            self._teller = told.coordinator
            self._ask_events()
            self._ask_dashboards()
        shown.workers = views.workers_shown(told, nodes, by_node, self._mishaps, self._pace)
        self._tell()
        passed_s = self._clock.now() - self._asked_at
        delay_s = max(LEAST_PAUSE_S, interval_s(len(nodes)) - passed_s)
        self._later("job", delay_s, partial(self._ask_job, []))

    # What happened, and where the time went: the coordinator's node knows most.

    def _ask_events(self) -> None:
        request = EventsAsked(self._heard.get(self._teller, 0), STORY_S)
        self._ask("story", request, self._on_events)

    def _on_events(self, answers: AwaitedResponse) -> None:
        told = answers.by_node.get(self._teller)
        self._take_events(told)
        again_s = LEAST_PAUSE_S if isinstance(told, EventsTold) else RETRY_S
        self._ask("story", HistoryAsked(), partial(self._on_history, again_s))

    def _on_history(self, again_s: float, answers: AwaitedResponse) -> None:
        self._take_history(answers.only)
        self._tell()
        self._later("story", again_s, self._ask_events)

    def _take_events(self, told: Answer | None) -> None:
        if not isinstance(told, EventsTold):
            return
        self._heard[self._teller] = told.last
        for event in _known(told.events, _event):
            # As in `observe.merged_story`: several nodes' events are those of the first.
            if self._tellers.setdefault(event.key, event.by) == event.by:
                self._mishaps.take(event)
                self._shown.events.append(event)

    def _take_history(self, told: Answer | None) -> None:
        if not isinstance(told, HistoryTold):
            return
        start = time.time() - told.total_s
        self._shown.ledger = views.ledger_shown(start, told.total_s, told.parts_s)
        self._shown.segments = _known(told.segments, _segment)
        lanes = [
            LaneShown(self._name_of(node), one.start, one.end if one.is_gone else None, one.runs)
            for node, packed in told.nodes.items()
            for one in _known([packed], _node)
        ]
        self._shown.lanes = sorted(lanes, key=lambda lane: (len(lane.node), lane.node))
        self._pace.steps_per_s = told.steps_per_s
        self._shown.incidents = views.incidents_shown(_known(told.interruptions, _interruption))

    # Where else the job can be watched.

    def _ask_dashboards(self) -> None:
        names = [self._teller, *(node.name for node in self._shown.nodes)]
        some = [*dict.fromkeys(names)][:DASHBOARDS_MOST]
        self._ask("dashboards", DashboardAsked(), self._on_dashboards, of="some", nodes=some)

    def _on_dashboards(self, answers: AwaitedResponse) -> None:
        self._shown.dashboards = [
            DashboardShown(node, one.url, one.key)
            for node, one in answers.by_node.items()
            if isinstance(one, DashboardTold) and _PAGE.fullmatch(one.url)
        ]
        self._tell()
        self._later("dashboards", DASHBOARDS_S, self._ask_dashboards)


def _known(packed: Iterable[bytes], decoder: msgspec.msgpack.Decoder[Told]) -> list[Told]:
    """All that can be read: the node that sent it may be of another version."""
    found = []
    for one in packed:
        with suppress(msgspec.MsgspecError):
            found.append(decoder.decode(one))
    return found
