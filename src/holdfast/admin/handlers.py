"""A node's answers to the requests of admin clients. Loaded when the first one comes.

Views, all of them: nothing is kept for them, and nothing is decided here.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from holdfast.admin.event_feed import EventFeed, read_steps
from holdfast.core.coordinator_io import OperatorAsked
from holdfast.core.features import commands
from holdfast.core.features.overview import overview
from holdfast.core.node_io import LeaveAsked, SignalWorkers
from holdfast.core.protocol.bounds import NAME_MOST, clean, cut
from holdfast.core.protocol.document import NAME_KEPT, NodeLimits
from holdfast.core.protocol.model import StackFrame
from holdfast.core.protocol.requests import (
    EVENTS_TOLD_MOST,
    LOGS_TOLD_BYTES,
    ROUNDS_TOLD_MOST,
    SEGMENTS_TOLD_MOST,
    Answer,
    DashboardAsked,
    DrainWanted,
    EventsAsked,
    EventsTold,
    HistoryAsked,
    HistoryTold,
    InjectFault,
    JobAsked,
    LogBlock,
    LogsAsked,
    LogsTold,
    NotKnown,
    RankOverview,
    RanksAsked,
    RanksTold,
    RestartWanted,
    SaveWanted,
    ScaleWanted,
    StacksAsked,
    StacksTold,
    StackTold,
    StopWanted,
    UnderWay,
    pack,
    read_request,
)
from holdfast.engine.engine import Engine
from holdfast.observe.history import LiveHistory
from holdfast.observe.journal import Journal
from holdfast.observe.story import StoryEvent
from holdfast.processes.monitoring.kernel import (
    MachineUsage,
    ProcessUsage,
    UsageWatch,
    read_machine,
)
from holdfast.processes.output.recent import OutputBlock, OutputWanted
from holdfast.processes.supervisor import NodeSupervisor
from holdfast.runtime import descriptors
from holdfast.runtime.disk import DiskLane

if TYPE_CHECKING:
    from holdfast.admin.dashboard import AgentDashboard
    from holdfast.core.policy.worker_progress import WorkerProgress
    from holdfast.processes.monitoring.stacks import StackSnapshot

    Reply = Callable[[Answer], None]

NOT_THE_COORDINATOR = "this node is not the coordinator any more; ask again"
_pack = msgspec.msgpack.Encoder().encode
NO_DASHBOARD = "this node has no dashboard: it was started without --dashboard"
FINISHED = ProcessUsage("finished")
REPLY_FIRST_S = 0.1
"""How long a node that is to be killed lives on, so that its answer goes out."""
NO_WORKERS = "no worker runs on this node now"


class RequestHandlers:
    """Answers for one node."""

    def __init__(
        self,
        engine: Engine,
        supervisor: NodeSupervisor,
        journal: Journal,
        journal_lane: DiskLane,
        live: LiveHistory,
        dashboard: Callable[[], AgentDashboard | None],
    ) -> None:
        """`journal_lane` is the one in which the journal is written."""
        self._engine, self._supervisor, self._dashboard = engine, supervisor, dashboard
        self._journal, self._journal_lane, self._live = journal, journal_lane, live
        self._usage = UsageWatch()
        self._feed: EventFeed | None = None

    def answer(self, packed: bytes, reply: Callable[[bytes], None]) -> None:
        """`reply` gets the answer as soon as it is known, maybe from within."""

        def tell(answer: Answer) -> None:
            reply(pack(answer))

        match read_request(packed):
            case JobAsked() as request:
                tell(self._job(request))
            case StacksAsked() as request:
                self._supervisor.take_stacks(request.reason, lambda found: tell(_stacks(found)))
            case RanksAsked():
                self._look_at_ranks(tell)
            case LogsAsked() as request:
                self._logs_after(request, tell)
            case EventsAsked() as request:
                self._events_after(request, tell)
            case HistoryAsked():
                tell(self._history())
            case DashboardAsked():
                tell(self._where_dashboard())
            case DrainWanted(by=by):
                self._engine.post(LeaveAsked(clean(by)))
                tell(UnderWay())
            case RestartWanted(by=by):
                tell(self._operate(OperatorAsked("restart", clean(by))))
            case StopWanted(by=by):
                tell(self._operate(OperatorAsked("stop", clean(by))))
            case ScaleWanted() as request:
                tell(self._scale(request))
            case SaveWanted(by=by, within_s=within_s):
                tell(self._operate(OperatorAsked("save", clean(by), within_s=within_s)))
            case InjectFault() as request:
                tell(self._inject_fault(request))
            case None:
                tell(NotKnown("this version of Holdfast does not know that request"))

    def _job(self, request: JobAsked) -> Answer:
        coordinating = self._engine.link.coordinating
        if coordinating is None:
            return NotKnown(NOT_THE_COORDINATOR)
        return overview(coordinating.liveness, request, self._engine.clock.now())

    def _scale(self, wanted: ScaleWanted) -> Answer:
        by = cut(clean(wanted.by), NAME_KEPT)
        limits = NodeLimits(wanted.least, wanted.most, by)
        answer = self._operate(OperatorAsked("scale", by, limits))
        if isinstance(answer, UnderWay):
            descriptors.expect_nodes(wanted.most)
        return answer

    def _operate(self, event: OperatorAsked) -> Answer:
        coordinating = self._engine.link.coordinating
        if coordinating is None:
            return NotKnown(NOT_THE_COORDINATOR)
        refused = commands.refusal(coordinating.state, event.command, event.limits)
        if refused:
            return NotKnown(refused)
        coordinating.post(event)
        return UnderWay()

    def _inject_fault(self, wanted: InjectFault) -> Answer:
        """For chaos tests, and only where the job was started with permission for them."""
        if not self._engine.config.allow_chaos:
            return NotKnown("this job was not started with --allow-chaos")
        clock, processes = self._engine.clock, self._supervisor
        if wanted.what == "kill node":
            clock.call_later(REPLY_FIRST_S, os.kill, os.getpid(), signal.SIGKILL)
            return UnderWay()
        found = [one.local_rank for one in processes.worker_progress() if one.rank == wanted.rank]
        if not found:
            return NotKnown(f"rank {wanted.rank} does not run on this node")
        signals = partial(SignalWorkers, local_ranks=(found[0],), stops=False)
        if wanted.what == "kill worker":
            processes.do(signals(signal.SIGKILL))
        else:
            processes.do(signals(signal.SIGSTOP))
            clock.call_later(wanted.seconds, processes.do, signals(signal.SIGCONT))
        return UnderWay()

    def _look_at_ranks(self, tell: Reply) -> None:
        workers, finished = self._supervisor.worker_progress(), self._supervisor.finished()
        pids = [one.pid for one in workers]
        host = self._engine.state.host

        def look() -> tuple[dict[int, ProcessUsage], MachineUsage]:
            return self._usage.read(pids), read_machine()

        def looked(found: tuple[dict[int, ProcessUsage], MachineUsage]) -> None:
            used, machine = found
            ranks = tuple(_rank(one, used[one.pid]) for one in workers if one.pid in used)
            ranks += tuple(_rank(one, FINISHED) for one in finished)
            free, devices = machine.memory_free_bytes, machine.accelerators
            tell(RanksTold(host, ranks, machine.load, free, devices))

        self._supervisor.file_lane.do(look, looked)

    def _where_dashboard(self) -> Answer:
        dashboard = self._dashboard()
        if dashboard is None or dashboard.address is None:
            return NotKnown(NO_DASHBOARD)
        return dashboard.address

    def _logs_after(self, request: LogsAsked, tell: Reply) -> None:
        recent, ranks = self._supervisor.recent, frozenset(request.ranks)
        after = request.after.get(self._engine.state.name, 0)
        files = tuple(map(cut, recent.named_files(ranks)))

        def told(blocks: list[OutputBlock], last: int) -> None:
            packed = tuple(
                LogBlock(b.at, b.rank, 2 if b.stream == 2 else 1, b.text) for b in blocks
            )
            tell(LogsTold(packed, last, files, recent.last))

        recent.after(OutputWanted(after, ranks, LOGS_TOLD_BYTES, request.wait_s), told)

    def _events(self) -> EventFeed:
        """Listens from the first request on; what was before is read from the journal."""
        if self._feed is None:
            self._feed = EventFeed(self._journal, self._engine.clock)
            read = partial(read_steps, self._journal.path)
            self._journal_lane.do(read, self._feed.caught_up)
        return self._feed

    def _history(self) -> HistoryTold:
        now, history = self._engine.clock.now(), self._live.history
        book = self._live.book(now)
        parts_s: dict[str, float] = dict(book.parts_s.items())
        return HistoryTold(
            sum(parts_s.values()),
            parts_s,
            book.reports_steps,
            tuple(map(_pack, book.interruptions[-ROUNDS_TOLD_MOST:])),
            history.pace or None,
            self._live.step_age_s(now),
            tuple(map(_pack, book.segments[-SEGMENTS_TOLD_MOST:])),
            {node: _pack(known) for node, known in [*history.nodes.items()][:ROUNDS_TOLD_MOST]},
        )

    def _events_after(self, request: EventsAsked, tell: Reply) -> None:
        def told(events: list[StoryEvent], last: int) -> None:
            tell(EventsTold(tuple(map(_pack, events)), last))

        self._events().after(request.after, EVENTS_TOLD_MOST, request.wait_s, told)


def _rank(progress: WorkerProgress, used: ProcessUsage) -> RankOverview:
    return RankOverview(
        progress.rank,
        progress.local_rank,
        progress.pid,
        used.state,
        progress.step,
        progress.step_age_s,
        progress.steps_a_second,
        cut(progress.phase, NAME_MOST),
        used.cpu,
        used.memory_bytes,
    )


def _stacks(snapshot: StackSnapshot | None) -> Answer:
    if snapshot is None:
        return NotKnown(NO_WORKERS)
    told = tuple(
        StackTold(
            stack.rank,
            tuple(StackFrame(cut(f.file), f.line, cut(f.function)) for f in stack.frames),
            cut(stack.kernel),
        )
        for stack in snapshot.stacks()
    )
    return StacksTold(told, snapshot.file)
