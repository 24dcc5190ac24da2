"""The few moments of a job that its ledger is made of (`observe.goodput`), noted step by step.

Steps may come as they are taken, or out of journals; of one node, or of several in the order of
time. What is kept goes with the number of rounds, not with that of steps.
"""

from __future__ import annotations

from msgspec import Struct, field

from holdfast.core.coordinator import io as decided
from holdfast.core.coordinator.leases import NodeGone, NodeSuspected
from holdfast.core.node import io as happened
from holdfast.core.protocol import messages as said
from holdfast.observe.journal import AgentStep, CoordinatorStep, Step


class RoundMarks(Struct):
    """What is known of one round, in seconds since 1970."""

    number: int
    announced: float
    unborn: dict[str, set[int]] = field(default_factory=dict)
    born: float | None = None
    """When the last of the workers that are known of existed."""
    imports_s: float = 0.0
    first_stepped: float | None = None
    first_step: int | None = None
    furthest_step: int | None = None
    last_stepped: float | None = None
    broken: float | None = None
    known_late_s: float = 0.0
    """How much earlier something was wrong already."""
    reason: str = ""
    gone: float | None = None
    """When the last known process of it was gone."""
    done: float | None = None
    """When the last node's workers had succeeded."""


class TimeSpan(Struct):
    """From, and to if it is over."""

    start: float
    end: float | None = None


