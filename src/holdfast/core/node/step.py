"""The life of one node, from its start to its exit status.

Rules
1. `step` is the only way in: an event and the time go in, effects come out.
2. A node starts a round only if its number is above every round it ran, no process of an
   older round is left, and its lease is good.
3. Stopping is always the same: the signal, the grace, then SIGKILL to everything below the
   spawner; the round is stopped when nothing is left.
4. A failure is told at once; what to do about it is the coordinator's to say.
5. Whatever happens, the node reaches `Finish`: every wait has a timer.

Phases (`core.node.state.MOVES` has every move, and `step` knows no other):

    preparing ──NodeJoined──▶ waiting ──RunRound──▶ running
                                 ▲                     │ StopRound, or the lease runs out
                                 └────RoundStopped── stopping
    any ──CloseJob, signal, spawner lost──▶ closing ──everything gone──▶ finished
"""

from __future__ import annotations

import signal
import sys

from msgspec.structs import replace

from holdfast.core.node import contact as contact
from holdfast.core.node import exits as exits
from holdfast.core.node import saving as saving
from holdfast.core.node import stalls as stalls
from holdfast.core.node.draining import asked, not_asked, signalled, worker_failed
from holdfast.core.node.io import (
    AllGone,
    CloseRound,
    ClosingAsked,
    CoordinatorLost,
    CoordinatorReached,
    DeadlineMissed,
    EndSpawner,
    KillEverything,
    KillZygote,
    LauncherLost,
    LeaseRanOut,
    LeaveAsked,
    NodeEffect,
    NodeEvent,
    NodeTimerFired,
    ProcessesStuck,
    RecordSeat,
    Released,
    RemoveLivenessLocks,
    Report,
    SaveAnswered,
    Say,
    SignalReceived,
    SignalWorkers,
    SpawnerEnded,
    SpawnerLost,
    StallFound,
    StallOver,
    StartWorkers,
    StepReported,
    StragglerFound,
    Told,
    UnexitedFound,
    WakeNode,
    WorkerExited,
    WorkersLocated,
    WorkerStarted,
    WorkerStuck,
)
from holdfast.core.node.locating import locate, located, not_located
from holdfast.core.node.preparing import lock_late, prepare, ready, reserve, unborn, zygote_lost
from holdfast.core.node.reports import in_full, within_bounds
from holdfast.core.node.state import (
    ASKED_TIMER,
    BIRTH_TIMER,
    DRAIN_TIMER,
    EXIT_TIMER,
    GRACE_TIMER,
    HEARTBEAT_TIMER,
    IMPROVE_TIMER,
    LOCATE_TIMER,
    LOCK_TIMER,
    MOVES,
    PRELOAD_NOTICE_TIMER,
    PRELOAD_TIMER,
    REDIAL_TIMER,
    SEEK_TIMER,
    UNFIT_TIMER,
    UNKILLABLE_TIMER,
    NodeState,
    Phase,
    WorkerLife,
    alive,
    has_succeeded,
    worker_of,
)
from holdfast.core.node.stopping import (
    close,
    closing_asked,
    depart,
    finish,
    kill,
    launcher_lost,
    leave,
    leave_unfit,
    not_gone,
    note_job_continues,
    released,
    spawner_lost,
    stop_workers,
    stuck,
)
from holdfast.core.node.warming import improve, improve_soon
from holdfast.core.policy import root_cause as rootcause
from holdfast.core.protocol.bounds import NUMBER_MOST, TEXT_MOST, cut
from holdfast.core.protocol.messages import (
    CloseJob,
    CloseRequest,
    DescribeFailures,
    ExpectExits,
    FailuresDescribed,
    ForwardRequest,
    HeartbeatAnswered,
    PassResponse,
    RoundStopped,
    RunRound,
    SaveNow,
    SaveOver,
    StandBy,
    StopRound,
    TellHang,
    ToNode,
    Welcomed,
    WorkersProgressed,
    WorkersSucceeded,
)
from holdfast.core.protocol.model import Assignment, EarlyEnd, ErrorDetail, ExitStatus, Failure
from holdfast.core.protocol.naming import on_itself
from holdfast.core.protocol.preload_steps import packages_of

