"""The life of one node, from its start to its exit status.

Rules
1. `step` is the only way in: an event and the time go in, effects come out.
2. A node starts a round only if its number is above every round it ran, no process of an
   older round is left, and its lease is good.
3. Stopping is always the same: the signal, the grace, then SIGKILL to everything below the
   spawner; the round is stopped when nothing is left.
4. A failure is told at once; what to do about it is the coordinator's to say.
5. Whatever happens, the node reaches `Finish`: every wait has a timer.

Phases (`MOVES` has every move, and `step` knows no other):

    preparing ──NodeJoined──▶ waiting ──RunRound──▶ running
                                 ▲                     │ StopRound, or the lease runs out
                                 └────RoundStopped── stopping
    any ──CloseJob, signal, spawner lost──▶ closing ──everything gone──▶ finished
"""

from __future__ import annotations

import signal
import sys
import zlib
from collections.abc import Iterator
from enum import StrEnum
from typing import Literal

from msgspec import Struct, field
from msgspec.structs import replace

from holdfast.core.coordinator.leases import NodeLease
from holdfast.core.node_io import (
    AllGone,
    CloseRound,
    ClosingAsked,
    CoordinatorLost,
    CoordinatorReached,
    DeadlineMissed,
    Dial,
    DropZygote,
    EndedFound,
    EndpointReserved,
    EndSpawner,
    Finish,
    HangUp,
    ImportLeft,
    ImportsLearned,
    KillEverything,
    KillSpawner,
    KillZygote,
    KnowEnded,
    LauncherLost,
    LeaseRanOut,
    LeaveAsked,
    ListStuck,
    LivenessLockTaken,
    ModuleRejected,
    ModulesUnfit,
    NodeEffect,
    NodeEvent,
    NodeStarted,
    NodeTimerFired,
    ProcessesStuck,
    RecordSeat,
    Released,
    RemoveLivenessLocks,
    Report,
    ReserveEndpoint,
    SaveAnswered,
    Say,
    SetDeadlines,
    SignalReceived,
    SignalWorkers,
    SpawnerEnded,
    SpawnerLost,
    SpawnerReady,
    StallFound,
    StallOver,
    StartWorkers,
    StepReported,
    StoreFailed,
    StragglerFound,
    Told,
    UnexitedFound,
    WakeNode,
    WorkerExited,
    WorkersLocated,
    WorkerStarted,
    WorkerStuck,
    ZygoteLost,
    ZygoteReady,
)
from holdfast.core.policy import root_cause as rootcause
from holdfast.core.policy import timing
from holdfast.core.policy.config import JobConfig
from holdfast.core.policy.failures import in_brief, in_full, within_bounds
from holdfast.core.policy.signals import LastSignal, is_repeat
from holdfast.core.protocol import exit_status
from holdfast.core.protocol.bounds import NUMBER_MOST, TEXT_MOST, cut
from holdfast.core.protocol.messages import (
    ENDED_TOLD,
    CloseJob,
    CloseRequest,
    ClosingWanted,
    Condition,
    DescribeFailures,
    EndedMember,
    ExpectExits,
    FailuresDescribed,
    ForwardRequest,
    FrameGroup,
    Heartbeat,
    HeartbeatAnswered,
    MembersEnded,
    NodeDraining,
    NodeGreeted,
    NodeJoined,
    NodeLeft,
    PassResponse,
    RoundReport,
    RoundStopped,
    RunRound,
    SaveNow,
    SaveOver,
    SavingReport,
    Seen,
    StandBy,
    StopRound,
    TellHang,
    ToNode,
    Welcomed,
    WorkersFailed,
    WorkersProgressed,
    WorkersSucceeded,
)
from holdfast.core.protocol.model import (
    Assignment,
    Blame,
    EarlyEnd,
    Endpoint,
    ErrorDetail,
    ExitStatus,
    Failure,
    NodeInfo,
    Outcome,
    Term,
    signal_name,
)
from holdfast.core.protocol.naming import on_itself
from holdfast.core.protocol.preload_steps import packages_of
from holdfast.core.protocol.settings import of_job

# state

GRACE_TIMER = "grace"
LOCATE_TIMER = "locate"
UNKILLABLE_TIMER = "unkillable"
EXIT_TIMER = "exit"
PRELOAD_TIMER = "preload"
BIRTH_TIMER = "birth"
HEARTBEAT_TIMER = "heartbeat"
REDIAL_TIMER = "redial"
SEEK_TIMER = "seek"
DRAIN_TIMER = "drain"
ASKED_TIMER = "asked too"
LOCK_TIMER = "note"
UNFIT_TIMER = "unfit"
IMPROVE_TIMER = "improve"
LOCK_WAIT_S = 2.0
"""How long a node waits for its note before it joins: the disk may not answer."""
PRELOAD_NOTICE_TIMER = "preload notice"
PRELOAD_NOTICE_S = 1.5
"""An import that takes longer than this is worth a line, so that nobody wonders."""


class Phase(StrEnum):
    PREPARING = "preparing"
    WAITING = "waiting"
    RUNNING = "running"
    STOPPING = "stopping"
    CLOSING = "closing"
    FINISHED = "finished"


