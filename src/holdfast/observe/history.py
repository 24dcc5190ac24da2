"""The history of a job: the one interpreter of journal steps, behind every view.

The live line, `holdfast status`, the dashboard, the report, the metrics and the closing line read
rounds, interruptions and times from here; `story` makes sentences of the same steps.

Rules
1. Its input is steps in the order of time: of one node as they are taken, or of several nodes
   from their journals. It decides nothing, and knows no more than the steps say.
2. The coordinator names the end of a round (`StopRound.kind`). Until that comes, a worker that
   failed ended it. A failure that was not charged was a loss: of a lost node the peers fail first.
3. A stall begins with the last step that was made, not with its detection.
4. Its size grows with the number of rounds, not with that of steps.
"""

from __future__ import annotations

from collections import Counter, deque
from typing import TYPE_CHECKING, Literal

from msgspec import Struct, field
from msgspec.structs import replace

from holdfast.core import coordinator_io as decided
from holdfast.core import node_io as happened
from holdfast.core.membership import NodeGone, NodeSuspected
from holdfast.core.policy.config import JobConfig
from holdfast.core.protocol import messages as said
from holdfast.core.protocol.model import Assignment, Outcome
from holdfast.observe.journal import CoordinatorStep, Gap, JournalHeader, NodeStep, Step

if TYPE_CHECKING:
    from holdfast.observe.goodput import Interruption, Part, TimeLedger

EndedBy = Literal["", "failure", "loss", "hang", "drain", "newcomers", "asked", "success"]
"""The reason for a round's end; empty while it runs, and if a journal does not say."""
PACE_OVER_S = 30.0
"""A pace covers at most this many seconds of steps."""
TOLD_NODES_MOST = 64
"""The most nodes without a journal here that are remembered."""
ROUNDS_KEPT = 64
ROUNDS_MOST = 2 * ROUNDS_KEPT
INTERRUPTIONS_KEPT = 200
"""How much a running job remembers."""
INCIDENTS: tuple[EndedBy, ...] = ("failure", "loss", "hang")
"""Unwanted ends. The other ends are requested changes."""


class RoundHistory(Struct):
    """One round so far. Times are those of the steps that were fed."""

    number: int
    announced: float
    ranks: int = 0
    nodes: int = 0
    restarts: int = 0
    """Restarts counted against `--max-restarts` before it."""
    unstarted: dict[str, set[int]] = field(default_factory=dict)
    """Workers that are to exist and do not yet: local ranks, by node."""
    started: float | None = None
    """When the last known worker existed."""
    imports_s: float = 0.0
    first_stepped: float | None = None
    first_step: int | None = None
    furthest_step: int | None = None
    last_stepped: float | None = None
    stalled: float | None = None
    """Since when the workers have stalled, if that was detected."""
    ended: float | None = None
    """When the need to end it was detected."""
    ended_by: EndedBy = ""
    unnoticed_s: float = 0.0
    """How much earlier something was wrong already."""
    reason: str = ""
    decision: str = ""
    """The decision, in words."""
    failed_ranks: set[int] = field(default_factory=set)
    stopped: float | None = None
    """When its last known process was gone."""
    succeeded: float | None = None
    """When the last node's workers had succeeded."""

    @property
    def has_started(self) -> bool:
        """Whether all known workers exist."""
        return self.started is not None and not any(self.unstarted.values())


class RoundSpan(Struct, frozen=True):
    """A round as shown: its times, its size, and its end."""

    number: int
    began: float
    ended: float | None
    ended_by: EndedBy
    reason: str
    ranks: int
    nodes: int
    restarts: int


class Recovery(Struct, frozen=True):
    """From the detection of a round's end to the next one's first step.

    Its parts: stop (nothing of the old round is left), form (the next one is announced, pauses
    included), spawn (every worker's process exists), first step (where workers report steps).
    """

    from_round: int
    to_round: int
    parts_s: dict[str, float]

    @property
    def total_s(self) -> float:
        return sum(self.parts_s.values())

    def in_words(self) -> str:
        """Its duration, and that of each part."""
        parts = ", ".join(f"{name} {part_s * 1000:.0f}" for name, part_s in self.parts_s.items())
        return f"recovered in {self.total_s * 1000:.0f} ms ({parts})"

    def shortly(self) -> str:
        """The same without its parts."""
        took_s = self.total_s
        took = f"{took_s * 1000:.0f} ms" if took_s < 10.0 else f"{took_s:.0f} s"
        return f"recovered in {took} (round {self.to_round})"