KEPT_ALIVE_MOST_S = 3600.0
"""How much earlier than its end an exception is believed to be: clocks on the wall may be set."""


def step(state: NodeState, event: NodeEvent, now: float) -> list[NodeEffect]:
    """Advance by one event."""
    if state.phase is Phase.FINISHED:
        return []
    before = state.phase
    effects = _take(state, event, now)
    moved = state.phase is not before
    assert not moved or (before, state.phase) in MOVES, f"{before} → {state.phase} is no move"
    return effects


def _take(state: NodeState, event: NodeEvent, now: float) -> list[NodeEffect]:
    match event:
        case Told():
            if not contact.heed(state, event.term):
                return []
            return _told(state, event.message, now)
        case NodeTimerFired():
            return _timer(state, event.name, now)
        case WorkerStarted():
            return _worker_started(state, event)
        case WorkerExited():
            return _worker_exited(state, event, now)
        case AllGone():
            return _all_gone(state, event)
        case SignalReceived():
            return signalled(state, event.signal, now)
        case LeaveAsked():
            return asked(state, event.by, now)
        case ClosingAsked():
            return closing_asked(state, event.outcome)
        case Released():
            return released(state)
        case CoordinatorReached():
            effects = [*contact.reached(state, event.hosting, now), *stalls.told_again(state)]
            return [*effects, *leave_unfit(state)] if state.unfit else effects
        case CoordinatorLost():
            return contact.lost(state, event.reason, event.permanent, now)
        case LeaseRanOut():
            return _lease_ran_out(state)
        case StepReported():
            return _step_reported(state, event)
        case UnexitedFound():
            return exits.found(state, event)
        case StallFound():
            return stalls.stood(state, event)
        case StallOver():
            return stalls.moved(state, event)
        case DeadlineMissed():
            return stalls.missed(state, event)
        case WorkersLocated():
            return located(state, event)
        case StragglerFound():
            return stalls.straggles(state, event)
        case WorkerStuck():
            return _worker_stuck(state, event, now)
        case SaveAnswered():
            return saving.answered(state, event)
        case LauncherLost():
            return launcher_lost(state)
        case SpawnerLost():
            return spawner_lost(state, event.reason, event.left)
        case SpawnerEnded():
            return finish(state)
        case ProcessesStuck():
            return stuck(state, event.processes, event.forbidden)
        case _:
            return prepare(state, event)


# A round.


def _told(state: NodeState, message: ToNode, now: float) -> list[NodeEffect]:
    match message:
        case HeartbeatAnswered():
            return contact.answered(state, message)
        case RunRound():
            return _run(state, message, now)
        case SaveNow():
            return saving.save_now(state, message, now)
        case SaveOver():
            return saving.save_over(state, message)
        case StopRound():
            return _stop_round(state, message)
        case CloseJob():
            return [
                *close(state, message.outcome),
                *([RemoveLivenessLocks()] if state.mark else []),
            ]
        case DescribeFailures():
            return _describe(state, message)
        case TellHang():
            return stalls.told_of_hang(state, message, now)
        case ExpectExits():
            return exits.expect(state, message.round)
        case Welcomed():
            return contact.welcomed(state, message)
        case StandBy():
            state.goes_on = True  # Without this node, so far.
            return [Say(message.reason)]
        case ForwardRequest() | PassResponse() | CloseRequest():
            return []  # They decide nothing: `node.requests` has seen to it.