_THE_END = "CloseJob, a signal, the launcher gone, no contact for too long"
MOVES = {
    (Phase.PREPARING, Phase.WAITING): "an endpoint is held, and how workers start is known",
    (Phase.WAITING, Phase.RUNNING): "RunRound, under a lease that is good",
    (Phase.RUNNING, Phase.STOPPING): "StopRound, or the lease runs out",
    (Phase.STOPPING, Phase.WAITING): "all processes are gone, and an endpoint is held again",
    (Phase.PREPARING, Phase.CLOSING): _THE_END,
    (Phase.WAITING, Phase.CLOSING): _THE_END,
    (Phase.RUNNING, Phase.CLOSING): f"{_THE_END}, or let out of the round to leave",
    (Phase.STOPPING, Phase.CLOSING): f"{_THE_END}, or processes that cannot be killed",
    (Phase.CLOSING, Phase.FINISHED): "nothing is left",
    (Phase.PREPARING, Phase.FINISHED): "the spawner is lost",
    (Phase.WAITING, Phase.FINISHED): "the spawner is lost",
    (Phase.RUNNING, Phase.FINISHED): "the spawner is lost, or released after its workers succeeded",
    (Phase.STOPPING, Phase.FINISHED): "the spawner is lost, or processes that cannot be killed",
}
"""Every way from one phase to another, and what leads there. There are no others."""


class WorkerLife(Struct):
    """One worker of the current round, as this node sees it."""

    rank: int
    pid: int | None = None
    status: ExitStatus | None = None
    step: int | None = None
    """The last that it reported."""
    ended_early: bool = False
    """It ended well while its round still ran."""
    ended_at: float = 0.0
    place: FrameGroup | None = None
    """Where it was when its round was to end, where that was asked (`core.features.hangs.node`)."""
    ended_for: str = ""
    """Why it was ended, in words, where it was because it hung or missed a deadline."""
    ended_kind: str = ""
    """The same as a kind of cause (`core.policy.kinds`)."""
    is_done: bool = False
    """It had done its work when it was ended, since it did not exit: it counts as finished."""
    ends_job: bool = False
    """It was ended for something that another round cannot help."""
    listens: bool = False
    """It asks whether it is to save."""
    waits_at: int | None = None
    """The step at which it waits to be told where all save."""
    told_to_save: bool = False
    """It knows that it is to save: that it ended well after that does not mean that it is done. Not
    any more once it has gone on."""
    heard: bool = False
    """It knows of what is to be saved now."""
    signalled: bool = False
    """It was sent the signal that asks for it."""
    saved: bool = False


class ExitWait(Struct):
    """The wait of one round for its last workers to exit."""

    told: bool = False
    ending: tuple[int, ...] = ()
    """Local ranks that were sent SIGTERM."""


class SavingHere(Struct):
    """The workers of this node are to save (`core.features.saving.node`)."""

    reason: str
    until: float
    number: int = 0
    serial: int = 1
    leaves: bool = True
    step: int | None = None
    heard_told: bool = False
    unasked_told: bool = False
    saved_told: bool = False
    left_told: bool = False


class NodeState(Struct):
    """Everything an agent remembers."""

    config: JobConfig
    node: str
    host: str
    phase: Phase = Phase.PREPARING
    dialling: bool = False
    """A coordinator is being looked for; what is said of it after that counts for nothing."""
    foreign: bool = False
    """Somebody else runs the workers."""
    endpoint: Endpoint | None = None
    store_failed: bool = False
    lock_pending: bool = False
    """It is not yet known whether the node will have a note on its machine."""
    mark: str = ""
    """By which the node's end can be told of; empty where it has no note."""
    ended: tuple[EndedMember, ...] = ()
    """Members of rounds that have ended on this machine: told on every connection."""
    preload: tuple[str, ...] = ()
    late: tuple[str, ...] = ()
    """What workers import after they began, as far as it is known."""
    avoid: dict[str, str] = field(default_factory=dict)
    """Modules that cannot be imported ahead, and why."""
    under: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """For some of what is late, what the program has set by then."""
    has_torch: bool = False
    """The zygote has PyTorch, and can serve its store."""
    recalled: frozenset[str] = frozenset()
    """Those of them that are remembered for the next job."""
    stopped_in: tuple[str, ...] = ()
    """What the zygote was importing when it could not go on but in a worker, innermost first."""
    left_out_said: bool = False
    zygote_took_s: float = 0.0
    """How long the last one was made."""
    improving: bool = False
    """A better zygote is being prepared beside the one that serves."""
    improvements: int = 0
    """How many of them were begun."""
    has_more_to_learn: bool = False
    warm_pending: bool = True
    """It is not yet known whether a zygote will be there."""
    warm: bool = False
    assignment: Assignment | None = None
    instance: int = 0
    """Of the job, when that was announced."""
    last_round: int = 0
    workers: dict[int, WorkerLife] = field(default_factory=dict)
    failures: dict[int, Failure] = field(default_factory=dict)
    stopped_by_us: bool = False
    lease_ended: bool = False
    """Workers that did well had to be stopped, because nobody renewed the lease."""
    told_failure: bool = False
    killing: bool = False
    unanswered: int = 0
    """How often the wait for the killed to be gone has run out."""
    given_up: bool = False
    """What was killed is not gone, and the node leaves without it."""
    last_signal: LastSignal | None = None
    locating: bool = False
    """The workers are to be stopped once they have told where they are."""
    interrupted_by: int | None = None
    furthest_step: int | None = None
    stall: StallFound | None = None
    """The workers stand still for longer than they may."""
    hang_said: bool = False
    exit_wait: ExitWait | None = None
    """How the wait for the last workers of the round is going (`core.features.exits`)."""
    outcome: Outcome | None = None
    term: Term = Term()
    """The highest under which anything was heard: what comes under a lower one is ignored."""
    connected: bool = False
    unfit: str = ""
    """Why it takes no part, if it does not."""
    hosting: bool = False
    without_contact_since: float | None = None
    attempts: int = 0
    """How often was dialled in vain."""
    lease: NodeLease | None = None
    """None in a job of one node: nobody could take its place."""
    closing: Outcome | None = None
    """No further round is wanted, and how the job ends unless the present one succeeds."""
    draining_by: int | None = None
    """The signal that asked the node to go, while its round still runs."""
    save_until: float = 0.0
    """How long it can wait for workers to save, once it was asked to go."""
    leave_asked: str = ""
    """Who asked it to leave, in a sentence about it, where that was no signal."""
    let_out: bool = False
    """The coordinator has ended the round for it."""
    goes_on: bool = False
    """Others are left when it goes who do not want to leave."""
    saving: SavingHere | None = None
    saves: int = 0
    """How many times workers of this node were asked to save."""
    saved: int = 0
    """The last save of the round after which it went on."""
    deaths_held: bool = False
    """A worker died of a signal that may be meant for the whole node: a moment shows whether."""

    name: str = ""
    """What this node is called: its host, unless another node of the job is there too."""
    warned: str = ""
    """What was said about settings that differ from the job's."""

    def __post_init__(self) -> None:
        self.name = self.name or self.host
        if self.config.max_nodes > 1 and self.lease is None:
            self.lease = NodeLease(self.config.leases)


