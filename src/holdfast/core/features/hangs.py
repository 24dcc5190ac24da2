"""Hangs of a whole job: when all of its workers are stalled, and what follows; and workers of a
node that stall, or take longer than they may.

Rules of the coordinator
1. A job hangs when every node that has not finished its part of the round has reported a stall of
   its workers. A node without such a report may be what the others wait for.
2. All of these nodes are told, once for each stall. Progress of any of them ends it.
3. With `--hang restart` one worker is ended: the outlier, on whichever node, or without one, a
   worker on the first node. Its failure ends the round, as any failure does. Where the
   workers of some nodes never reported, that is done only if the cause is known (rule 6).
4. Reports on a connection that broke are forgotten: the node may have progressed since, unheard.
   It reports again what is still true, and is told again what it may not have heard; the worker to
   end stays the same.
5. Where several nodes are stalled, the coordinator prints the locations of all workers once.
6. The cause is known where at least half of the ranks wait in a collective and the others are in
   none, or where all wait in one and a rank has ended with exit code 0, or is the only one in
   another one. A node whose workers never reported a step, and are stalled for a short time only,
   counts only then. Once a node has finished, such a node has to report again: its workers may have
   been released by that one.

Rules of a node
7. A stall of one node's workers alone says nothing: they may wait for another node's. The
   coordinator is told, and says when the whole job is stalled. Nothing is printed before.
8. On every new connection the node reports its stall again.
9. Report first, then act: the workers' locations are printed, and kept in a file, before one is
   ended.
10. The worker that is ended is a failure like any other, with the reason and the file of the stacks
    as its error: the round ends by it, is charged, and is tried again if the budget allows.
11. A worker that is stuck in the kernel cannot be ended. Where a limit was given, it counts as
    failed at once, so that the round does not wait for it.
12. A deadline is set by the program or the user, so a worker that misses one is ended at once.
13. Only one worker is ended for a hang, however often that is requested: its end ends the round.
14. If the coordinator asks, as after a collective that timed out (the rank that did not enter it
    has not failed, and is stopped with the others), running workers are located
    before they are stopped: until all have answered, or `LOCATE_S` have passed. It decides nothing.
"""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING, ClassVar

from msgspec import Struct, field

from holdfast.core.coordinator_hooks import CoordinatorFeature, Effects
from holdfast.core.coordinator_io import Explain, Tell
from holdfast.core.node import (
    KilledFor,
    NodeState,
    Phase,
    WorkerHere,
    alive,
    running_round,
    stop_workers,
    worker_failed,
    worker_of,
)
from holdfast.core.node_hooks import Effects as NodeEffects
from holdfast.core.node_hooks import NodeFeature
from holdfast.core.node_io import (
    DeadlineMissed,
    LocateWorkers,
    NodeEvent,
    NodeTimerFired,
    Report,
    Say,
    SignalWorkers,
    StallFound,
    StallOver,
    StragglerFound,
    WakeNode,
    WorkerExited,
    WorkersLocated,
    WorkerStuck,
)
from holdfast.core.policy import failures, sentences
from holdfast.core.protocol.messages import (
    FromNode,
    StopRound,
    TellHang,
    ToNode,
    WorkersResumed,
    WorkersStalled,
)
from holdfast.core.protocol.model import ExitStatus

if TYPE_CHECKING:
    from holdfast.core.coordinator import CoordinatorState
    from holdfast.core.policy.stacks import StackGroup
    from holdfast.core.rounds import Round

LOCATE_TIMER = "locate"
LOCATE_S = 2.0


# The coordinator's part.


class HangCase(Struct):
    """The whole job is stalled."""

    node: str
    """The node on which a worker is to be ended for it; empty if none."""
    rank: int | None = None
    """The rank to end, where known."""
    told: set[str] = field(default_factory=set)


class RoundStalls(Struct):
    """The stalled members of a round."""

    reports: dict[str, WorkersStalled] = field(default_factory=dict)
    """By member."""
    case: HangCase | None = None
    """While all of them are."""


def of_round(current: Round) -> RoundStalls:
    if current.stalls is None:
        current.stalls = RoundStalls()
    return current.stalls


