"""The story of a job: events in words, made from journal steps only here.

Every view (the live line, `--json`, `holdfast report`, the dashboard, metrics) shows these.

Rules
1. A `Storyteller` follows the steps of a node as they are taken, or those of all nodes as journals
   have them (`observe.merged_story`). Each step gives no, one or several events. It decides
   nothing and knows no more than the steps say.
2. The words are those of the console wherever it says something. Elsewhere they
   are one plain sentence. A line of the console of no known kind is `said`.
3. An event that several machines tell (a round's end: the coordinator decides, the agents are told)
   is one event: `StoryEvent.key` is the same, and the first one counts.
4. `at` is the time for people, in seconds since 1970, to the millisecond.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Literal

import msgspec

from holdfast.core import coordinator_io as decided
from holdfast.core import node_io as happened
from holdfast.core.membership import NodeGone, NodeHeardAgain, NodeSuspected
from holdfast.core.policy import root_cause
from holdfast.core.protocol import messages as said
from holdfast.core.protocol.bounds import clean
from holdfast.core.protocol.model import Failure, NodeInfo, Outcome
from holdfast.core.protocol.naming import host_of
from holdfast.observe.history import EndedBy, History, Recovery
from holdfast.observe.journal import (
    AgentFailed,
    ClockPair,
    ClockRead,
    CoordinatorBegan,
    CoordinatorStep,
    ElectionStep,
    Gap,
    JournalHeader,
    NodeStep,
    Step,
)
from holdfast.observe.report import headline
from holdfast.observe.summary import counted

Kind = Literal[
    "node_started", "node_joined", "node_left", "node_suspected", "node_back", "node_lost",
    "contact_lost", "contact_back", "coordinator", "takeover", "imported", "waiting", "standby",
    "round_formed", "first_step", "worker_failed", "straggler", "hang", "moving_again", "drain",
    "save", "round_ended", "lease_ended", "decision", "recovered", "workers_done", "job_finished",
    "summary", "gap", "said",
]  # fmt: skip
"""All kinds of events. Views may rely on it: a new one is a change of the format."""
Decision = Literal["", "restart", "re-form", "give up"]
Key = tuple[Kind, int, str, int | None, str]

OF_ROUNDS_KEPT = 4
"""Older rounds tell nothing new, so nothing is remembered of them."""

SAYING: dict[type, Kind] = {
    happened.SignalReceived: "drain",
    happened.StallOver: "moving_again",
    happened.StragglerFound: "straggler",
    happened.DeadlineMissed: "hang",
    happened.UnexitedFound: "hang",
    happened.CoordinatorLost: "contact_lost",
    happened.CoordinatorReached: "contact_back",
    happened.LeaseRanOut: "lease_ended",
    said.StandBy: "standby",
    said.SaveNow: "save",
    said.TellHang: "hang",
    said.Welcomed: "waiting",
}
"""The kind of an agent's line, by the event that caused it."""


class StoryEvent(msgspec.Struct, frozen=True, omit_defaults=True):
    """One event, as shown to people and given to programs."""

    at: float
    """Seconds since 1970, to the millisecond, on the clock of the node that tells it."""
    kind: Kind
    words: str
    by: str
    """The node that tells it; with `seq` the line of its journal."""
    seq: int = 0
    """0 where it is told before it is written."""
    round: int = 0
    node: str = ""
    """The node that it is about; empty if it is the whole job."""
    host: str = ""
    """The name of this node in sentences."""
    rank: int | None = None
    reason: str = ""
    decision: Decision = ""
    parts_s: dict[str, float] = {}
    """Of a recovery: the duration of each part (`observe.history.Recovery`)."""
    ended_by: EndedBy = ""
    """Of a round that ended: the kind of its end."""
    cause: str = ""
    """The event that caused it, as `node:line`, if all journals are given."""

    @property
    def key(self) -> Key:
        """Equal if two events tell the same; a `said` line is always news."""
        words = self.words if self.kind in ("said", "waiting", "drain", "decision") else ""
        node = "" if self.kind in OF_THE_JOB else self.node
        number = 0 if self.kind in OF_NO_ROUND else self.round
        return (self.kind, number, node, self.rank, words)


OF_NO_ROUND = ("waiting", "standby", "job_finished")
"""A newcomer, and a node that stands by, may not know which round it is."""
OF_THE_JOB = ("round_formed", "round_ended", "first_step", "save", "job_finished", "decision",
              "waiting")  # fmt: skip
"""Kinds that are the same wherever they are told."""
AGAIN = ("said", "gap", "contact_lost", "contact_back", "node_joined", "node_started", "hang",
         "moving_again", "straggler", "standby", "node_suspected", "node_back", "node_lost",
         "waiting")  # fmt: skip