def alive(state: NodeState) -> tuple[int, ...]:
    """Local ranks that have not ended, born or about to be."""
    return tuple(rank for rank, worker in state.workers.items() if worker.status is None)


def has_succeeded(state: NodeState) -> bool:
    """Whether all workers of a round that still runs have ended well, and since they were done."""
    if state.phase is not Phase.RUNNING or alive(state) or state.failures:
        return False
    return not any(one.told_to_save or one.signalled for one in state.workers.values())


def has_left(state: NodeState) -> bool:
    """Whether all workers of a round that runs have ended well, but only to let somebody go."""
    if state.phase is not Phase.RUNNING or alive(state) or state.failures or not state.workers:
        return False
    return not has_succeeded(state)


def worker_of(state: NodeState, round: int, local_rank: int) -> WorkerLife | None:
    if state.assignment is None or state.assignment.round != round:
        return None
    return state.workers.get(local_rank)


# step

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
            if not heed(state, event.term):
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
            effects = [*reached(state, event.hosting, now), *stalls.told_again(state)]
            return [*effects, *leave_unfit(state)] if state.unfit else effects
        case CoordinatorLost():
            return lost(state, event.reason, event.permanent, now)
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
            return stalls.located(state, event)
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
            return answered(state, message)
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
            return welcomed(state, message)
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
        return [*send_heartbeat(state, now), stopped]
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
    effects: list[NodeEffect] = set_deadlines(state)
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
    return [*effects, *warming.improve_soon(state)]


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
    return [
        Report(FailuresDescribed(message.round, in_full(state.failures.values(), state.config)))
    ]


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
    stopped = stalls.locate(state) if message.locate else stop_workers(state, signal.SIGTERM)
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
        return heartbeat_due(state, now)
    if name == REDIAL_TIMER:
        return redial(state)
    if name == LOCK_TIMER:
        return lock_late(state) if state.lock_pending else []
    if name == UNFIT_TIMER and state.phase is Phase.PREPARING:
        return leave_unfit(state)
    if name == SEEK_TIMER:
        return sought_in_vain(state, now)
    if name == DRAIN_TIMER and state.draining_by is not None and state.phase is Phase.RUNNING:
        return leave(state, state.draining_by)
    if name == ASKED_TIMER:
        return not_asked(state)
    if name == IMPROVE_TIMER:
        return warming.improve(state)
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
        return stalls.not_located(state)
    if name == EXIT_TIMER:
        return exits.waited(state)
    if name == UNKILLABLE_TIMER and state.killing:
        return not_gone(state)
    return []


# preparing


def prepare(state: NodeState, event: NodeEvent) -> list[NodeEffect]:
    effects: list[NodeEffect] = []
    if state.phase is Phase.CLOSING:
        # Nothing is prepared any more; but who will never be born is not waited for.
        return _forget_unborn(state) if isinstance(event, ZygoteLost) else []
    match event:
        case NodeStarted():
            effects += _started(state, event)
        case SpawnerReady():
            if not event.subreaper:
                missing = "this kernel has no subreaper"
                effects.append(Say(f"{missing}: processes that workers detach may outlive the job"))
        case EndpointReserved():
            state.endpoint = event.endpoint
        case LivenessLockTaken():
            state.lock_pending, state.mark = False, event.mark
        case EndedFound():
            effects += _ended_found(state, event)
        case StoreFailed():
            effects += _store_failed(state, event.reason)
        case ZygoteReady() if state.warm_pending or event.beside:
            effects += warming.came_ready(state, event)
            if state.warm_pending and not event.beside:
                state.warm_pending, state.warm = False, True
                effects += reserve(state)
        case ModuleRejected():
            effects += _module_rejected(state, event)
        case ModulesUnfit():
            warming.unfit(state, event)
            effects += _try_again(state, event.beside)
        case ImportsLearned():
            effects += warming.learned(state, event)
        case ImportLeft():
            effects += warming.import_left(state, event)
        case ZygoteLost(beside=True):
            state.improving = False
        case ZygoteLost():
            effects += zygote_lost(state, event.reason)
    return effects + ready(state)