class TimeSpan(Struct):
    """From, and to if it is over."""

    start: float
    end: float | None = None


class NodeRun(Struct):
    """When workers of one round ran on one node."""

    round: int
    start: float
    end: float = float("inf")
    """Infinite while they run, and if not known."""


class NodeHistory(Struct):
    """One node's own steps, or the coordinator's about it."""

    start: float
    end: float
    runs: list[NodeRun] = field(default_factory=list)
    has_finished: bool = False
    """Whether its journal goes on to its own end."""
    is_gone: bool = False
    """Whether it has left, or was lost."""


class Wait(Struct, frozen=True):
    """What is waited for, since when, and at most until when, if known."""

    words: str
    since: float
    until: float | None = None


class History:
    """The job so far."""

    def __init__(self, config: JobConfig) -> None:
        self.config = config
        self.start: float | None = None
        self.end = 0.0
        self.closed: float | None = None
        """When the end of the job was known."""
        self.outcome: Outcome | None = None
        self.finished: dict[str, Outcome] = {}
        """The end of each node that ended."""
        self.nodes: dict[str, NodeHistory] = {}
        self.rounds: list[RoundHistory] = []
        self.imports: list[TimeSpan] = []
        self.waits: list[TimeSpan] = []
        self.pauses: list[TimeSpan] = []
        self.recoveries: list[Recovery] = []
        """In order. A round that ends before its first step has recovered nothing."""
        self.exits: Counter[str] = Counter(succeeded=0, failed=0, stopped=0)
        """Exits of workers on nodes whose steps are the input."""
        self.formed = 0
        """The number of rounds, including forgotten ones."""
        self.ends: Counter[EndedBy] = Counter()
        """The ends of judged rounds."""
        self.hangs = 0
        """How often the whole job was found stalled, whether or not that ended a round."""
        self.stragglers = 0
        """How often a worker was found slower than the others, on nodes that were fed."""
        self.first_step: int | None = None
        self.furthest_step: int | None = None
        """Of all rounds."""
        self.reports_steps = False
        self._latest: deque[tuple[float, int]] = deque(maxlen=64)
        """When the furthest step of the present round grew, lately."""
        self.waiting: Wait | None = None
        """What the next round waits for."""
        self.contact_lost: float | None = None
        """Since when the coordinator cannot be reached."""
        self._by_number: dict[int, RoundHistory] = {}
        self._importing: dict[str, TimeSpan] = {}
        self._stopping: set[str] = set()
        """Nodes that are ending their workers."""
        self._ranks: dict[str, dict[int, int]] = {}
        """Of each node's workers, by local rank."""
        self._unrecovered: RoundHistory | None = None
        """The ended round after which none has got as far as its first step."""

    @property
    def current(self) -> RoundHistory | None:
        """The last round, running or not."""
        return self.rounds[-1] if self.rounds else None

    @property
    def is_running(self) -> bool:
        last = self.current
        return last is not None and last.ended is None and self.closed is None

    @property
    def is_stalled(self) -> bool:
        """Whether the present round was found stalled, and still is."""
        last = self.current
        return self.is_running and last is not None and last.stalled is not None

    @property
    def restarts(self) -> int:
        """Restarts counted against `--max-restarts`."""
        return self.rounds[-1].restarts if self.rounds else 0

    @property
    def pace(self) -> float:
        """Steps a second while steps were made, lately; 0 if not known."""
        if len(self._latest) < 2:
            return 0.0
        (first_at, first), (last_at, last) = self._latest[0], self._latest[-1]
        return (last - first) / (last_at - first_at) if last_at > first_at else 0.0

    def spans(self) -> tuple[RoundSpan, ...]:
        """All rounds that are remembered."""
        return tuple(
            RoundSpan(
                one.number,
                one.announced,
                one.succeeded if one.succeeded is not None else one.ended,
                one.ended_by,
                one.reason,
                one.ranks,
                one.nodes,
                one.restarts,
            )
            for one in self.rounds
        )

    def is_stopping(self, node: str) -> bool:
        """Whether the node's workers end because they were told to, or one of them has failed."""
        return node in self._stopping

    def rank_of(self, node: str, local_rank: int) -> int:
        """The rank of a worker of the node's last round; the local rank if it has none."""
        return self._ranks.get(node, {}).get(local_rank, local_rank)

    def feed(self, node: str, at: float, step: Step) -> None:
        """Take in a step of a node, at that time."""
        self.start = at if self.start is None else min(self.start, at)
        self.end = max(self.end, at)
        known = self.nodes.setdefault(node, NodeHistory(at, at))
        known.start, known.end = min(known.start, at), max(known.end, at)
        if isinstance(step, NodeStep):
            self._of_agent(node, at, step)
        elif isinstance(step, CoordinatorStep):
            self._of_coordinator(at, step)

    def forget_before(self, moment: float) -> None:
        """Keep only what belongs to rounds announced then or later."""
        self.start = moment
        self.rounds = [one for one in self.rounds if one.announced >= moment]
        self._by_number = {one.number: one for one in self.rounds}
        for node in self.nodes.values():
            node.runs = [one for one in node.runs if one.end > moment]
        for spans in (self.imports, self.waits, self.pauses):
            spans[:] = [one for one in spans if one.end is None or one.end > moment]

    # Events of a round, from any node.

    def _announced(self, at: float, assignment: Assignment) -> None:
        known = self._by_number.get(assignment.round)
        if known is not None:
            known.announced = min(known.announced, at)
            return
        known = RoundHistory(
            assignment.round,
            at,
            assignment.world_size,
            assignment.group_size,
            assignment.restart_count,
        )
        self._judge_last(known)
        self._by_number[known.number] = known
        self.rounds.append(known)
        self.formed += 1
        if len(self.rounds) > 1 and self.rounds[-2].number > known.number:
            self.rounds.sort(key=lambda one: one.number)
        self._end_waits(at)
        self._latest.clear()

    def _judge_last(self, following: RoundHistory) -> None:
        """A failure that was not counted was the loss of a node (rule 2)."""
        last = self.current
        if last is None or last.ended is None:
            return
        is_next = following.number == last.number + 1
        if last.ended_by == "failure" and is_next and following.restarts == last.restarts:
            last.ended_by = "loss"
        self.ends[last.ended_by] += 1

    def _ended(
        self, number: int, at: float, by: EndedBy, reason: str = "", unnoticed_s: float = 0.0
    ) -> None:
        known = self._by_number.get(number)
        if known is None or known.succeeded is not None:
            return
        if known.ended is None:
            known.ended, known.unnoticed_s = at, unnoticed_s
            if known.stalled is not None:
                known.unnoticed_s = max(unnoticed_s, at - known.stalled)
            self._unrecovered = known
        if not known.reason:
            is_hang = known.stalled is not None and by in ("failure", "")
            known.ended_by = "hang" if is_hang else by or known.ended_by
            known.reason = reason

    def _stepped(self, number: int, at: float, step: int) -> None:
        known = self._by_number.get(number)
        if known is None:
            return
        self.reports_steps = True
        self.first_step = min(step, step if self.first_step is None else self.first_step)
        self.furthest_step = max(step, self.furthest_step or 0)
        if known.first_stepped is None:
            known.first_stepped, known.first_step = at, step
        if known is self.current and known.has_started:
            self._recovered()
        known.first_step = min(step, step if known.first_step is None else known.first_step)
        if known.furthest_step is None or step > known.furthest_step:
            known.furthest_step, known.last_stepped = step, at
            if known is self.current:
                self._note_pace(at, step)

    def _note_pace(self, at: float, step: int) -> None:
        self._latest.append((at, step))
        while self._latest[-1][0] - self._latest[0][0] > PACE_OVER_S:
            self._latest.popleft()

    def _stalled(self, number: int, is_hang: bool = True) -> None:
        known = self._by_number.get(number)
        if known is not None and known.ended is None and known.stalled is None:
            known.stalled = known.last_stepped or known.started or known.announced
            self.hangs += is_hang

    def _resumed(self, number: int) -> None:
        known = self._by_number.get(number)
        if known is not None and known.ended is None:
            known.stalled = None

    def _all_gone(self, node: str, at: float, number: int) -> None:
        self._run_ended(node, at)
        known = self._by_number.get(number)
        if known is not None and known.ended is not None:
            known.stopped = max(at, known.stopped or at)

    def _has_succeeded(self, node: str, at: float, number: int) -> None:
        self._run_ended(node, at)
        known = self._by_number.get(number)
        if known is not None:
            known.succeeded = max(at, known.succeeded or at)

    def _close(self, at: float, outcome: Outcome) -> None:
        is_news = self.closed is None
        self.closed = at if self.closed is None else min(self.closed, at)
        self.outcome = self.outcome or outcome
        self._end_waits(at)
        last = self.current
        if last is None:
            return
        if outcome.verdict == "succeeded":
            self._recovered()
            if last.ended is None:
                last.succeeded, last.ended_by = last.succeeded or at, "success"
            return
        last.succeeded = None
        by: EndedBy = "asked" if outcome.verdict == "interrupted" else "failure"
        self._ended(last.number, at, by, outcome.reason)
        if is_news:
            self.ends[last.ended_by] += 1

    # Times in which workers ran.

    def _node_told_of(self, node: str, at: float) -> NodeHistory | None:
        """A node that the coordinator names; None if there are too many."""
        if node not in self.nodes and len(self.nodes) < TOLD_NODES_MOST:
            self.nodes[node] = NodeHistory(at, at)
        return self.nodes.get(node)

    def _run_announced(self, node: str, at: float, number: int) -> None:
        known = self._node_told_of(node, at)
        if known is not None and all(run.round < number for run in known.runs[-1:]):
            self._run_ended(node, at)
            known.is_gone = False
            known.runs.append(NodeRun(number, at))

    def _run_started(self, node: str, at: float, number: int) -> None:
        """The node's own report wins."""
        self._run_announced(node, at, number)
        for run in self.nodes[node].runs[-1:]:
            run.start = at

    def _run_ended(self, node: str, at: float) -> None:
        """No worker of the node's last round is left."""
        for run in self.nodes[node].runs[-1:] if node in self.nodes else ():
            run.end = min(at, run.end)

    def _node_gone(self, node: str, at: float) -> None:
        self._run_ended(node, at)
        if node in self.nodes:
            known = self.nodes[node]
            known.end, known.is_gone = max(at, known.end), True

    # Recoveries.

    def _recovered(self) -> None:
        """The next round has reached the end of the recovery."""
        before, after = self._unrecovered, self.current
        if before is None or after is None or after.number <= before.number:
            return
        self._unrecovered = None
        self.recoveries.append(recovery(before, after))

    # Waits.

    def _end_waits(self, at: float) -> None:
        for span in (*self.waits[-1:], *self.pauses[-1:]):
            span.end = at if span.end is None else min(span.end, at)
        self.waiting = None

    def _wait(self, at: float, words: str, within_s: float = 0.0) -> None:
        if self.is_running:
            return
        self._wait_for(at, words, within_s)
        if not self.waits or self.waits[-1].end is not None:
            self.waits.append(TimeSpan(at))

    def _wait_for(self, at: float, words: str, within_s: float = 0.0) -> None:
        if self.waiting is None or self.waiting.words != words:
            self.waiting = Wait(words, at, at + within_s if within_s else None)

    # One node.

    def _of_agent(self, node: str, at: float, step: NodeStep) -> None:
        event = step.event
        match event:
            case happened.Told(message=message):
                self._told(node, at, message)
            case happened.WorkerStarted(round=number, local_rank=local_rank):
                self._worker_started(node, at, number, local_rank)
            case happened.ImportLeft(took_s=took_s) if self.rounds:
                self.rounds[-1].imports_s = max(took_s, self.rounds[-1].imports_s)
            case happened.StepReported(round=number, step=reached, age_s=age_s):
                self._stepped(number, at - age_s, reached)
            case happened.WorkerExited():
                self._worker_exited(node, at, event)
            case happened.StallOver(round=number):
                self._resumed(number)
            case happened.StragglerFound():
                self.stragglers += 1
            case happened.DeadlineMissed(round=number):
                self._stalled(number, is_hang=False)
            case happened.SpawnerLost():
                self._run_ended(node, at)
            case happened.AllGone(round=number) if self.rounds:
                self._all_gone(node, at, number or self.rounds[-1].number)
            case happened.ZygoteReady() | happened.ZygoteLost():
                self._end_import(node, at)
            case happened.CoordinatorLost() if self.contact_lost is None:
                self.contact_lost = at
            case happened.CoordinatorReached():
                self.contact_lost = None
        for effect in step.effects:
            self._effect_of_agent(node, at, effect, event)

    def _worker_started(self, node: str, at: float, number: int, local_rank: int) -> None:
        known = self._by_number.get(number)
        if known is None or known.ended is not None:
            return
        known.unstarted.get(node, set()).discard(local_rank)
        known.started = max(at, known.started or at)
        if not known.has_started:
            return
        if not self.reports_steps or known.first_stepped is not None:
            self._recovered()

    def _worker_exited(self, node: str, at: float, event: happened.WorkerExited) -> None:
        is_stopped = node in self._stopping
        how = "succeeded" if event.status.succeeded else "stopped" if is_stopped else "failed"
        self.exits[how] += 1
        if how != "failed":
            return
        self._note_failed(event.round, self.rank_of(node, event.local_rank))
        self._ended(event.round, at, "failure", unnoticed_s=_raised_before(event))
        last = self.current
        if last is not None and last.number == event.round:
            self._stopping.add(node)

    def _note_failed(self, number: int, rank: int) -> None:
        known = self._by_number.get(number)
        if known is not None:
            known.failed_ranks.add(rank)

    def _of_both(self, at: float, message: said.ToNode, silent_s: float = 0.0) -> None:
        """A message to nodes, as the coordinator sends it or a node gets it."""
        match message:
            case said.RunRound(assignment=assignment):
                self._announced(at, assignment)
            case said.StopRound(round=number, reason=reason, kind=kind):
                self._ended(number, at, kind or "", reason, silent_s)
            case said.TellHang(round=number):
                self._stalled(number)
            case said.CloseJob(outcome=outcome):
                self._close(at, outcome)

    def _told(self, node: str, at: float, message: said.ToNode) -> None:
        self._of_both(at, message)
        match message:
            case said.RunRound(assignment=assignment):
                self._stopping.discard(node)
                ranks = {one.local_rank: one.rank for one in assignment.workers}
                self._ranks[node] = ranks
                self._by_number[assignment.round].unstarted[node] = set(ranks)
            case said.StopRound(round=number) if number in self._by_number:
                self._stopping.add(node)
            case said.Welcomed(waiting=waiting) if waiting and not self.is_running:
                self._wait_for(at, waiting)
            case said.StandBy(reason=reason):
                self._wait(at, reason)

    def _effect_of_agent(
        self, node: str, at: float, effect: happened.NodeEffect, event: happened.NodeEvent
    ) -> None:
        match effect:
            case happened.StartZygote(beside=False):
                if node not in self._importing:
                    self._importing[node] = TimeSpan(at)
                    self.imports.append(self._importing[node])
            case happened.DropZygote():
                self._end_import(node, at)
            case happened.SignalWorkers(stops=True) | happened.KillEverything():
                self._stops(node, at, event)
            case happened.StartWorkers():
                message = event.message if isinstance(event, happened.Told) else None
                if isinstance(message, said.RunRound):
                    self._run_started(node, at, message.assignment.round)
            case happened.Report(message=said.WorkersSucceeded(round=number)):
                self._has_succeeded(node, at, number)
            case happened.Finish(outcome=outcome):
                self.nodes[node].has_finished = True
                self.finished[node] = outcome
                self._node_gone(node, at)
                if self.config.max_nodes == 1:
                    self._close(at, outcome)

    def _stops(self, node: str, at: float, event: happened.NodeEvent) -> None:
        message = event.message if isinstance(event, happened.Told) else event
        if isinstance(message, said.TellHang | happened.DeadlineMissed | happened.UnexitedFound):
            return  # One worker is ended for it: its failure is what ends the round.
        self._stopping.add(node)
        if self.rounds and not isinstance(event, happened.Told | happened.WorkerExited):
            lost = isinstance(event, happened.LeaseRanOut | happened.CoordinatorLost)
            self._ended(self.rounds[-1].number, at, "loss" if lost else "")

    def _end_import(self, node: str, at: float) -> None:
        span = self._importing.pop(node, None)
        if span is not None:
            span.end = at

    # The coordinator.

    def _of_coordinator(self, at: float, step: CoordinatorStep) -> None:
        event = step.event
        silent_s = event.silent_s if isinstance(event, NodeSuspected | NodeGone) else 0.0
        if isinstance(event, decided.Heard):
            self._heard(event.node, at, event.message)
        elif isinstance(event, NodeGone):
            self._node_gone(event.node, at)
        for effect in step.effects:
            match effect:
                case decided.Tell(node=node, message=message):
                    self._of_both(at, message, silent_s)
                    if isinstance(message, said.RunRound):
                        self._run_announced(node, at, message.assignment.round)
                case decided.Explain():
                    self._explained(at, effect)

    def _heard(self, node: str, at: float, message: said.FromNode) -> None:
        match message:
            case said.NodeJoined():
                self._node_told_of(node, at)
            case said.NodeLeft():
                self._node_gone(node, at)
            case said.WorkersProgressed(round=number, step=reached, age_s=age_s):
                self._stepped(number, at - age_s, reached)
            case said.WorkersFailed(round=number, failures=failures):
                for failure in failures:
                    if not failure.stopped_by_us:
                        self._note_failed(number, failure.rank)
            case said.WorkersResumed(round=number):
                self._resumed(number)
            case said.RoundStopped(round=number):
                self._all_gone(node, at, number)
            case said.WorkersSucceeded(round=number):
                self._has_succeeded(node, at, number)

    def _explained(self, at: float, effect: decided.Explain) -> None:
        if effect.topic == "waiting":
            self._wait(at, effect.text, effect.within_s)
        last = self.current
        if effect.topic in ("restart", "re-form") and last is not None:
            last.decision = last.decision or effect.text
        if effect.topic == "re-form" and last is not None and last.ended_by == "failure":
            last.ended_by = "loss"
        if effect.pause_s:
            self.pauses.append(TimeSpan(at, at + effect.pause_s))