class Hangs(CoordinatorFeature):
    """Attaches the detection of hangs to the coordinator."""

    messages = (WorkersStalled, WorkersResumed)

    def heard(self, state: CoordinatorState, node: str, message: FromNode, now: float) -> Effects:
        assert isinstance(message, WorkersStalled | WorkersResumed), "it has no other"
        current = state.group.told_round(message.round, node)
        if current is None:
            return []
        stalls = of_round(current)
        if isinstance(message, WorkersStalled):
            stalls.reports[node] = message
            return _check(state)
        if stalls.reports.pop(node, None) is not None:
            stalls.case = None
        return []

    def connected(self, state: CoordinatorState, node: str) -> None:
        """Start over, on a fresh connection (rule 4)."""
        current = state.group.round
        if current is None or current.stalls is None:
            return
        current.stalls.reports.pop(node, None)
        if current.stalls.case is not None:
            current.stalls.case.told.discard(node)

    def after_greeting(self, state: CoordinatorState) -> Effects:
        return _check(state)

    def member_succeeded(self, state: CoordinatorState, current: Round) -> Effects:
        """Nodes that never reported a step report their stall again (rule 6). The member may have
        been the only one that was not stalled."""
        stalls = current.stalls
        if stalls is not None:
            left = {node: one for node, one in stalls.reports.items() if not one.never_reported}
            if len(left) < len(stalls.reports):
                stalls.reports, stalls.case = left, None
        return _check(state)


def _check(state: CoordinatorState) -> Effects:
    """Whether all of them are stalled now (rule 1)."""
    current = state.group.round
    if current is None or not current.is_whole or current.stalls is None:
        return []  # It stops, or not all of its members are known yet.
    stalls = current.stalls
    if not _are_enough(current, stalls):
        return []
    left = [node for node in current.seats.nodes() if not current.seats.has_succeeded(node)]
    if not left or any(node not in stalls.reports for node in left):
        return []
    groups = _groups(state, stalls, left)
    is_known = _is_cause_known(current, stalls, left, groups)
    if not is_known and any(stalls.reports[node].needs_cause for node in left):
        return []
    said: Effects = []
    if stalls.case is None or stalls.case.node not in ("", *left):
        stalls.case = HangCase("")
        if state.config.oversight.hang == "restart" and (
            is_known or not any(stalls.reports[node].never_reported for node in left)
        ):
            stalls.case = _with_suspect(stalls, left, groups)
        said = _announced(state, current, left, groups)
    case = stalls.case
    untold = [node for node in left if node not in case.told]
    case.told.update(untold)
    for node in untold:
        ends = node == case.node
        said.append(Tell(node, TellHang(current.number, ends, case.rank if ends else None)))
    return said


def _are_enough(current: Round, stalls: RoundStalls) -> bool:
    """By number alone: thousands of nodes come and go, and are not gone through each time."""
    known = len(stalls.reports) + current.seats.succeeded + len(current.done)
    return known >= len(current.seats)


def _groups(
    state: CoordinatorState, stalls: RoundStalls, left: list[str]
) -> tuple[StackGroup, ...]:
    """The locations of the workers of all nodes."""
    from holdfast.core.policy.stacks import WorkerStack, grouped_by, told_location

    return grouped_by(
        (told_location(location), WorkerStack(rank, state.members[node].name))
        for node in left
        for location in stalls.reports[node].locations
        for rank in location.ranks
    )


def _is_cause_known(
    current: Round, stalls: RoundStalls, left: list[str], groups: tuple[StackGroup, ...]
) -> bool:
    """Whether the rank for which the others wait is known (rule 6)."""
    from holdfast.core.policy.stacks import not_in_collective, odd_one

    absent = sum(len(one.stacks) for one in not_in_collective(groups))
    waiting = sum(len(one.stacks) for one in groups) - absent
    has_end = current.has_success or any(stalls.reports[node].has_early_end for node in left)
    if absent:
        return absent <= waiting
    return waiting > 0 and (has_end or odd_one(groups) is not None)