def _started(state: NodeState, event: NodeStarted) -> list[NodeEffect]:
    state.preload, state.late = event.preload, event.late
    state.avoid, state.under = dict(event.avoid), dict(event.under)
    state.recalled, state.foreign = frozenset(event.avoid), event.foreign
    state.lock_pending = event.notes
    if event.unfit:
        state.unfit, state.warm_pending, state.lock_pending = event.unfit, False, False
        wait = WakeNode(UNFIT_TIMER, state.config.timeouts.seek_s)
        return [Say(f"this node stays out: {event.unfit}"), *dial(state), wait]
    note = [WakeNode(LOCK_TIMER, LOCK_WAIT_S)] if event.notes else []
    if event.cold:
        state.warm_pending = False
        return [*note, *dial(state), *reserve(state)]
    timeout_s = state.config.timeouts.preload_s
    return [
        *note,
        *dial(state),
        warming.start_zygote(state),
        WakeNode(PRELOAD_TIMER, timeout_s),
        WakeNode(PRELOAD_NOTICE_TIMER, PRELOAD_NOTICE_S),
    ]


def _ended_found(state: NodeState, event: EndedFound) -> list[NodeEffect]:
    """Tell who has to know: the coordinator, and whoever may become it."""
    known = {one.node for one in state.ended}
    new = tuple(one for one in event.members if one.node not in known)
    state.ended = (*state.ended, *new)[-ENDED_TOLD:]
    told: list[NodeEffect] = [KnowEnded(event.nodes)]
    return [*told, Report(MembersEnded(new[-ENDED_TOLD:]))] if new and state.connected else told


def lock_late(state: NodeState) -> list[NodeEffect]:
    """The disk does not answer: the node goes without a note."""
    state.lock_pending = False
    return ready(state)


def _module_rejected(state: NodeState, event: ModuleRejected) -> list[NodeEffect]:
    said = warming.rejected(state, event)
    if said is None and event.beside:
        state.improving = False
        return []
    if said is None:
        reason = f"{event.module}: {event.reason}"
        return zygote_lost(state, f"it cannot be left out: {reason}")
    return [*said, *_try_again(state, event.beside)]


def _try_again(state: NodeState, beside: bool) -> list[NodeEffect]:
    """With what is known now, another zygote may do."""
    if beside:
        return warming.failed_beside(state)
    return [warming.start_zygote(state)] if state.warm_pending else []


def zygote_lost(state: NodeState, reason: str) -> list[NodeEffect]:
    if not (state.warm or state.warm_pending):
        return []  # Told twice: a request had crossed the news.
    was_pending = state.warm_pending
    state.warm_pending, state.warm = False, False
    effects: list[NodeEffect] = [DropZygote()]
    if state.draining_by is None:  # Else none will start here, and it got the same signal.
        effects.append(Say(f"workers start cold: {reason}"))
    if was_pending:
        return effects + reserve(state)
    if state.phase is not Phase.RUNNING or state.assignment is None:
        return effects + _forget_unborn(state)
    missing = unborn(state)
    return [*effects, StartWorkers(state.assignment, missing, warm=False)] if missing else effects


def unborn(state: NodeState) -> tuple[int, ...]:
    """Local ranks that were asked for and have no process yet."""
    waiting = (rank for rank in alive(state) if state.workers[rank].pid is None)
    return tuple(waiting)


def _forget_unborn(state: NodeState) -> list[NodeEffect]:
    """The zygote is gone, so they will never be born into the round that is being stopped."""
    missing = unborn(state)
    for local_rank in missing:
        del state.workers[local_rank]
    return kill(state) if missing and not alive(state) else []


def reserve(state: NodeState) -> list[NodeEffect]:
    """Ask for the next round's endpoint; with a store where PyTorch is loaded already."""
    store = (
        state.warm
        and state.has_torch
        and state.config.master_port is None
        and not state.config.worker_store
        and not state.store_failed
    )
    return [ReserveEndpoint(store)]


def _store_failed(state: NodeState, reason: str) -> list[NodeEffect]:
    """A round that uses it fails on its own; in the next one rank 0 serves the store."""
    state.store_failed = True
    return [Say(f"the process that serves the store {reason}; rank 0 will serve the next one")]


def ready(state: NodeState) -> list[NodeEffect]:
    """Join, or say that the old round is over, once nothing is missing any more."""
    if state.endpoint is None or state.warm_pending or state.lock_pending:
        return []
    if state.phase is Phase.PREPARING:
        state.phase = Phase.WAITING
        return [Report(NodeJoined(node_info(state), state.endpoint))]
    if state.phase is Phase.STOPPING and state.assignment is not None and not state.workers:
        state.phase = Phase.WAITING
        failures = in_brief(state.failures.values(), state.config, state.assignment.world_size)
        known = (state.assignment.round, failures, state.endpoint)
        return [Report(RoundStopped(*known, lease_ended=state.lease_ended))]
    return []


# contact

REDIAL_FIRST_S = 0.1
REDIAL_MAX_S = 2.0
UNANSWERED = timing.HANGS_UP_AT - 1.5
"""How many heartbeats ago the oldest without an answer was sent; half of one is for timers."""


def reached(state: NodeState, hosting: bool, now: float) -> list[NodeEffect]:
    """Greet, and begin to renew the lease."""
    state.connected, state.hosting, state.dialling = True, hosting, False
    effects: list[NodeEffect] = []
    if state.attempts and state.lease is not None and not hosting:
        effects.append(Say("reached the coordinator"))
    state.without_contact_since, state.attempts = None, 0
    if state.lease is None:
        return [*effects, Report(greeting(state, now))]
    state.lease.forget()  # What was sent on another connection is answered by nobody any more.
    number = state.lease.heartbeat(now)
    again = WakeNode(HEARTBEAT_TIMER, state.config.leases.heartbeat_s)
    return [*effects, Report(greeting(state, now, number)), again]