def _run(state: NodeState, message: RunRound, now: float) -> list[NodeEffect]:
    assignment = message.assignment
    if state.phase is not Phase.WAITING or assignment.round <= state.last_round:
        return []
    if state.lease is not None and not state.lease.good(now):
        # Nobody would be sure when our workers must have ended: not a member after all. The
        # heartbeat goes first, so that the next offer finds a lease.
        assert state.endpoint is not None, "a node without an endpoint was waiting"
        stopped = Report(RoundStopped(assignment.round, (), state.endpoint, ran=False))
        return [*contact.send_heartbeat(state, now), stopped]
    state.phase = Phase.RUNNING
    state.assignment, state.last_round = assignment, assignment.round
    state.instance = state.term.instance
    state.workers = {ranks.local_rank: WorkerLife(ranks.rank) for ranks in assignment.workers}
    state.failures = {}
    state.stall, state.hang_said, state.exit_wait = None, False, None
    state.stopped_by_us = state.told_failure = state.killing = state.deaths_held = False
    state.lease_ended = state.locating = False
    state.saving, state.goes_on, state.saved = None, False, 0
    state.endpoint = None
    effects: list[NodeEffect] = contact.set_deadlines(state)
    if state.mark:
        seat = (assignment.round, assignment.group_rank, message.path)
        effects.append(RecordSeat(state.instance, *seat))
    if state.lease is not None:
        effects.append(Say(_place(assignment)))
    if message.note and not state.hosting:
        effects.append(Say(message.note))
    effects.append(StartWorkers(assignment, tuple(state.workers), warm=state.warm))
    if state.warm:
        effects.append(WakeNode(BIRTH_TIMER, state.config.timeouts.preload_s))
    return [*effects, *improve_soon(state)]


def _place(assignment: Assignment) -> str:
    first, last = assignment.workers[0].rank, assignment.workers[-1].rank
    ranks = f"rank {first}" if first == last else f"ranks {first} to {last}"
    where = f"node {assignment.group_rank + 1} of {assignment.group_size}"
    return f"round {assignment.round}: {where}, {ranks} of {assignment.world_size}"


def _worker_started(state: NodeState, event: WorkerStarted) -> list[NodeEffect]:
    worker = worker_of(state, event.round, event.local_rank)
    if worker is None:
        return []
    worker.pid = event.pid
    if state.phase is Phase.RUNNING or worker.status is not None:
        return []
    # It was born into a round that is being stopped: it gets what the others got.
    if state.killing:
        return [KillEverything(state.last_round)]
    return [SignalWorkers(state.interrupted_by or signal.SIGTERM, (event.local_rank,))]


def _worker_exited(state: NodeState, event: WorkerExited, now: float) -> list[NodeEffect]:
    worker = worker_of(state, event.round, event.local_rank)
    if worker is None or state.assignment is None:
        return []
    if worker.is_done:
        event = replace(event, status=ExitStatus(code=0))
    worker.pid, worker.status = event.pid, event.status
    worker.ended_early = event.status.succeeded and state.phase is Phase.RUNNING
    worker.ended_at = now
    effects: list[NodeEffect] = []
    if not event.status.succeeded:
        failure = _failure(state, worker, event, now)
        state.failures[event.local_rank] = failure
        if state.phase is Phase.RUNNING:
            effects += worker_failed(state, failure)
    if alive(state):
        if worker.ended_early:
            effects += stalls.worker_finished(state)
        return [*effects, *exits.exited(state, worker), *saving.answers(state)]
    if state.phase is not Phase.RUNNING:
        return effects + kill(state)
    if has_succeeded(state):
        effects.append(Report(WorkersSucceeded(state.assignment.round)))
    return effects + saving.answers(state)


def _worker_stuck(state: NodeState, event: WorkerStuck, now: float) -> list[NodeEffect]:
    """It counts as failed, though it has not ended, if nobody is to wait for it any longer."""
    effects = stalls.held(state, event)
    worker = worker_of(state, event.round, event.local_rank)
    if not effects or not event.ends or worker is None:
        return effects
    killed = ExitStatus(signal=signal.SIGKILL)
    ended = WorkerExited(event.round, event.local_rank, worker.pid or 0, killed)
    failure = state.failures[event.local_rank] = _failure(state, worker, ended, now)
    return effects + worker_failed(state, failure)


def _failure(state: NodeState, worker: WorkerLife, event: WorkerExited, now: float) -> Failure:
    place, in_collective = _place_of(worker)
    raised_s = _raised_s(event)
    return Failure(
        node=state.node,
        host=state.name,
        local_rank=event.local_rank,
        rank=worker.rank,
        role=state.config.role,
        pid=event.pid,
        status=event.status,
        observed_at=now - raised_s,
        raised_s=raised_s,
        error=within_bounds(_error_of(worker, event)),
        stderr_tail=event.stderr_tail[-TEXT_MOST:],
        out_of_memory=cut(event.out_of_memory),
        stopped_by_us=state.stopped_by_us and not _failed_on_its_own(state, event),
        error_file=event.error_file,
        wall_time=event.wall_time,
        versions=cut(event.versions),
        ended_for=worker.ended_kind,
        ended_before=_ended_early(state),
        place=place,
        in_collective=in_collective,
    )