class Marks:
    """The few moments that the ledger is made of."""

    def __init__(self) -> None:
        self.start: float | None = None
        self.end = 0.0
        self.closed: float | None = None
        self.rounds: list[RoundMarks] = []
        self.imports: list[TimeSpan] = []
        self.waits: list[TimeSpan] = []
        self.pauses: list[TimeSpan] = []
        self._by_number: dict[int, RoundMarks] = {}
        self._open: list[TimeSpan] = []
        """Waits and pauses that the next round ends."""
        self._importing: dict[str, TimeSpan] = {}
        self._is_stopping: set[str] = set()

    def feed(self, node: str, at: float, step: Step) -> None:
        """Take a step of a node's journal, at that time for people."""
        self.start = at if self.start is None else min(self.start, at)
        self.end = max(self.end, at)
        if isinstance(step, AgentStep):
            self._of_agent(node, at, step)
        elif isinstance(step, CoordinatorStep):
            self._of_coordinator(at, step)

    def forget_before(self, moment: float) -> None:
        """Keep what is of the rounds that were announced then or later."""
        self.start = moment
        self.rounds = [one for one in self.rounds if one.announced >= moment]
        self._by_number = {one.number: one for one in self.rounds}
        for spans in (self.imports, self.waits, self.pauses):
            spans[:] = [one for one in spans if one.end is None or one.end > moment]

    # The rounds.

    def _round(self, number: int, at: float) -> RoundMarks:
        """The marks of a round; it is announced now if nobody has heard of it."""
        marks = self._known(number)
        if marks is not None:
            marks.announced = min(marks.announced, at)
            return marks
        marks = self._by_number[number] = RoundMarks(number, at)
        self.rounds.append(marks)
        if len(self.rounds) > 1 and self.rounds[-2].number > number:
            self.rounds.sort(key=lambda one: one.number)
        self._end_waits(at)
        return marks

    def _known(self, number: int) -> RoundMarks | None:
        return self._by_number.get(number)

    def _broken(self, number: int, at: float, reason: str, late_s: float = 0.0) -> None:
        marks = self._known(number)
        if marks is None or marks.done is not None:
            return
        if marks.broken is None:
            marks.broken, marks.known_late_s = at, late_s
        marks.reason = marks.reason or reason

    def _stepped(self, number: int, at: float, step: int) -> None:
        marks = self._known(number)
        if marks is None:
            return
        if marks.first_stepped is None:
            marks.first_stepped, marks.first_step = at, step
        marks.first_step = min(step, step if marks.first_step is None else marks.first_step)
        if marks.furthest_step is None or step >= marks.furthest_step:
            marks.furthest_step, marks.last_stepped = step, at

    def _end_waits(self, at: float) -> None:
        for span in self._open:
            span.end = at if span.end is None else min(span.end, at)
        self._open.clear()

    def _wait(self, at: float) -> None:
        if not self.waits or self.waits[-1].end is not None:
            self._begin(self.waits, TimeSpan(at))

    def _begin(self, spans: list[TimeSpan], span: TimeSpan) -> None:
        spans.append(span)
        self._open.append(span)

    # One node.

    def _of_agent(self, node: str, at: float, step: AgentStep) -> None:
        event = step.event
        match event:
            case happened.Told(message=message):
                self._told(node, at, message)
            case happened.WorkerStarted(round=number, local_rank=local_rank):
                marks = self._known(number)
                if marks is not None and marks.broken is None:
                    marks.unborn.get(node, set()).discard(local_rank)
                    marks.born = max(at, marks.born or at)
            case happened.ImportLeft(took_s=took_s) if self.rounds:
                self.rounds[-1].imports_s = max(took_s, self.rounds[-1].imports_s)
            case happened.StepReported(round=number, step=reached):
                self._stepped(number, at, reached)
            case happened.WorkerExited(round=number, status=status) if not status.succeeded:
                if node not in self._is_stopping:
                    self._broken(number, at, "", _before(event))
            case happened.LeaseRanOut():
                self._stops(node, at, event)  # The spawner has begun with it.
            case happened.AllGone() if self.rounds and self.rounds[-1].broken is not None:
                self.rounds[-1].gone = max(at, self.rounds[-1].gone or at)
            case happened.ZygoteReady() | happened.ZygoteLost():
                self._end_import(node, at)
        self._effects_of_agent(node, at, step)

    def _told(self, node: str, at: float, message: said.ToNode) -> None:
        match message:
            case said.RunRound(assignment=assignment):
                marks = self._round(assignment.round, at)
                marks.unborn[node] = {one.local_rank for one in assignment.workers}
                self._is_stopping.discard(node)
            case said.StopRound(round=number, reason=reason):
                self._broken(number, at, reason)
            case said.StandBy() if not self._runs():
                self._wait(at)
            case said.CloseJob(outcome=outcome):
                self._close(at, outcome.verdict == "succeeded", outcome.reason)

    def _effects_of_agent(self, node: str, at: float, step: AgentStep) -> None:
        for effect in step.effects:
            match effect:
                case happened.StartZygote(beside=False):
                    if node not in self._importing:
                        self._importing[node] = TimeSpan(at)
                        self.imports.append(self._importing[node])
                case happened.DropZygote():
                    self._end_import(node, at)
                case happened.SignalWorkers(stops=True) | happened.KillEverything():
                    self._stops(node, at, step.event)
                case happened.Report(message=said.WorkersSucceeded(round=number)):
                    marks = self._known(number)
                    if marks is not None:
                        marks.done = max(at, marks.done or at)

    def _stops(self, node: str, at: float, event: object) -> None:
        message = event.message if isinstance(event, happened.Told) else event
        if isinstance(message, said.TellHang | happened.DeadlineMissed):
            marks = self.rounds[-1] if self.rounds else None
            if marks is not None and isinstance(message, said.TellHang):
                stood = at - (marks.last_stepped or marks.born or at)
                self._broken(marks.number, at, "the job hangs", stood)
            return
        self._is_stopping.add(node)
        if self.rounds and not isinstance(event, happened.Told):
            self._broken(self.rounds[-1].number, at, "")

    def _end_import(self, node: str, at: float) -> None:
        span = self._importing.pop(node, None)
        if span is not None:
            span.end = at

    # The coordinator.

    def _of_coordinator(self, at: float, step: CoordinatorStep) -> None:
        event = step.event
        late_s = event.silent_s if isinstance(event, NodeSuspected | NodeGone) else 0.0
        match event:
            case decided.Heard(message=said.WorkersProgressed(round=number, step=reached)):
                self._stepped(number, at, reached)
            case decided.Heard(message=said.RoundStopped(round=number)):
                marks = self._known(number)
                if marks is not None and marks.broken is not None:
                    marks.gone = max(at, marks.gone or at)
            case decided.Heard(message=said.WorkersSucceeded(round=number)):
                marks = self._known(number)
                if marks is not None:
                    marks.done = max(at, marks.done or at)
        for effect in step.effects:
            match effect:
                case decided.Tell(message=said.RunRound(assignment=assignment)):
                    self._round(assignment.round, at)
                case decided.Tell(message=said.StopRound(round=number, reason=reason)):
                    self._broken(number, at, reason, late_s)
                case decided.Tell(message=said.CloseJob(outcome=outcome)):
                    self._close(at, outcome.verdict == "succeeded", outcome.reason)
                case decided.Explain(topic="waiting") if not self._runs():
                    self._wait(at)
                case decided.Explain(pause_s=pause_s) if pause_s:
                    self._begin(self.pauses, TimeSpan(at, at + pause_s))

    def _close(self, at: float, succeeded: bool, reason: str) -> None:
        self.closed = at if self.closed is None else min(self.closed, at)
        self._end_waits(at)
        last = self.rounds[-1] if self.rounds else None
        if last is None:
            return
        if succeeded and last.broken is None:
            last.done = last.done or at
        elif last.done is None or not succeeded:
            last.done = None
            self._broken(last.number, at, reason)

    def _runs(self) -> bool:
        return bool(self.rounds) and self.rounds[-1].broken is None


def _before(event: happened.WorkerExited) -> float:
    """How long before its end was known a worker wrote down what failed it, by its own clock."""
    if event.error.timestamp is None or not event.wall_time:
        return 0.0
    return max(0.0, event.wall_time - event.error.timestamp)