def lost(state: NodeState, reason: str, permanent: bool, now: float) -> list[NodeEffect]:
    """Dial again in a moment, or give up."""
    if not (state.connected or state.dialling):
        return []  # It is known already, or was never wanted.
    state.connected = state.dialling = False
    if state.phase in (Phase.CLOSING, Phase.FINISHED):
        return []
    in_vain = state.phase is Phase.RUNNING and (permanent or not saving.can_save(state))
    if state.draining_by is not None and in_vain:
        return leave(state, state.draining_by)  # Nobody is there to let us out.
    if state.without_contact_since is None:
        state.without_contact_since = now
    limit_s = state.config.timeouts.join_s
    without_s = now - state.without_contact_since
    if state.unfit and permanent:
        return leave_unfit(state)
    if permanent or without_s >= limit_s:
        tried = "" if permanent else f" for {limit_s:g} s (--join-timeout)"
        why = f"no coordinator could be reached{tried}: {reason}"
        return close(state, Outcome("not_formed", why, exit_status.NOT_FORMED))
    said: list[NodeEffect] = []
    if state.attempts == 0 and not state.unfit:
        again = "reconnecting" if state.term.instance else "trying until it answers"
        if state.term.instance and state.phase is not Phase.RUNNING:
            again += f", for up to {limit_s:g} s (--join-timeout)"
        if has_succeeded(state):
            again = "all workers of this node are done; waiting for that to be recorded"
        said.append(Say(f"no contact with the coordinator: {reason}; {again}"))
    delay_s = min(_redial_delay(state), limit_s - without_s)
    state.attempts += 1
    return [*said, WakeNode(REDIAL_TIMER, delay_s)]


def _redial_delay(state: NodeState) -> float:
    longest_s = min(REDIAL_FIRST_S * 2.0 ** min(state.attempts, 10), REDIAL_MAX_S)
    spread = zlib.crc32(f"{state.node}/{state.attempts}".encode()) / 2**32
    return longest_s * (0.5 + 0.5 * spread)


def dial(state: NodeState) -> list[NodeEffect]:
    """Look for the coordinator, for a while: whoever knows where it is may not answer."""
    state.dialling = True
    if state.config.max_nodes == 1:
        return [Dial()]
    return [Dial(), WakeNode(SEEK_TIMER, state.config.timeouts.seek_s)]


def redial(state: NodeState) -> list[NodeEffect]:
    return [] if state.connected or state.phase is Phase.CLOSING else dial(state)


def sought_in_vain(state: NodeState, now: float) -> list[NodeEffect]:
    return lost(state, "no node is the coordinator yet", False, now) if state.dialling else []


def send_heartbeat(state: NodeState, now: float) -> list[NodeEffect]:
    if state.lease is None:
        return []
    number = state.lease.heartbeat(now)
    again = WakeNode(HEARTBEAT_TIMER, state.config.leases.heartbeat_s)
    return [Report(Heartbeat(number)), again]


def heartbeat_due(state: NodeState, now: float) -> list[NodeEffect]:
    """Send the next one; hang up if nothing has been answered for too long."""
    if not state.connected or state.lease is None:
        return []
    oldest = min(state.lease.sent.values(), default=now)
    if now - oldest < UNANSWERED * state.config.leases.heartbeat_s:
        return send_heartbeat(state, now)
    state.lease.forget()
    return [HangUp(), *lost(state, "it has stopped answering", False, now)]


def answered(state: NodeState, message: HeartbeatAnswered) -> list[NodeEffect]:
    """The lease is renewed: the spawner keeps the new deadline, if there is anything to stop.

    While the round runs there is, even where all workers have succeeded: its store may be here.
    """
    if state.lease is None or not state.lease.answered(message.number):
        return []
    return set_deadlines(state) if state.phase is Phase.RUNNING or alive(state) else []


def set_deadlines(state: NodeState) -> list[NodeEffect]:
    if state.lease is None:
        return []
    return [SetDeadlines(state.lease.stop_at, state.lease.kill_at)]


def heed(state: NodeState, term: Term) -> bool:
    """Whether a word under this term counts. A higher one than ever before is remembered."""
    if term < state.term:
        return False
    if term > state.term:
        state.term = term
    return True


def welcomed(state: NodeState, message: Welcomed) -> list[NodeEffect]:
    state.name = message.name or state.name
    said: list[NodeEffect] = []
    if message.warning and message.warning != state.warned:
        state.warned = message.warning
        said.append(Say(message.warning))
    quiet = state.hosting or state.lease is None or not message.waiting
    return said if quiet else [*said, Say(message.waiting)]


# What a node tells about itself.


def node_info(state: NodeState) -> NodeInfo:
    return NodeInfo(
        node=state.node,
        host=state.host,
        slots=state.config.slots,
        role=state.config.role,
        rank_hint=state.config.node_rank,
        topology=state.config.topology_key,
        name=state.name if state.term.instance else "",
        mark=state.mark,
    )


def greeting(state: NodeState, now: float, heartbeat: int = 0) -> NodeGreeted:
    assignment = state.assignment
    draining, within_s = "", 0.0
    if state.draining_by is not None:
        within_s = max(0.0, state.save_until - now)
        sent = f"{signal_name(state.draining_by)} was sent to its agent"
        draining = cut(state.leave_asked) or sent
    return NodeGreeted(
        node_info(state),
        seen=Seen(state.term, state.last_round, assignment.restart_count if assignment else 0),
        standing=_standing(state, now),
        endpoint=state.endpoint if state.phase is Phase.WAITING else None,
        draining=draining,
        within_s=within_s,
        heartbeat=heartbeat,
        closing=state.closing,
        settings={} if state.lease is None else of_job(state.config),
        ended=state.ended,
    )