def _raised_s(event: WorkerExited) -> float:
    """How long before its end it had raised: both are told by the clock of its own host."""
    raised_at = event.error.timestamp
    if raised_at is None or not event.wall_time:
        return 0.0
    unsure_s = 1.0 if raised_at == int(raised_at) else 0.0  # Some tell whole seconds.
    return min(max(0.0, event.wall_time - raised_at - unsure_s), KEPT_ALIVE_MOST_S)


def _place_of(worker: WorkerLife) -> tuple[str, bool]:
    """Where it was, and whether it waited for other ranks there."""
    if worker.place is None:
        return "", False
    from holdfast.core.policy.stacks import as_told  # Few jobs ever need it.

    place = as_told(worker.place)
    return cut(place.shortly()), place.in_collective


def _error_of(worker: WorkerLife, event: WorkerExited) -> ErrorDetail:
    """A worker that was ended because it took too long says nothing of it itself."""
    if not worker.ended_for:
        return event.error
    return ErrorDetail(message=worker.ended_for, non_retryable=worker.ends_job)


def _ended_early(state: NodeState) -> tuple[EarlyEnd, ...]:
    """The first few that had ended well before anything failed here, or was stopped."""
    ended = (one for one in state.workers.values() if one.ended_early)
    early = [EarlyEnd(one.rank, one.step, state.name) for one in ended]
    return tuple(early[: rootcause.EARLY_ENDS_TOLD])


def _failed_on_its_own(state: NodeState, event: WorkerExited) -> bool:
    """Whether a worker that we were stopping ended of something else than that.

    One that has left an exception had failed already: its peers may notice while it still ends,
    and it is stopped for their failure then.
    """
    if event.error.message or event.status.signal is None:
        return bool(event.error.message)
    ours = (signal.SIGTERM, signal.SIGKILL, state.interrupted_by)
    return event.status.signal not in ours or bool(event.out_of_memory)


def _step_reported(state: NodeState, event: StepReported) -> list[NodeEffect]:
    worker = worker_of(state, event.round, event.local_rank)
    if worker is None:
        return []
    if not 0 <= event.step <= NUMBER_MOST:
        return []  # No step of anything, and nothing that could be sent.
    worker.step = event.step
    if state.furthest_step is not None and event.step <= state.furthest_step:
        return []
    state.furthest_step = event.step
    return [Report(WorkersProgressed(event.round, event.step, event.age_s))]


def _describe(state: NodeState, message: DescribeFailures) -> list[NodeEffect]:
    if state.assignment is None or state.assignment.round != message.round:
        return []
    return [Report(FailuresDescribed(message.round, in_full(state, state.failures.values())))]


def _lease_ran_out(state: NodeState) -> list[NodeEffect]:
    """The spawner stops the workers already, and kills them at the end of the lease."""
    if state.phase is not Phase.RUNNING:
        return []
    if state.draining_by is not None:
        return leave(state, state.draining_by)
    if not alive(state) and not state.failures:
        return []  # All have succeeded: what is done needs no lease, and is told when it can be.
    state.phase = Phase.STOPPING
    state.stopped_by_us = True
    state.lease_ended = not state.failures
    limit = f"--lease {state.config.leases.lease_s:g}"
    said = Say(f"the coordinator has not answered for too long ({limit}): stopping the workers")
    if not alive(state):
        return [said, *kill(state)]
    return [said, WakeNode(GRACE_TIMER, state.config.leases.stop_reserve_s)]