def recovery(before: RoundHistory, after: RoundHistory) -> Recovery:
    """The known parts."""
    known = before.ended if before.ended is not None else before.announced
    parts: dict[str, float] = {}
    mark = known
    if before.stopped is not None:
        mark = min(max(known, before.stopped), after.announced)
        parts["stop"] = mark - known
    parts["form"] = max(0.0, after.announced - mark)
    if after.started is not None:
        parts["spawn"] = after.started - after.announced
        if after.first_stepped is not None:
            parts["first step"] = max(0.0, after.first_stepped - after.started)
    return Recovery(before.number, after.number, parts)


def _raised_before(event: happened.WorkerExited) -> float:
    """How long before the detection a worker wrote down its failure, by its own clock."""
    if event.error.timestamp is None or not event.wall_time:
        return 0.0
    return max(0.0, event.wall_time - event.error.timestamp)


# A job that runs.


class LiveHistory:
    """The history of a running job, from the steps of one node.

    Its times are those for people, counted on the node's own clock from the moment of the journal's
    first line: a clock that is set meanwhile bends no duration. Where the time went before the last
    `ROUNDS_KEPT` rounds is worked out once, so that asking again costs the same however many rounds
    there were. Their steps that would be made again later than that stay useful.
    """

    def __init__(self, header: JournalHeader) -> None:
        self._node = header.node
        self._clock = header.clock
        self.history = History(header.config)
        self._past_s: dict[Part, float] = {}
        """Of rounds that are forgotten; so are their interruptions."""
        self._past: list[Interruption] = []

    def feed(self, step: Step) -> None:
        if not isinstance(step, Gap):
            self.history.feed(self._node, self.time_of(step.at), step)

    def time_of(self, at: float) -> float:
        """A moment of the node's own clock, on that of the history."""
        return self._clock.wall + (at - self._clock.at)

    def age_s(self, now: float) -> float:
        """How long ago the first step was taken."""
        start = self.history.start
        return 0.0 if start is None else max(0.0, self.time_of(now) - start)

    def running_s(self, now: float) -> float:
        """How long ago the last of the present round's workers came to exist."""
        last = self.history.current
        since = self._clock.wall if last is None else last.started or last.announced
        return self.time_of(now) - since

    def step_age_s(self, now: float) -> float | None:
        """How long ago the furthest step of the present round was made."""
        last = self.history.current
        if last is None or last.last_stepped is None:
            return None
        return max(0.0, self.time_of(now) - last.last_stepped)

    def book(self, now: float) -> TimeLedger:
        """The time ledger up to this moment of the node's own clock.

        Its segments are those of the last rounds.
        """
        from holdfast.observe.goodput import ledger

        until, rounds = self.time_of(now), self.history.rounds
        if len(rounds) > ROUNDS_MOST:
            first = rounds[-ROUNDS_KEPT]
            known = ledger(self.history, until).interruptions
            self._past += [one for one in known if one.round < first.number]
            del self._past[:-INTERRUPTIONS_KEPT]
            self._past_s = self._with_past(ledger(self.history, first.announced))
            self.history.forget_before(first.announced)
        recent = ledger(self.history, until)
        interruptions = (*self._past, *recent.interruptions)
        return replace(recent, parts_s=self._with_past(recent), interruptions=interruptions)

    def _with_past(self, book: TimeLedger) -> dict[Part, float]:
        return {part: self._past_s.get(part, 0.0) + s for part, s in book.parts_s.items()}