"""Told each time by the node that told it first: it may happen twice in one round."""


class Storyteller:
    """Follows the steps of one node, or of several in the order of their times."""

    def __init__(self, header: JournalHeader, *more: JournalHeader) -> None:
        self._headers = {one.node: one for one in (header, *more)}
        self._header = header
        """That of the node whose step is told."""
        self._clocks = {one.node: one.clock for one in (header, *more)}
        self._names = {one.node: one.host for one in (header, *more)}
        self._present: dict[str, None] = {}
        self._told: dict[Key, str] = {}
        """Each event's first teller."""
        self._known_round = 0
        """The round that the coordinator began with."""
        self.history = History(header.config)
        """As of the step before the present one."""

    def feed(self, step: Step, node: str = "", at: float | None = None) -> list[StoryEvent]:
        """Take the next step of that node, or of the only one; return its events, in order.

        `at` is the time of the step among several nodes, in place of that on the node's own clock.
        """
        self._header = self._headers[node] if node else self._header
        node = self._header.node
        if isinstance(step, Gap):
            return [self._gap(step)]
        if isinstance(step, ClockRead):
            self._clocks[node] = ClockPair(step.at, step.wall)
        events = list(self._events(step))
        count = len(self.history.recoveries)
        self.history.feed(node, step.at if at is None else at, step)
        events += [self._recovered(step, one) for one in self.history.recoveries[count:]]
        return [event for event in events if self._is_news(event)]

    @property
    def _round(self) -> int:
        last = self.history.current
        return max(self._known_round, last.number if last is not None else 0)

    def name_of(self, node: str) -> str:
        """A node's name in sentences."""
        return self._names.get(node) or host_of(node)

    def _is_news(self, event: StoryEvent) -> bool:
        if event.kind in AGAIN and len(self._headers) == 1:
            return True
        if event.key in self._told:
            return event.kind in AGAIN and self._told[event.key] == event.by
        self._told[event.key] = event.by
        if event.kind == "round_formed":
            old = event.round - OF_ROUNDS_KEPT
            self._told = {k: by for k, by in self._told.items() if k[1] > old or not k[1]}
        return True

    def _event(self, step: Step, kind: Kind, words: str, **fields: Any) -> StoryEvent:
        node = fields.get("node", "")
        host = self.name_of(node) if node else ""
        words, reason = clean(words), clean(fields.pop("reason", ""))
        fields = {"round": self._round, "host": host, "reason": reason, **fields}
        return StoryEvent(self._time_of(step), kind, words, self._header.node, step.seq, **fields)

    def _time_of(self, step: Step) -> float:
        """For people; of a gap, when the clock was last read."""
        clock = self._clocks[self._header.node]
        return round(clock.wall, 3) if isinstance(step, Gap) else clock.time_of(step.at)

    def _gap(self, step: Gap) -> StoryEvent:
        words = f"{step.missing} lines of this journal are gone: it had become too long"
        return StoryEvent(self._time_of(step), "gap", words, self._header.node, step.seq)

    def _events(self, step: Step) -> Iterator[StoryEvent]:
        match step:
            case NodeStep():
                yield from self._of_agent(step)
            case CoordinatorStep():
                yield from self._of_coordinator(step)
            case CoordinatorBegan():
                yield from self._began(step)
            case ElectionStep():
                yield from self._of_election(step)
            case AgentFailed():
                words = f"this node ended because of an error in Holdfast: {step.reason}"
                yield self._event(step, "said", words)

    # Events of the node itself.

    def _of_agent(self, step: NodeStep) -> Iterator[StoryEvent]:
        own = self._header.node
        texts = [one.text for one in step.effects if isinstance(one, happened.Say)]
        message = step.event.message if isinstance(step.event, happened.Told) else None
        told = list(self._of_agent_event(step, texts))
        yield from told
        kind = SAYING.get(type(step.event if message is None else message), "said")
        if not told or isinstance(step.event, happened.NodeStarted | happened.ZygoteReady):
            yield from (self._event(step, kind, text, node=own) for text in texts)

    def _recovered(self, step: Step, one: Recovery) -> StoryEvent:
        words = f"round {one.to_round}: {one.in_words()}"
        fields = {"round": one.to_round, "parts_s": dict(one.parts_s)}
        return self._event(step, "recovered", words, node=self._header.node, **fields)

    def _of_agent_event(self, step: NodeStep, texts: list[str]) -> Iterator[StoryEvent]:
        own = self._header.node
        match step.event:
            case happened.NodeStarted():
                yield self._event(step, "node_started", f"started on {self._header.host}", node=own)
            case happened.ZygoteReady(preloaded=modules, took_s=took_s, beside=False) if modules:
                what = counted(len(modules), "module")
                words = f"{what} imported once for all workers of this node, in {took_s:.1f} s"
                yield self._event(step, "imported", words, node=own)
            case happened.WorkerExited() as event if event.round == self._round:
                yield from self._worker_ended(step, event)
            case happened.StepReported(round=number, step=reached):
                yield from self._stepped(step, own, number, reached)
            case happened.Told(message=said.Welcomed(name=name)) if name:
                self._names[own] = name
            case happened.Told(message=message):
                yield from self._of_both(step, message, texts)
        for effect in step.effects:
            match effect:
                case happened.Finish(outcome=outcome) if self._header.config.max_nodes == 1:
                    yield self._finished(step, outcome)
                case happened.Finish(outcome=outcome) if outcome.asked == "node":
                    yield self._event(step, "node_left", headline(outcome), node=own)

    def _worker_ended(self, step: NodeStep, event: happened.WorkerExited) -> Iterator[StoryEvent]:
        own = self._header.node
        if not event.status.succeeded and not self.history.is_stopping(own):
            failure = Failure(
                node=own,
                host=self.name_of(own),
                local_rank=event.local_rank,
                rank=self.history.rank_of(own, event.local_rank),
                role=self._header.config.role,
                pid=event.pid,
                status=event.status,
                observed_at=step.at,
                error=event.error,
                out_of_memory=event.out_of_memory,
            )
            yield self._failed(step, failure)
        reports = (one.message for one in step.effects if isinstance(one, happened.Report))
        if any(isinstance(message, said.WorkersSucceeded) for message in reports):
            words = f"all workers of {self.name_of(own)} have succeeded"
            yield self._event(step, "workers_done", words, node=own)

    # Events that both tell.

    def _of_both(
        self, step: Step, message: said.ToNode, texts: Sequence[str] = ()
    ) -> Iterator[StoryEvent]:
        """A message to nodes, as the coordinator sends it or a node gets it."""
        match message:
            case said.RunRound(assignment=assignment):
                size, after = counted(assignment.world_size, "rank"), assignment.restart_count
                where = f" on {assignment.group_size} nodes" if assignment.group_size > 1 else ""
                again = f", after {counted(after, 'restart')}" if after else ""
                words = f"round {assignment.round} begins: {size}{where}{again}"
                yield self._event(step, "round_formed", words, round=assignment.round)
            case said.StopRound(round=number, reason=reason) if number == self._round:
                words = texts[0] if texts else f"round {number} ends: {reason}"
                fields = {"round": number, "reason": reason, "ended_by": message.kind or ""}
                yield self._event(step, "round_ended", words, **fields)
            case said.CloseJob(outcome=outcome):
                yield self._finished(step, outcome)

    def _stepped(self, step: Step, node: str, number: int, reached: int) -> Iterator[StoryEvent]:
        if number == self._round:
            words = f"round {number}: the first step was {reached}"
            yield self._event(step, "first_step", words, node=node)

    def _finished(self, step: Step, outcome: Outcome) -> StoryEvent:
        return self._event(step, "job_finished", headline(outcome), reason=outcome.reason)

    def _failed(self, step: Step, failure: Failure) -> StoryEvent:
        first_line = next(iter(failure.error.message.splitlines()), "")
        return self._event(
            step,
            "worker_failed",
            root_cause.describe(failure),
            node=failure.node,
            rank=failure.rank,
            reason=first_line or str(failure.status),
        )

    # Events of the coordinator.

    def _began(self, step: CoordinatorBegan) -> Iterator[StoryEvent]:
        begun, own = step.beginning, self._header.node
        self._present.clear()
        known = begun.ledger
        if known is None or not known.round:
            words = f"{self.name_of(own)} is the coordinator"
            yield self._event(step, "coordinator", words, node=own)
            return
        self._known_round = known.round
        words = f"{self.name_of(own)} is the coordinator now, and goes on from round {known.round}"
        reason = f"{host_of(begun.dead)} is gone with all its processes" if begun.dead else ""
        yield self._event(step, "takeover", words, node=own, reason=reason)

    def _of_coordinator(self, step: CoordinatorStep) -> Iterator[StoryEvent]:
        match step.event:
            case decided.Heard(node=node, message=message):
                yield from self._heard(step, node, message)
            case NodeSuspected(node=node, reason=reason):
                yield self._about(step, "node_suspected", node, "may be lost", reason)
            case NodeHeardAgain(node=node):
                yield self._event(
                    step, "node_back", f"{self.name_of(node)} is there after all", node=node
                )
            case NodeGone(node=node, reason=reason):
                self._present.pop(node, None)
                yield self._about(step, "node_lost", node, "was lost", reason)
            case decided.LoopDelayed(late_s=late_s):
                words = f"the coordinator itself stood still for {late_s:.1f} s"
                yield self._event(step, "said", words, node=self._header.node)
        yield from self._decided(step)

    def _heard(
        self, step: CoordinatorStep, node: str, message: said.FromNode
    ) -> Iterator[StoryEvent]:
        match message:
            case said.NodeGreeted(info=info, endpoint=endpoint):
                self._welcome(step, node, info)
                if endpoint is not None:
                    yield from self._joined(step, info)
            case said.NodeJoined(info=info):
                yield from self._joined(step, info)
            case said.WorkersFailed(failures=failures):
                for failure in failures:
                    if not failure.stopped_by_us:
                        yield self._failed(step, failure)
            case said.NodeLeft(reason=reason):
                self._present.pop(node, None)
                if self._header.config.max_nodes > 1 and self.history.closed is None:
                    yield self._about(step, "node_left", node, "has left", reason)
            case said.NodeDraining(reason=reason) if self._header.config.max_nodes > 1:
                yield self._about(step, "drain", node, "is leaving", reason)
            case said.WorkersProgressed(round=number, step=reached):
                yield from self._stepped(step, node, number, reached)

    def _welcome(self, step: CoordinatorStep, node: str, info: NodeInfo) -> None:
        names = [
            one.message.name
            for one in step.effects
            if isinstance(one, decided.Tell) and isinstance(one.message, said.Welcomed)
        ]
        self._names[node] = next(filter(None, names), "") or info.host

    def _joined(self, step: CoordinatorStep, info: NodeInfo) -> Iterator[StoryEvent]:
        if self._header.config.max_nodes == 1 or info.node in self._present:
            return
        self._present[info.node] = None
        here = len(self._present)
        nodes = "1 node is here" if here == 1 else f"{here} nodes are here"
        words = f"{self.name_of(info.node)} joined; {nodes}"
        yield self._event(step, "node_joined", words, node=info.node)

    def _decided(self, step: CoordinatorStep) -> Iterator[StoryEvent]:
        """The coordinator's messages to nodes, once however many there are, and to the user."""
        own, seen = self._header.node, set[type]()
        for effect in step.effects:
            match effect:
                case decided.Tell(node=node, message=said.StandBy(reason=reason)):
                    words = f"{self.name_of(node)} stands by: {reason}"
                    yield self._event(step, "standby", words, node=node)
                case decided.Tell(message=message) if type(message) not in seen:
                    seen.add(type(message))
                    yield from self._tells(step, message)
                case decided.Write(ledger=ledger) if ledger.outcome is not None:
                    if ledger.outcome.verdict in ("failed", "not_formed"):
                        reason = ledger.outcome.reason
                        fields = {"reason": reason, "decision": "give up"}
                        yield self._event(step, "decision", f"giving up: {reason}", **fields)
                case decided.Explain(text=text, topic="waiting"):
                    yield self._event(step, "waiting", text)
                case decided.Explain(text=text, topic=topic) if topic:
                    yield self._event(step, "decision", text, reason=text, decision=topic)
                case decided.Explain(text=text):
                    yield self._event(step, "said", text)
                case decided.Resign(reason=reason):
                    words = f"{self.name_of(own)} hands over: {reason}"
                    yield self._event(step, "said", words, node=own)

    def _tells(self, step: CoordinatorStep, message: said.ToNode) -> Iterator[StoryEvent]:
        match message:
            case said.SaveNow(step=int(at), leaves=False):
                yield self._event(step, "said", f"all workers save at step {at:,}")
            case said.SaveNow(reason=reason, within_s=within_s, leaves=leaves):
                asked = "; all workers are asked to save" if leaves else ""
                words = f"{reason}{asked}, within {round(within_s, 1):g} s"
                yield self._event(step, "save", words, reason=reason)
            case said.TellHang(round=number):
                words = f"the job hangs: no worker of round {number} moves"
                yield self._event(step, "hang", words)
            case _:
                yield from self._of_both(step, message)

    def _about(self, step: Step, kind: Kind, node: str, what: str, reason: str) -> StoryEvent:
        name = self.name_of(node)
        words = f"{name} {what}: {reason.removeprefix(f'{name}: ')}"
        return self._event(step, kind, words, node=node, reason=reason)

    def _of_election(self, step: ElectionStep) -> Iterator[StoryEvent]:
        own = self._header.node
        for effect in step.effects:
            # A journal that was read has them as written, a live one as objects.
            fields = effect if isinstance(effect, dict) else msgspec.to_builtins(effect)
            if fields["type"] == "Say":
                yield self._event(step, "said", fields["text"], node=own)
            elif fields["type"] == "StepDown":
                words = f"{self.name_of(own)} is no longer the coordinator: {fields['reason']}"
                yield self._event(step, "said", words, node=own)