def _standing(state: NodeState, now: float) -> RoundReport | None:
    assignment = state.assignment
    if assignment is None:
        return None
    condition: Condition
    if state.phase is Phase.RUNNING:
        condition = "succeeded" if has_succeeded(state) else "running"
        condition = "left" if has_left(state) else condition
        condition = "failed" if state.failures else condition
    else:
        condition = "stopped" if state.phase is Phase.WAITING else "stopping"
    return RoundReport(
        round=assignment.round,
        group_rank=assignment.group_rank,
        group_size=assignment.group_size,
        condition=condition,
        failures=in_full(state.failures.values(), state.config),
        instance=state.instance,
        saving=_saving_report(state, now),
        saved=state.saved,
        lease_ended=state.lease_ended,
    )


def _saving_report(state: NodeState, now: float) -> SavingReport | None:
    """What its workers are to save: whoever takes over goes on with it."""
    saving = state.saving
    if saving is None or state.phase is not Phase.RUNNING:
        return None
    left_s = max(0.0, saving.until - now)
    return SavingReport(saving.number, saving.reason, left_s, saving.step)


# draining

ASKED_TOO_S = 0.5
"""How much later than its worker an agent may be told: both are sent at once, but a busy machine
may not run them so."""


def signalled(state: NodeState, number: int, now: float) -> list[NodeEffect]:
    if is_repeat(number, now, state.last_signal):
        return []
    state.last_signal = LastSignal(number, now)
    if state.interrupted_by is not None or state.phase is Phase.CLOSING:
        if number == signal.SIGINT and not state.killing:
            return [Say("interrupted again: killing the workers at once"), *kill(state)]
        return []
    if _died_of(state, number):
        state.deaths_held = False
        state.draining_by = number
        return leave(state, number)
    if not (asks_to_leave(state, number) and _can_ask(state)):
        return leave(state, number)
    name = signal_name(number)
    return _ask(state, number, (name, f"{name} was sent to its agent"), now)


def asked(state: NodeState, by: str, now: float) -> list[NodeEffect]:
    """Somebody wants this node to leave, and sent no signal (rule 3)."""
    is_leaving = state.draining_by is not None or state.interrupted_by is not None
    if is_leaving or state.phase is Phase.CLOSING:
        return []
    state.leave_asked = f"{by} asked it to leave"
    if not _can_ask(state):
        return leave(state, signal.SIGTERM)
    what = f"{by} asked this node to leave"
    return _ask(state, signal.SIGTERM, (what, state.leave_asked), now)


def _ask(state: NodeState, number: int, words: tuple[str, str], now: float) -> list[NodeEffect]:
    """Ask the coordinator to be let out of the round, now or as soon as it can be reached."""
    what, reason = words
    times = state.config.timeouts
    state.draining_by, state.save_until = number, now + times.save_s
    patience_s = (
        max(times.drain_s, times.save_s if saving.can_save(state) else 0.0) + DRAIN_MARGIN_S
    )
    leaving = "this node leaves the job as soon as the job can do without it"
    if state.lease is None:
        leaving = "the workers save, and the job ends"
    said = Say(f"{what}: {leaving}")
    ask = Report(NodeDraining(cut(reason), times.save_s))
    return [said, ask, WakeNode(DRAIN_TIMER, patience_s)]


def _can_ask(state: NodeState) -> bool:
    """Once, and where workers can save, or somebody can say when it suits."""
    if state.draining_by is not None or state.phase is not Phase.RUNNING:
        return False
    return saving.can_save(state) or (state.lease is not None and state.connected)


# Workers that die of it.


def worker_failed(state: NodeState, failure: Failure) -> list[NodeEffect]:
    """A worker of a round that runs has ended badly: tell it, unless it was only asked to leave."""
    number = failure.status.signal
    if number is not None and number == state.draining_by:
        _excuse(state, number)
        return leave(state, number)
    if _was_sent_by_us(state, failure):
        _excuse(state, number)
        return []
    if state.told_failure or state.deaths_held:
        return []
    may_be_drain = state.draining_by is None and not failure.ended_for
    if number is not None and may_be_drain and asks_to_leave(state, number):
        state.deaths_held = True
        return [WakeNode(ASKED_TIMER, ASKED_TOO_S)]
    return _tell_failures(state)


def not_asked(state: NodeState) -> list[NodeEffect]:
    """The moment is over in which a signal to the whole node would have come here, too."""
    if not state.deaths_held:
        return []
    state.deaths_held = False
    return _tell_failures(state) if state.phase is Phase.RUNNING else []


def _tell_failures(state: NodeState) -> list[NodeEffect]:
    assert state.assignment is not None, "a worker failed of no round"
    state.told_failure = True
    told = in_brief(state.failures.values(), state.config, state.assignment.world_size)
    return [Report(WorkersFailed(state.assignment.round, told))]


def _died_of(state: NodeState, number: int) -> bool:
    """Whether workers have died of the signal that comes here just now."""
    if not state.deaths_held or not asks_to_leave(state, number):
        return False
    return _excuse(state, number)


def _was_sent_by_us(state: NodeState, failure: Failure) -> bool:
    """Whether it died of the signal that asks for saving: it has no handler for it."""
    name, number = state.config.drain_worker_signal, failure.status.signal
    worker = state.workers.get(failure.local_rank)
    sent = worker is not None and worker.signalled
    return sent and name is not None and number == signal.Signals[name]


def _excuse(state: NodeState, number: int | None) -> bool:
    """Note that whoever died of it was stopped; whether anybody did."""
    died = [rank for rank, one in state.failures.items() if one.status.signal == number]
    for rank in died:
        state.failures[rank] = replace(state.failures[rank], stopped_by_us=True)
    return bool(died)


