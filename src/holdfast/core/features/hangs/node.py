"""What a node does about workers that stand still, or take longer than they may.

Rules
1. That the workers of one node stand still says nothing: they may wait for another node's. The
   coordinator is told, and says when it is true of the whole job. Nobody else is told before.
2. A node that reaches a coordinator anew tells it again.
3. Words come before deeds: where the workers are is said, and kept in a file, before one is ended.
4. The worker that is ended is a failure like any other, with the reason and the file of the stacks
   as its error: the round ends by it, is charged, and is tried again if the budget allows.
5. A worker that is stuck in the kernel cannot be ended. Where a limit was given, it counts as
   failed at once, so that nobody waits for it.
6. A deadline is the program's own or the user's word, so a worker that misses one is ended at once.
7. One worker is ended for it and no second one, however often that is told: the end of one ends the
   round.
"""

from __future__ import annotations

import signal

from holdfast.core.node import LOCATE_TIMER, NodeState, Phase, alive, stop_workers, worker_of
from holdfast.core.node_io import (
    DeadlineMissed,
    LocateWorkers,
    NodeEffect,
    Report,
    Say,
    SignalWorkers,
    StallFound,
    StallOver,
    StragglerFound,
    WakeNode,
    WorkersLocated,
    WorkerStuck,
)
from holdfast.core.protocol.messages import TellHang, WorkersResumed, WorkersStalled


def stood(state: NodeState, event: StallFound) -> list[NodeEffect]:
    """The workers of this node stand still (rule 1)."""
    if not _is_current(state, event.round):
        return []
    state.stall = event
    return told_again(state)


def told_again(state: NodeState) -> list[NodeEffect]:
    """What a coordinator has to know of it, if anything (rule 2)."""
    event = state.stall
    if event is None or not _is_current(state, event.round):
        return []
    told = WorkersStalled(
        event.round,
        event.places,
        event.still_s,
        event.never_spoke,
        event.needs_cause,
        any(worker.ended_early for worker in state.workers.values()),
    )
    return [Report(told)]


def moved(state: NodeState, event: StallOver) -> list[NodeEffect]:
    if state.stall is None or not _is_current(state, event.round):
        return []
    state.stall = None
    said: list[NodeEffect] = []
    if state.hang_said:
        said.append(Say("the workers of this node move again"))
    state.hang_said = False
    return [*said, Report(WorkersResumed(event.round))]


def worker_finished(state: NodeState) -> list[NodeEffect]:
    """Others may have waited for that: those that never spoke are looked at anew."""
    event = state.stall
    if event is None or not event.never_spoke:
        return []
    state.stall, state.hang_said = None, False
    return [Report(WorkersResumed(event.round))]


def straggles(state: NodeState, event: StragglerFound) -> list[NodeEffect]:
    """It is told, and nothing is done about it."""
    return [Say(event.words)] if _is_current(state, event.round) else []


def told_of_hang(state: NodeState, message: TellHang, now: float) -> list[NodeEffect]:
    """The whole job stands still (rules 3 and 4)."""
    event = state.stall
    if event is None or not _is_current(state, message.round):
        return []
    effects: list[NodeEffect] = []
    if not state.hang_said:
        state.hang_said = True
        where = f"; their stacks: {event.file}" if event.file else ""
        effects.append(Say(f"the job hangs: {event.words}{_who_ended(state, now)}{where}"))
    return effects + (_end_suspect(state, event, message.rank) if message.ends else [])


def _who_ended(state: NodeState, now: float) -> str:
    """Workers of this node that had ended well, for whom the others may wait."""
    ended = [one for one in state.workers.values() if one.ended_early]
    if not ended:
        return ""
    ranks = f"rank{'s' * (len(ended) > 1)} {', '.join(str(one.rank) for one in ended)}"
    since_s = now - max(one.ended_at for one in ended)
    how = f"had ended with exit code 0 {since_s:.0f} s before"
    return f"; {ranks} {how}, and may be what they wait for"