def _with_suspect(stalls: RoundStalls, left: list[str], groups: tuple[StackGroup, ...]) -> HangCase:
    """The node and the rank of the worker to end (rule 3)."""
    from holdfast.core.policy.stacks import odd_one

    odd = odd_one(groups)
    rank = None if odd is None else odd.rank
    for node in left:
        if any(rank in location.ranks for location in stalls.reports[node].locations):
            return HangCase(node, rank)
    return HangCase(left[0])


def _announced(
    state: CoordinatorState, current: Round, left: list[str], groups: tuple[StackGroup, ...]
) -> Effects:
    """Print where all workers of several nodes are (rule 5)."""
    if len(left) == 1:
        return []
    from holdfast.core.policy.stacks import in_words

    stalled_s = min(of_round(current).reports[node].stalled_s for node in left)
    finished = sorted(one.node for one in current.seats.by_node.values() if one.succeeded)
    names = [state.name_of(node) for node in finished]
    return [Explain(sentences.hang_of_nodes(len(left), stalled_s, in_words(groups), names))]


# A node's part.


class HangsHere(Struct):
    """The monitoring of the round's workers."""

    stall: StallFound | None = None
    """The workers have stalled for too long."""
    announced: bool = False
    """The user has been told of the hang."""
    locating: bool = False
    """The workers are to be stopped once they have been located."""


class NodeHangs(NodeFeature):
    TAKES: ClassVar = (
        StallFound,
        StallOver,
        StragglerFound,
        WorkerStuck,
        DeadlineMissed,
        WorkersLocated,
        TellHang,
        LOCATE_TIMER,
    )
    now: HangsHere = field(default_factory=HangsHere)

    def round_started(self, state: NodeState) -> NodeEffects:
        self.now = HangsHere()
        return []

    def take(self, state: NodeState, event: NodeEvent | ToNode, now: float) -> NodeEffects:
        match event:
            case StallFound():
                return self._stalled(state, event)
            case StallOver():
                return self._resumed(state, event)
            case TellHang():
                return self._hang_told(state, event, now)
            case StragglerFound():
                return [Say(event.words)] if running_round(state, event.round) else []
            case WorkerStuck():
                worker = _running_worker(state, event)
                return _stuck(state, worker, event, now) if worker else []
            case DeadlineMissed():
                worker = _running_worker(state, event)
                return _deadline_missed(worker, event) if worker else []
            case WorkersLocated():
                return self._located(state, event)
            case NodeTimerFired():
                return self._stop(state)
        raise AssertionError(f"not about hangs: {event}")

    def connected(self, state: NodeState) -> NodeEffects:
        """Report a stall, if there is one (rule 8)."""
        event = self.now.stall
        if event is None or running_round(state, event.round) is None:
            return []
        told = WorkersStalled(
            event.round,
            event.locations,
            event.stalled_s,
            event.never_reported,
            event.needs_cause,
            any(worker.ended_early for worker in state.workers.values()),
        )
        return [Report(told)]

    def worker_exited(self, state: NodeState, worker: WorkerHere) -> NodeEffects:
        """Others may have waited for one that exits well: those that never reported start over."""
        event = self.now.stall
        if event is None or not event.never_reported or not worker.ended_early or not alive(state):
            return []
        self.now.stall, self.now.announced = None, False
        return [Report(WorkersResumed(event.round))]

    def before_stop(self, state: NodeState, message: StopRound) -> NodeEffects:
        """Locate the workers, if they can be asked, then stop them (rule 14)."""
        can_ask = not state.foreign and state.config.oversight.stacks and alive(state)
        if not message.locate or not can_ask:
            return []
        self.now.locating = True
        return [LocateWorkers(state.last_round), WakeNode(LOCATE_TIMER, LOCATE_S)]

    def _located(self, state: NodeState, event: WorkersLocated) -> NodeEffects:
        if not self._is_locating(state) or event.round != state.last_round:
            return []
        for location in event.locations:
            for worker in state.workers.values():
                if worker.rank in location.ranks:
                    worker.location = location
        kept = [Say(sentences.located(event.file))] if event.file else []
        return [*kept, *self._stop(state)]

    def _stop(self, state: NodeState) -> NodeEffects:
        if not self._is_locating(state):
            return []
        self.now.locating = False
        return stop_workers(state, signal.SIGTERM)

    def _is_locating(self, state: NodeState) -> bool:
        return self.now.locating and state.phase is Phase.STOPPING

    def _stalled(self, state: NodeState, event: StallFound) -> NodeEffects:
        if running_round(state, event.round) is None:
            return []
        self.now.stall = event
        return self.connected(state)

    def _resumed(self, state: NodeState, event: StallOver) -> NodeEffects:
        if self.now.stall is None or running_round(state, event.round) is None:
            return []
        said: NodeEffects = []
        if self.now.announced:
            said.append(Say(sentences.RESUMED))
        self.now.stall, self.now.announced = None, False
        return [*said, Report(WorkersResumed(event.round))]

    def _hang_told(self, state: NodeState, message: TellHang, now: float) -> NodeEffects:
        """The whole job stalls (rules 9 and 10)."""
        event = self.now.stall
        if event is None or running_round(state, message.round) is None:
            return []
        effects: NodeEffects = []
        if not self.now.announced:
            self.now.announced = True
            ended = [one for one in state.workers.values() if one.ended_early]
            since_s = now - max((one.ended_at for one in ended), default=now)
            ranks = [one.rank for one in ended]
            effects.append(Say(sentences.hang_here(event.words, ranks, since_s, event.file)))
        return effects + (_end_suspect(state, event, message.rank) if message.ends else [])