# stopping

DRAIN_MARGIN_S = 2.0
"""How much longer than the coordinator's patience a node waits to be let out."""


def stop_workers(state: NodeState, with_signal: int) -> list[NodeEffect]:
    state.stopped_by_us, state.locating = True, False
    running = alive(state)
    if not running:
        return kill(state)
    grace = WakeNode(GRACE_TIMER, state.config.timeouts.shutdown_s)
    return [SignalWorkers(with_signal, running), grace]


def kill(state: NodeState) -> list[NodeEffect]:
    """The grace is over, or nobody is left to need it: nothing below us survives this."""
    if state.killing:
        return []
    state.killing = True
    state.unanswered = 0
    wait = WakeNode(UNKILLABLE_TIMER, state.config.timeouts.unkillable_s)
    is_closing = state.phase is Phase.CLOSING
    return [EndSpawner() if is_closing else KillEverything(state.last_round), wait]


def not_gone(state: NodeState) -> list[NodeEffect]:
    """Ask what is still there; a spawner that does not answer is killed; then go on without."""
    state.unanswered += 1
    again = WakeNode(UNKILLABLE_TIMER, state.config.timeouts.unkillable_s)
    if state.unanswered == 1:
        return [ListStuck(), again]
    if state.unanswered == 2:
        return [
            Say("the spawner, the parent of all workers here, does not answer: killing it"),
            KillSpawner(),
            again,
        ]
    return stuck(state, ("the spawner",))


def stuck(
    state: NodeState, processes: tuple[str, ...], forbidden: tuple[str, ...] = ()
) -> list[NodeEffect]:
    """SIGKILL was sent, so they execute nothing more; but what they hold is not free.

    Those that are `forbidden` to us may well go on.
    """
    if not state.killing or state.given_up:
        return []
    said = _left_behind(processes, forbidden)
    if state.phase is Phase.CLOSING:
        return [*said, *finish(state)]
    state.phase = Phase.CLOSING
    state.given_up = True
    named = ", ".join((*processes, *forbidden)) or "a process"
    reason = f"{named} on {state.name} cannot be killed, so what it holds cannot be reused"
    from holdfast.core.policy.kinds import FORBIDDEN, STUCK

    kind = FORBIDDEN if forbidden else STUCK
    failures = in_full(state.failures.values(), state.config)
    left = Report(NodeLeft(cut(reason), failures=failures, kind=kind))
    if state.lease is None:
        return [*said, left]
    # The others go on; nobody will tell us of an end that is ours alone.
    found = Blame(kind, state.name, "certain", cut(reason))
    state.outcome = Outcome("failed", reason, 1, blame=found)
    return [*said, left, *finish(state)]


def _left_behind(processes: tuple[str, ...], forbidden: tuple[str, ...]) -> list[NodeEffect]:
    """Name what outlives us."""
    said: list[NodeEffect] = []
    if processes or not forbidden:
        named = ", ".join(processes) or "a process"
        words = "did not die from SIGKILL (stuck in the kernel?)"
        said.append(Say(f"{named} {words}; going on without it"))
    if forbidden:
        words = "belongs to another user: it could not be ended, and may still run"
        said.append(Say(f"{', '.join(forbidden)} {words}; going on without it"))
    return said


# Ending.


def close(state: NodeState, outcome: Outcome) -> list[NodeEffect]:
    if state.outcome is None:
        state.outcome = outcome
    if state.phase is Phase.CLOSING:
        return finish(state) if state.given_up else []
    state.phase = Phase.CLOSING
    if alive(state):
        return stop_workers(state, signal.SIGTERM)
    return kill(state)


def leave_unfit(state: NodeState) -> list[NodeEffect]:
    """The node did not pass its check: it goes, and the coordinator, if it was reached, is told.

    A job that can do without it goes on; where it cannot, whoever placed this node should know.
    """
    reason = f"{state.name} stays out: {state.unfit}"
    elastic = state.config.min_nodes < state.config.max_nodes
    asked: Literal["", "node"] = "node" if elastic else ""
    return close(state, Outcome("failed", reason, exit_status.UNFIT, asked=asked))


def closing_asked(state: NodeState, outcome: Outcome) -> list[NodeEffect]:
    """Pass it on; until the job is over it is told again on every new connection."""
    if state.closing is not None or state.phase is Phase.CLOSING:
        return []
    state.closing = replace(outcome, reason=cut(outcome.reason))
    return [Report(ClosingWanted(state.closing))]


def released(state: NodeState) -> list[NodeEffect]:
    """Go, and let the others go on; whoever carries the coordinator stays until all are done."""
    if state.phase is Phase.CLOSING:
        return []
    if not has_succeeded(state):
        return leave(state, signal.SIGINT, "it takes no further part")
    return [] if state.hosting else depart(state)


def depart(state: NodeState) -> list[NodeEffect]:
    """The node's part is done, whatever becomes of the others."""
    state.outcome = Outcome("succeeded", f"all workers on {state.name} succeeded", 0)
    return finish(state)


def leave(state: NodeState, number: int, why: str = "") -> list[NodeEffect]:
    """Pass the signal on, give the workers their grace, and go; `why` if none was received."""
    state.interrupted_by = number
    why = why or state.leave_asked
    sent = f"{signal_name(number)} was sent to"
    reason = f"{state.name}: {why}" if why else f"{sent} the agent on {state.name}"
    status = exit_status.BY_SIGNAL + number
    asked = _who_was_asked(state, number)
    state.outcome = Outcome("interrupted", reason, status, asked=asked)
    said: list[NodeEffect] = [Say(f"{reason}{_passed_on(state, number)}")]
    if number == signal.SIGINT and not why:
        said += _others_wait(state)
    already_stopping = state.phase is Phase.STOPPING
    state.phase = Phase.CLOSING
    if state.lease is not None and not state.let_out:
        said.append(Report(NodeDraining(cut(why) or f"{sent} its agent", at_once=True)))
    if already_stopping and state.killing:
        return [*said, EndSpawner()]
    return said + stop_workers(state, number)


