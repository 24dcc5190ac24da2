"""A job that exists only in what it answers: as large as a test wants, and doing what it says."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence

import msgspec

from holdfast.core.protocol.messages import CloseRequest
from holdfast.core.protocol.model import Outcome
from holdfast.core.protocol.requests import (
    Answer,
    DashboardAsked,
    DashboardTold,
    DrainWanted,
    EventsAsked,
    EventsTold,
    HistoryAsked,
    HistoryTold,
    JobAsked,
    JobRequest,
    JobTold,
    LogBlock,
    LogsAsked,
    LogsTold,
    NodeOverview,
    NotKnown,
    RankOverview,
    RanksAsked,
    RanksTold,
    RestartWanted,
    SaveWanted,
    ScaleWanted,
    StacksAsked,
    StacksTold,
    StopWanted,
    UnderWay,
    pack,
)
from holdfast.dashboard.source import AwaitedResponse, Recipients
from holdfast.observe.goodput import Interruption, Segment
from holdfast.observe.history import NodeHistory
from holdfast.observe.story import StoryEvent

PAGE = 2000


class MadeUpJob:
    """Answers at once, as `dashboard.source.Source`, and remembers what it was asked."""

    def __init__(self, nodes: int = 2, slots: int = 4, seed: int = 1) -> None:
        self.node, self.nodes, self.slots = "n0-id", nodes, slots
        self.began = time.monotonic()
        self.step_s = 0.125
        self.round, self.stage = 1, "running"
        self.outcome: Outcome | None = None
        self.refusal = self.unwilling = ""
        self.coordinator = "n0"
        self.events: list[StoryEvent] = []
        self.interruptions: list[Interruption] = []
        self.asked: list[JobRequest] = []
        self.waiting: list[tuple[EventsAsked, AwaitedResponse]] = []
        self.stacks: dict[str, StacksTold] = {}
        self.dashboards: dict[str, DashboardTold] = {}
        self.later: Callable[..., object] = lambda delay_s, what, *args: None
        """Of the loop that serves it."""
        self._random = random.Random(seed)
        self.slow: set[int] = set()
        self.ended: set[int] = set()
        """Workers whose processes have ended."""
        self.stalled_at: float | None = None
        """Since when no worker makes a step."""
        self.written: list[LogBlock] = []
        """Of the workers of the first node."""
        self.segments: list[Segment] = []
        self.histories: dict[str, NodeHistory] = {}

    def tell(self, *events: StoryEvent) -> None:
        """These happened just now."""
        self.events += events
        waiting, self.waiting = self.waiting, []
        for request, pending in waiting:
            self.ask(request, pending)

    def ask(
        self,
        request: JobRequest,
        pending: AwaitedResponse,
        of: Recipients = "coordinator",
        nodes: Sequence[str] = (),
    ) -> None:
        self.asked.append(request)
        if self.refusal:
            pending.on_settled(CloseRequest(0, self.refusal))
            return
        if isinstance(request, EventsAsked) and request.after >= len(self.events):
            self.waiting.append((request, pending))
            self.later(request.wait_s, self._answer_waiting, request, pending)
            return
        self._tell(request, pending, of, nodes)

    def _answer_waiting(self, request: EventsAsked, pending: AwaitedResponse) -> None:
        if (request, pending) in self.waiting:
            self.waiting.remove((request, pending))
            self._tell(request, pending, "coordinator", ())

    def _tell(
        self, request: JobRequest, pending: AwaitedResponse, of: Recipients, nodes: Sequence[str]
    ) -> None:
        names = [f"n{k}" for k in range(self.nodes)] if of == "all" else list(nodes)
        for name in names if of != "coordinator" else [self.coordinator]:
            pending.on_answer(0, name, pack(self._answer(request, name)))
        pending.on_settled(CloseRequest(0))

    def _answer(self, request: JobRequest, node: str) -> Answer:
        match request:
            case JobAsked():
                return self._job(request.first_node)
            case RanksAsked():
                return self._ranks(int(node[1:]))
            case EventsAsked():
                packed = tuple(map(msgspec.msgpack.encode, self.events[request.after :]))
                return EventsTold(packed, len(self.events))
            case LogsAsked():
                after = request.after.get(node, 0)
                found = tuple(self.written[after:]) if node == "n0" else ()
                return LogsTold(found, len(self.written))
            case HistoryAsked():
                parts_s: dict[str, float] = {"useful": 97.5, "stop": 2.5}
                if self.segments:
                    parts_s = dict.fromkeys((one.part for one in self.segments), 0.0)
                for one in self.segments:
                    parts_s[one.part] += one.seconds
                return HistoryTold(
                    sum(parts_s.values()),
                    parts_s,
                    True,
                    tuple(map(msgspec.msgpack.encode, self.interruptions)),
                    1 / self.step_s,
                    None,
                    tuple(map(msgspec.msgpack.encode, self.segments)),
                    {node: msgspec.msgpack.encode(one) for node, one in self.histories.items()},
                )
            case DashboardAsked():
                return self.dashboards.get(node, NotKnown("none here"))
            case StacksAsked():
                return self.stacks.get(node, NotKnown("no worker runs on this node now"))
            case DrainWanted() | RestartWanted() | StopWanted() | SaveWanted() | ScaleWanted():
                return NotKnown(self.unwilling) if self.unwilling else UnderWay()
            case _:
                return NotKnown(f"{type(request).__name__} is not made up")

    def step(self) -> int:
        now = time.monotonic() if self.stalled_at is None else self.stalled_at
        return int((now - self.began) / self.step_s)

    def _job(self, first: int) -> JobTold:
        page = [self._node(k) for k in range(first, min(first + PAGE, self.nodes))]
        return JobTold(
            run_id="made-up",
            stage=self.stage,  # type: ignore[arg-type]
            round=self.round,
            world_size=self.nodes * self.slots,
            round_age_s=1.0,
            coordinator=self.coordinator,
            min_nodes=1,
            max_nodes=self.nodes,
            restarts=self.round - 1,
            max_restarts=10,
            step=self.step(),
            waiting="",
            nodes=tuple(page),
            node_count=self.nodes,
            outcome=self.outcome,
        )

    def _node(self, k: int) -> NodeOverview:
        first = k * self.slots
        return NodeOverview(
            f"n{k}-id", f"n{k}", f"host{k}", "in the round", k, first, self.slots, 0.1
        )

    def _ranks(self, k: int) -> RanksTold:
        first, chance = k * self.slots, self._random
        age_s = 0.1 if self.stalled_at is None else time.monotonic() - self.stalled_at
        return RanksTold(
            f"host{k}",
            tuple(
                RankOverview(
                    rank,
                    rank - first,
                    10_000 + rank,
                    "finished" if rank in self.ended else "running",
                    max(0, self.step() - (chance.random() < 0.1)),
                    age_s,
                    (1 / self.step_s) * (0.3 if rank in self.slow else 0.98 + chance.random() / 50),
                    "",
                    0.8 + chance.random() / 5,
                    (20_000 + int(chance.random() * 40)) << 20,
                )
                for rank in range(first, first + self.slots)
            ),
        )