def _stop_round(state: NodeState, message: StopRound) -> list[NodeEffect]:
    if message.round == state.last_round:
        note_job_continues(state, message.goes_on)
    if state.phase is not Phase.RUNNING or message.round != state.last_round:
        return []
    if state.draining_by is not None:
        state.let_out = True
        return leave(state, state.draining_by)
    if state.closing is not None and has_succeeded(state):
        return depart(state)  # Nobody will run anything here again.
    state.phase = Phase.STOPPING
    stopped = locate(state) if message.locate else stop_workers(state, signal.SIGTERM)
    if state.lease is None or state.hosting:
        return stopped  # The coordinator speaks here, too, and will have judged it in a moment.
    reason = on_itself(message.reason, message.about, state.name)
    return [Say(f"round {message.round} ends: {reason}{_stopping_others(state)}"), *stopped]


def _stopping_others(state: NodeState) -> str:
    """In words, what the end of a round means here, if anything still runs."""
    # Of those that failed, one may be stuck in the kernel, and still there.
    left = len([local_rank for local_rank in alive(state) if local_rank not in state.failures])
    if not left:
        return ""
    number = "" if left == 1 else f"{left} "
    workers = f"{number}worker{'s' if left > 1 else ''}"
    which = f"the other {workers}" if state.failures else (workers if left > 1 else "1 worker")
    return f"; stopping {which}{' of this node' if state.lease is not None else ''}"


def _all_gone(state: NodeState, event: AllGone) -> list[NodeEffect]:
    """It is said once for each time that it was asked, and may be about an earlier round."""
    if event.round != state.last_round:
        return []
    if state.phase is Phase.CLOSING:
        return [] if state.given_up else [EndSpawner()]
    if state.phase is not Phase.STOPPING:
        return []
    state.workers = {}
    state.killing = False
    return [CloseRound(), *reserve(state)]


def _timer(state: NodeState, name: str, now: float) -> list[NodeEffect]:
    if name == HEARTBEAT_TIMER:
        return contact.heartbeat_due(state, now)
    if name == REDIAL_TIMER:
        return contact.redial(state)
    if name == LOCK_TIMER:
        return lock_late(state) if state.lock_pending else []
    if name == UNFIT_TIMER and state.phase is Phase.PREPARING:
        return leave_unfit(state)
    if name == SEEK_TIMER:
        return contact.sought_in_vain(state, now)
    if name == DRAIN_TIMER and state.draining_by is not None and state.phase is Phase.RUNNING:
        return leave(state, state.draining_by)
    if name == ASKED_TIMER:
        return not_asked(state)
    if name == IMPROVE_TIMER:
        return improve(state)
    preparing = state.warm_pending and state.phase is Phase.PREPARING
    if name == PRELOAD_TIMER and preparing:
        limit = f"{state.config.timeouts.preload_s:g} s"
        return [*zygote_lost(state, f"preloading took more than {limit}"), *ready(state)]
    if name == PRELOAD_NOTICE_TIMER and preparing:
        packages = packages_of((*state.preload, *state.late))
        named = ", ".join(name for name in packages if name not in sys.stdlib_module_names)
        return [Say(f"importing {named or 'modules'} once for all workers of this node")]
    if name == BIRTH_TIMER and state.warm and state.phase is Phase.RUNNING and unborn(state):
        return [
            Say("the process that forks warm workers does not answer: killing it"),
            KillZygote(),
        ]
    if state.foreign:
        return []  # What is left waits for workers to die of a kill, and nobody kills here.
    if name == GRACE_TIMER and state.phase in (Phase.STOPPING, Phase.CLOSING):
        running = alive(state)
        if not running or state.killing:
            return []
        ranks = ", ".join(str(state.workers[local].rank) for local in running)
        limit = f"{state.config.timeouts.shutdown_s:g} s"
        which = f"rank {ranks}" if len(running) == 1 else f"ranks {ranks}"
        said = Say(f"{which} did not stop within {limit} (--shutdown-timeout): killing")
        # A zygote that has not forked all this time does not fork at all, and what it may
        # still fork would be waited for.
        hangs = state.phase is Phase.STOPPING and state.warm and bool(unborn(state))
        return [said, *([KillZygote()] if hangs else []), *kill(state)]
    if name == LOCATE_TIMER:
        return not_located(state)
    if name == EXIT_TIMER:
        return exits.waited(state)
    if name == UNKILLABLE_TIMER and state.killing:
        return not_gone(state)
    return []