def asks_to_leave(state: NodeState, number: int) -> bool:
    """Whether this signal is one by which a node is asked to leave."""
    return signal_name(number) in state.config.drain_signals


def note_job_continues(state: NodeState, goes_on: bool) -> None:
    """Others stay when this node goes, or all of them have to. It may be on its way already.

    Told to a node that has not asked, it is about the leaving of another, and this node is one of
    those who stay: asked to leave a moment later, it cannot say that anybody does.
    """
    has_asked = state.draining_by is not None or state.interrupted_by is not None
    state.goes_on = goes_on and has_asked
    if state.outcome is not None and state.outcome.asked and state.interrupted_by is not None:
        asked = _who_was_asked(state, state.interrupted_by)
        state.outcome = replace(state.outcome, asked=asked)


def _who_was_asked(state: NodeState, number: int) -> Literal["", "node", "job"]:
    if not asks_to_leave(state, number):
        return ""
    return "node" if state.goes_on else "job"


def _passed_on(state: NodeState, number: int) -> str:
    running = alive(state)
    if not running:
        return ""
    workers = "1 worker" if len(running) == 1 else f"{len(running)} workers"
    grace = f"{state.config.timeouts.shutdown_s:g} s"
    again = "; Ctrl-C again ends at once" if number == signal.SIGINT else ""
    return f"; passing it on to {workers}, {grace} of grace{again}"


def _others_wait(state: NodeState) -> list[NodeEffect]:
    """Who ends one node of a job that needs all of its nodes may believe to have ended the job."""
    others = state.assignment.group_size - 1 if state.assignment is not None else 0
    is_member = state.lease is not None and state.phase is Phase.RUNNING
    if not is_member or not 0 < others < state.config.min_nodes:
        return []
    nodes = "the other node waits" if others == 1 else f"the other {others} nodes wait"
    limit = f"{state.config.timeouts.join_s:g} s (--join-timeout)"
    there = "there" if others == 1 else "on each of them"
    return [
        Say(f"{nodes} up to {limit} for another node in place of this one; Ctrl-C {there} ends it")
    ]


def launcher_lost(state: NodeState) -> list[NodeEffect]:
    """Nobody waits for the results any more: no grace, the end."""
    if state.outcome is None:
        state.outcome = Outcome("interrupted", "the process that launched the job is gone", 1)
    state.phase = Phase.CLOSING
    state.killing = False
    return kill(state)


def spawner_lost(state: NodeState, reason: str, left: tuple[str, ...] = ()) -> list[NodeEffect]:
    if state.outcome is None:
        text = f"the spawner on {state.name} {reason}; its workers were killed with it"
        if left:
            text += f", but {', '.join(left)} could not be ended"
        from holdfast.core.policy.kinds import SPAWNER_ENDED

        found = Blame(SPAWNER_ENDED, state.name, "certain", cut(text))
        state.outcome = Outcome("failed", text, 1, blame=found)
    return finish(state)


def finish(state: NodeState) -> list[NodeEffect]:
    """The last effect of every life. Every way here has an outcome."""
    assert state.outcome is not None, "an agent finished without an outcome"
    state.phase = Phase.FINISHED
    effects = warming.untold(state)
    if state.interrupted_by is not None or (state.lease is not None and not state.given_up):
        kind = state.outcome.blame.kind if state.outcome.blame is not None else ""
        reason, out = cut(state.unfit or state.outcome.reason), bool(state.unfit)
        left = NodeLeft(reason, signal=state.interrupted_by, kind=kind, unfit=out)
        effects.append(Report(left))
    return [*effects, Finish(state.outcome)]


# validate

RUNNING, WAITING = Phase.RUNNING, Phase.WAITING
IDLE = (Phase.PREPARING, Phase.WAITING)
UNJOINED = (Phase.PREPARING, Phase.CLOSING, Phase.FINISHED)
"""Nobody has been told of the node, or has to be any more."""


def broken_invariants(state: NodeState) -> Iterator[str]:
    """What should be true and is not, in words."""
    phase = state.phase
    if state.connected and state.dialling:
        yield "the coordinator is looked for, and was found"
    if phase is RUNNING:
        if state.assignment is None or not state.workers:
            yield "a round runs without workers"
        elif state.assignment.round != state.last_round:
            yield f"round {state.assignment.round} runs after round {state.last_round}"
    if phase is WAITING and state.endpoint is None:
        yield "the node waits for a round, and holds no endpoint"
    if phase in IDLE and alive(state):
        yield f"workers run while the node is {phase}"
    if state.workers and not state.failures.keys() <= state.workers.keys():
        yield "somebody failed who is no worker of the round"
    if state.warm and state.warm_pending:
        yield "the zygote is ready, and waited for"
    if state.node in [one.node for one in state.ended]:
        yield "the node tells of its own end"
    if state.lock_pending and phase not in UNJOINED:
        yield "the node has joined, and its note is waited for"


from holdfast.core.features import exits  # noqa: E402
from holdfast.core.features import warm_start as warming  # noqa: E402
from holdfast.core.features.hangs import node as stalls  # noqa: E402
from holdfast.core.features.saving import node as saving  # noqa: E402
