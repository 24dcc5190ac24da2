"""A node's handling of workers that stall, or take longer than they may.

Rules
1. A stall of one node's workers alone says nothing: they may wait for another node's. The
   coordinator is told, and says when the whole job is stalled. Nothing is printed before.
2. On every new connection the node reports its stall again.
3. Report first, then act: the workers' locations are printed, and kept in a file, before one is
   ended.
4. The worker that is ended is a failure like any other, with the reason and the file of the stacks
   as its error: the round ends by it, is charged, and is tried again if the budget allows.
5. A worker that is stuck in the kernel cannot be ended. Where a limit was given, it counts as
   failed at once, so that the round does not wait for it.
6. A deadline is set by the program or the user, so a worker that misses one is ended at once.
7. Only one worker is ended for a hang, however often that is requested: its end ends the round.
8. If the coordinator asks, as after a collective that timed out (the rank that did not enter it
   has not failed, and is stopped with the others), running workers are located
   before they are stopped: until all have answered, or `LOCATE_S` have passed. It decides nothing.
"""

from __future__ import annotations

import signal
from typing import ClassVar

from msgspec import Struct, field

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
from holdfast.core.node_hooks import Effects, NodeFeature
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
    StopRound,
    TellHang,
    ToNode,
    WorkersResumed,
    WorkersStalled,
)
from holdfast.core.protocol.model import ExitStatus

LOCATE_TIMER = "locate"
LOCATE_S = 2.0


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

    def round_started(self, state: NodeState) -> Effects:
        self.now = HangsHere()
        return []

    def take(self, state: NodeState, event: NodeEvent | ToNode, now: float) -> Effects:
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

    def connected(self, state: NodeState) -> Effects:
        """Report a stall, if there is one (rule 2)."""
        event = self.now.stall
        if event is None or running_round(state, event.round) is None:
            return []
        told = WorkersStalled(
            event.round,
            event.locations,
            event.still_s,
            event.never_spoke,
            event.needs_cause,
            any(worker.ended_early for worker in state.workers.values()),
        )
        return [Report(told)]

    def worker_exited(self, state: NodeState, worker: WorkerHere) -> Effects:
        """Others may have waited for one that exits well: those that never reported start over."""
        event = self.now.stall
        if event is None or not event.never_spoke or not worker.ended_early or not alive(state):
            return []
        self.now.stall, self.now.announced = None, False
        return [Report(WorkersResumed(event.round))]

    def before_stop(self, state: NodeState, message: StopRound) -> Effects:
        """Locate the workers, if they can be asked, then stop them (rule 8)."""
        can_ask = not state.foreign and state.config.oversight.stacks and alive(state)
        if not message.locate or not can_ask:
            return []
        self.now.locating = True
        return [LocateWorkers(state.last_round), WakeNode(LOCATE_TIMER, LOCATE_S)]

    def _located(self, state: NodeState, event: WorkersLocated) -> Effects:
        if not self._is_locating(state) or event.round != state.last_round:
            return []
        for location in event.locations:
            for worker in state.workers.values():
                if worker.rank in location.ranks:
                    worker.location = location
        kept = [Say(sentences.located(event.file))] if event.file else []
        return [*kept, *self._stop(state)]

    def _stop(self, state: NodeState) -> Effects:
        if not self._is_locating(state):
            return []
        self.now.locating = False
        return stop_workers(state, signal.SIGTERM)

    def _is_locating(self, state: NodeState) -> bool:
        return self.now.locating and state.phase is Phase.STOPPING

    def _stalled(self, state: NodeState, event: StallFound) -> Effects:
        if running_round(state, event.round) is None:
            return []
        self.now.stall = event
        return self.connected(state)

    def _resumed(self, state: NodeState, event: StallOver) -> Effects:
        if self.now.stall is None or running_round(state, event.round) is None:
            return []
        said: Effects = []
        if self.now.announced:
            said.append(Say(sentences.RESUMED))
        self.now.stall, self.now.announced = None, False
        return [*said, Report(WorkersResumed(event.round))]

    def _hang_told(self, state: NodeState, message: TellHang, now: float) -> Effects:
        """The whole job stalls (rules 3 and 4)."""
        event = self.now.stall
        if event is None or running_round(state, message.round) is None:
            return []
        effects: Effects = []
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


def _end_suspect(state: NodeState, event: StallFound, named: int | None) -> Effects:
    """End the most likely cause, else the first worker that still runs (rule 7)."""
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


def _stuck(state: NodeState, worker: WorkerHere, event: WorkerStuck, now: float) -> Effects:
    """Name a worker that cannot be reached; with a limit it counts as failed, and gets a SIGKILL
    that takes effect once the kernel lets it go (rule 5)."""
    said = Say(sentences.stuck(worker.rank, worker.pid, event.words))
    if not event.ends:
        return [said]
    from holdfast.core.policy.kinds import STUCK

    worker.killed_for = KilledFor(event.words, STUCK)
    killed = ExitStatus(signal=signal.SIGKILL)
    ended = WorkerExited(event.round, event.local_rank, worker.pid or 0, killed)
    kill = SignalWorkers(signal.SIGKILL, (event.local_rank,))
    return [said, kill, *worker_failed(state, worker, ended, now)]


def _deadline_missed(worker: WorkerHere, event: DeadlineMissed) -> Effects:
    """End the worker for it; it fails with the deadline's name (rule 6)."""
    from holdfast.core.policy.kinds import DEADLINE, RUN_TIME

    missed = sentences.deadline_missed(event.deadline, event.location)
    words = missed + sentences.its_stack(event.file)
    kind = RUN_TIME if event.is_final else DEADLINE
    worker.killed_for = KilledFor(words, kind, ends_job=event.is_final)
    said = Say(sentences.ending_for_deadline(worker.rank, missed, event.file))
    return [said, SignalWorkers(signal.SIGKILL, (event.local_rank,))]