def _end_suspect(state: NodeState, event: StallFound, named: int | None) -> list[NodeEffect]:
    """Who is most likely the cause, else the first that still runs (rule 7)."""
    if any(worker.ended_for for worker in state.workers.values()):
        return []
    running = {one.rank: local for local, one in state.workers.items() if one.status is None}
    rank = next((one for one in (named, event.suspect) if one in running), None)
    if rank is None:
        rank = min(running, default=None)
    if rank is None:
        return []
    place = _place_of(event, rank)
    kept = f"; stacks: {event.file}" if event.file else ""
    from holdfast.core.policy.kinds import HANG, STANDSTILL

    worker = state.workers[running[rank]]
    worker.ended_for = f"the job stood still, and it was ended{place}{kept}"
    worker.ended_kind = HANG if rank == named else STANDSTILL
    said = Say(f"ending rank {rank} for it (--hang restart)")
    return [said, SignalWorkers(signal.SIGKILL, (running[rank],))]


def held(state: NodeState, event: WorkerStuck) -> list[NodeEffect]:
    """Something holds a worker that we cannot reach: it is told, and ended for it if it is to be.

    It gets SIGKILL, of which it dies when it is let go; that it counts as failed is for `step`.
    """
    worker = worker_of(state, event.round, event.local_rank)
    if worker is None or worker.status is not None or not _is_current(state, event.round):
        return []
    said = Say(f"rank {worker.rank} (pid {worker.pid}) {event.words}")
    if not event.ends:
        return [said]
    from holdfast.core.policy.kinds import STUCK

    worker.ended_for, worker.ended_kind = event.words, STUCK
    return [said, SignalWorkers(signal.SIGKILL, (event.local_rank,))]


def _place_of(event: StallFound, rank: int) -> str:
    """Where it is, in words that follow others."""
    from holdfast.core.policy.stacks import as_told  # Few jobs ever need it.

    for told in event.places:
        if rank in told.ranks:
            place = as_told(told).shortly()
            return f" {place}" if place else ""
    return ""


def missed(state: NodeState, event: DeadlineMissed) -> list[NodeEffect]:
    """A deadline is over: the worker is ended for it, and fails with its name."""
    worker = worker_of(state, event.round, event.local_rank)
    if worker is None or worker.status is not None or not _is_current(state, event.round):
        return []
    where = f" while it was {event.place}" if event.place else ""
    from holdfast.core.policy.kinds import DEADLINE, RUN_TIME

    missed = f"{event.deadline} ran out{where}"
    kept = f"; its stack: {event.file}" if event.file else ""
    worker.ended_for, worker.ends_job = f"{missed}{kept}", event.is_final
    worker.ended_kind = RUN_TIME if event.is_final else DEADLINE
    said = Say(f"rank {worker.rank}: {missed}; ending it{kept}")
    return [said, SignalWorkers(signal.SIGKILL, (event.local_rank,))]


def _is_current(state: NodeState, round: int) -> bool:
    assignment = state.assignment
    running = state.phase is Phase.RUNNING and assignment is not None
    return running and assignment is not None and assignment.round == round


# Where the workers are that a round's end finds running.

PATIENCE_S = 2.0


def locate(state: NodeState) -> list[NodeEffect]:
    """Ask them, if they can be asked, and stop them then; else stop them."""
    if state.foreign or not state.config.oversight.stacks or not alive(state):
        return stop_workers(state, signal.SIGTERM)
    state.locating = True
    return [LocateWorkers(state.last_round), WakeNode(LOCATE_TIMER, PATIENCE_S)]


def located(state: NodeState, event: WorkersLocated) -> list[NodeEffect]:
    """They have told: stop them."""
    if not state.locating or event.round != state.last_round:
        return []
    for place in event.places:
        for worker in state.workers.values():
            if worker.rank in place.ranks:
                worker.place = place
    kept = [Say(f"where each worker was: {event.file}")] if event.file else []
    return [*kept, *not_located(state)]


def not_located(state: NodeState) -> list[NodeEffect]:
    """They have not told in time."""
    if not state.locating or state.phase is not Phase.STOPPING:
        return []
    return stop_workers(state, signal.SIGTERM)