def _running_worker(state: NodeState, event: WorkerStuck | DeadlineMissed) -> WorkerHere | None:
    worker = worker_of(state, event.round, event.local_rank)
    is_running = running_round(state, event.round) is not None
    return worker if worker is not None and worker.status is None and is_running else None


def _end_suspect(state: NodeState, event: StallFound, named: int | None) -> NodeEffects:
    """End the most likely cause, else the first worker that still runs (rule 13)."""
    if any(worker.killed_for is not None for worker in state.workers.values()):
        return []
    running = {state.workers[local].rank: local for local in alive(state)}
    if not running:
        return []
    rank = next((one for one in (named, event.suspect) if one in running), min(running))
    where = next((told for told in event.locations if rank in told.ranks), None)
    location, _ = failures.in_words(where)
    from holdfast.core.policy.kinds import HANG, STALL

    words = sentences.ended_for_hang(location, event.file)
    kind = HANG if rank == named else STALL
    state.workers[running[rank]].killed_for = KilledFor(words, kind)
    return [Say(sentences.ending_for_hang(rank)), SignalWorkers(signal.SIGKILL, (running[rank],))]


def _stuck(state: NodeState, worker: WorkerHere, event: WorkerStuck, now: float) -> NodeEffects:
    """Name a worker that cannot be reached; with a limit it counts as failed, and gets a SIGKILL
    that takes effect once the kernel lets it go (rule 11)."""
    said = Say(sentences.stuck(worker.rank, worker.pid, event.words))
    if not event.ends:
        return [said]
    from holdfast.core.policy.kinds import STUCK

    worker.killed_for = KilledFor(event.words, STUCK)
    killed = ExitStatus(signal=signal.SIGKILL)
    ended = WorkerExited(event.round, event.local_rank, worker.pid or 0, killed)
    kill = SignalWorkers(signal.SIGKILL, (event.local_rank,))
    return [said, kill, *worker_failed(state, worker, ended, now)]


def _deadline_missed(worker: WorkerHere, event: DeadlineMissed) -> NodeEffects:
    """End the worker for it; it fails with the deadline's name (rule 12)."""
    from holdfast.core.policy.kinds import DEADLINE, RUN_TIME

    missed = sentences.deadline_missed(event.deadline, event.location)
    words = missed + sentences.its_stack(event.file)
    kind = RUN_TIME if event.is_final else DEADLINE
    worker.killed_for = KilledFor(words, kind, ends_job=event.is_final)
    said = Say(sentences.ending_for_deadline(worker.rank, missed, event.file))
    return [said, SignalWorkers(signal.SIGKILL, (event.local_rank,))]
