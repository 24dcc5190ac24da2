"""The life of one node, from its start to its exit status.

Rules
1. `step` is the only way in: an event and the time go in, effects come out.
2. A node starts a round only if its number is above every round it ran, and no process of
   an older round is left.
3. Stopping is always the same: the signal, the grace, then SIGKILL to everything below the
   spawner; the round is stopped when nothing is left.
4. A failure is told at once; what to do about it is the coordinator's to say.
5. Whatever happens, the node reaches `Finish`: every wait has a timer.

Phases:

    preparing ──NodeJoined──▶ waiting ──RunRound──▶ running
                                 ▲                     │ StopRound, or a signal
                                 └────RoundStopped── stopping
    any ──CloseJob, signal, spawner lost──▶ closing ──everything gone──▶ finished
"""

from __future__ import annotations

import signal
import sys
from enum import StrEnum

from msgspec import Struct, field

from holdfast.core.agent_io import (
    AgentEffect,
    AgentEvent,
    AgentStarted,
    AgentTimerFired,
    AllGone,
    DropZygote,
    EndpointReserved,
    EndSpawner,
    Finish,
    KillEverything,
    KillSpawner,
    LauncherLost,
    ListStuck,
    ModuleRejected,
    ProcessesStuck,
    Report,
    ReserveEndpoint,
    Say,
    SignalReceived,
    SignalWorkers,
    SpawnerEnded,
    SpawnerLost,
    SpawnerReady,
    StartWorkers,
    StartZygote,
    StepReported,
    StoreFailed,
    Told,
    WakeAgent,
    WorkerExited,
    WorkerStarted,
    ZygoteLost,
    ZygoteReady,
)
from holdfast.core.config import JobConfig
from holdfast.core.messages import (
    CloseJob,
    NodeJoined,
    NodeLeft,
    RoundStopped,
    RunRound,
    StopRound,
    ToNode,
    WorkersFailed,
    WorkersProgressed,
    WorkersSucceeded,
)
from holdfast.core.model import (
    Assignment,
    Endpoint,
    ExitStatus,
    Failure,
    NodeInfo,
    Outcome,
    signal_name,
)

GRACE_TIMER = "grace"
UNKILLABLE_TIMER = "unkillable"
PRELOAD_TIMER = "preload"
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


class WorkerLife(Struct):
    """One worker of the current round, as this node sees it."""

    rank: int
    pid: int | None = None
    status: ExitStatus | None = None


class AgentState(Struct):
    """Everything an agent remembers."""

    config: JobConfig
    node: str
    host: str
    phase: Phase = Phase.PREPARING
    endpoint: Endpoint | None = None
    store_failed: bool = False
    preload: tuple[str, ...] = ()
    warm_pending: bool = True
    """It is not yet known whether a zygote will be there."""
    warm: bool = False
    assignment: Assignment | None = None
    last_round: int = 0
    workers: dict[int, WorkerLife] = field(default_factory=dict)
    failures: dict[int, Failure] = field(default_factory=dict)
    stopped_by_us: bool = False
    told_failure: bool = False
    killing: bool = False
    unanswered: int = 0
    """How often the wait for the killed to be gone has run out."""
    given_up: bool = False
    """What was killed is not gone, and the node leaves without it."""
    interrupted_by: int | None = None
    furthest_step: int | None = None
    outcome: Outcome | None = None


def step(state: AgentState, event: AgentEvent, now: float) -> list[AgentEffect]:
    """Advance by one event."""
    if state.phase is Phase.FINISHED:
        return []
    match event:
        case Told():
            return _told(state, event.message)
        case WorkerStarted():
            return _worker_started(state, event)
        case WorkerExited():
            return _worker_exited(state, event, now)
        case AllGone():
            return _all_gone(state)
        case AgentTimerFired():
            return _timer(state, event.name)
        case SignalReceived():
            return _signalled(state, event.signal)
        case StepReported():
            return _step_reported(state, event)
        case LauncherLost():
            return _launcher_lost(state)
        case SpawnerLost():
            return _spawner_lost(state, event.reason)
        case SpawnerEnded():
            return _finish(state)
        case ProcessesStuck():
            return _stuck(state, event.processes)
        case _:
            return _prepare(state, event)


# Getting ready.


def _prepare(state: AgentState, event: AgentEvent) -> list[AgentEffect]:
    effects: list[AgentEffect] = []
    if state.phase is Phase.CLOSING:
        # Nothing is prepared any more; but who will never be born is not waited for.
        return _forget_unborn(state) if isinstance(event, ZygoteLost) else []
    match event:
        case AgentStarted():
            effects += _started(state, event)
        case SpawnerReady():
            if not event.subreaper:
                effects.append(Say("this kernel has no subreaper: daemons may outlive the job"))
        case EndpointReserved():
            state.endpoint = event.endpoint
        case StoreFailed():
            effects += _store_failed(state, event.reason)
        case ZygoteReady() if state.warm_pending:
            state.warm_pending, state.warm = False, True
            effects += _reserve(state)
        case ModuleRejected():
            effects += _module_rejected(state, event)
        case ZygoteLost():
            effects += _zygote_lost(state, event.reason)
    return effects + _ready(state)


def _started(state: AgentState, event: AgentStarted) -> list[AgentEffect]:
    state.preload = event.preload
    if event.cold:
        state.warm_pending = False
        return _reserve(state)
    timeout_s = state.config.timeouts.preload_s
    return [
        StartZygote(state.preload),
        WakeAgent(PRELOAD_TIMER, timeout_s),
        WakeAgent(PRELOAD_NOTICE_TIMER, PRELOAD_NOTICE_S),
    ]


def _module_rejected(state: AgentState, event: ModuleRejected) -> list[AgentEffect]:
    """Try again without that module; `import a.b` goes with `a`."""
    inside = event.module + "."
    rest = tuple(m for m in state.preload if m != event.module and not m.startswith(inside))
    said = Say(f"not preloading {event.module}: {event.reason}")
    if rest == state.preload:
        return [said, *_zygote_lost(state, f"it could not do without {event.module}")]
    state.preload = rest
    return [said, StartZygote(rest)] if state.warm_pending else [said]


def _zygote_lost(state: AgentState, reason: str) -> list[AgentEffect]:
    if not (state.warm or state.warm_pending):
        return []  # Told twice: a request had crossed the news.
    was_pending = state.warm_pending
    state.warm_pending, state.warm = False, False
    effects: list[AgentEffect] = [DropZygote(), Say(f"workers start cold: {reason}")]
    if was_pending:
        return effects + _reserve(state)
    if state.phase is not Phase.RUNNING or state.assignment is None:
        return effects + _forget_unborn(state)
    unborn = _unborn(state)
    return [*effects, StartWorkers(state.assignment, unborn, warm=False)] if unborn else effects


def _unborn(state: AgentState) -> tuple[int, ...]:
    """Local ranks that were asked for and have no process yet."""
    waiting = (rank for rank in _alive(state) if state.workers[rank].pid is None)
    return tuple(waiting)


def _forget_unborn(state: AgentState) -> list[AgentEffect]:
    """The zygote is gone, so they will never be born into the round that is being stopped."""
    unborn = _unborn(state)
    for local_rank in unborn:
        del state.workers[local_rank]
    return _kill(state) if unborn and not _alive(state) else []


def _reserve(state: AgentState) -> list[AgentEffect]:
    """Ask for the next round's endpoint; with a store where PyTorch is loaded already."""
    store = (
        state.warm
        and any(module.partition(".")[0] == "torch" for module in state.preload)
        and state.config.master_port is None
        and not state.config.worker_store
        and not state.store_failed
    )
    return [ReserveEndpoint(store)]


def _store_failed(state: AgentState, reason: str) -> list[AgentEffect]:
    """A round that uses it fails on its own; in the next one rank 0 serves the store."""
    state.store_failed = True
    return [Say(f"the process that serves the store {reason}; rank 0 will serve the next one")]


def _ready(state: AgentState) -> list[AgentEffect]:
    """Join, or say that the old round is over, once nothing is missing any more."""
    if state.endpoint is None or state.warm_pending:
        return []
    if state.phase is Phase.PREPARING:
        state.phase = Phase.WAITING
        info = NodeInfo(
            node=state.node,
            host=state.host,
            slots=state.config.slots,
            role=state.config.role,
            rank_hint=state.config.node_rank,
        )
        return [Report(NodeJoined(info, state.endpoint))]
    if state.phase is Phase.STOPPING and state.assignment is not None and not state.workers:
        state.phase = Phase.WAITING
        failures = tuple(state.failures.values())
        return [Report(RoundStopped(state.assignment.round, failures, state.endpoint))]
    return []


# A round.


def _told(state: AgentState, message: ToNode) -> list[AgentEffect]:
    match message:
        case RunRound():
            return _run(state, message.assignment)
        case StopRound():
            return _stop_round(state, message)
        case CloseJob():
            return _close(state, message.outcome)


def _run(state: AgentState, assignment: Assignment) -> list[AgentEffect]:
    if state.phase is not Phase.WAITING or assignment.round <= state.last_round:
        return []
    state.phase = Phase.RUNNING
    state.assignment, state.last_round = assignment, assignment.round
    state.workers = {ranks.local_rank: WorkerLife(ranks.rank) for ranks in assignment.workers}
    state.failures = {}
    state.stopped_by_us = state.told_failure = state.killing = False
    state.endpoint = None
    return [StartWorkers(assignment, tuple(state.workers), warm=state.warm)]


def _worker_started(state: AgentState, event: WorkerStarted) -> list[AgentEffect]:
    worker = _worker(state, event.round, event.local_rank)
    if worker is None:
        return []
    worker.pid = event.pid
    if state.phase is Phase.RUNNING or worker.status is not None:
        return []
    # It was born into a round that is being stopped: it gets what the others got.
    if state.killing:
        return [KillEverything()]
    return [SignalWorkers(state.interrupted_by or signal.SIGTERM, (event.local_rank,))]


def _worker_exited(state: AgentState, event: WorkerExited, now: float) -> list[AgentEffect]:
    worker = _worker(state, event.round, event.local_rank)
    if worker is None or state.assignment is None:
        return []
    worker.pid, worker.status = event.pid, event.status
    effects: list[AgentEffect] = []
    if not event.status.succeeded:
        failure = _failure(state, worker, event, now)
        state.failures[event.local_rank] = failure
        if state.phase is Phase.RUNNING and not state.told_failure:
            state.told_failure = True
            effects.append(Report(WorkersFailed(state.assignment.round, (failure,))))
    if any(other.status is None for other in state.workers.values()):
        return effects
    if state.phase is not Phase.RUNNING:
        return effects + _kill(state)
    if not state.failures:
        effects.append(Report(WorkersSucceeded(state.assignment.round)))
    return effects


def _failure(state: AgentState, worker: WorkerLife, event: WorkerExited, now: float) -> Failure:
    return Failure(
        node=state.node,
        host=state.host,
        local_rank=event.local_rank,
        rank=worker.rank,
        role=state.config.role,
        pid=event.pid,
        status=event.status,
        observed_at=now,
        error=event.error,
        stderr_tail=event.stderr_tail,
        out_of_memory=event.out_of_memory,
        stopped_by_us=state.stopped_by_us and not _failed_on_its_own(state, event),
        error_file=event.error_file,
    )


def _failed_on_its_own(state: AgentState, event: WorkerExited) -> bool:
    """Whether a worker that we were stopping ended of something else than that."""
    if event.status.signal is None:
        return bool(event.error.message)
    ours = (signal.SIGTERM, signal.SIGKILL, state.interrupted_by)
    return event.status.signal not in ours or bool(event.out_of_memory)


def _step_reported(state: AgentState, event: StepReported) -> list[AgentEffect]:
    if _worker(state, event.round, event.local_rank) is None:
        return []
    if state.furthest_step is not None and event.step <= state.furthest_step:
        return []
    state.furthest_step = event.step
    return [Report(WorkersProgressed(event.round, event.step))]


# Stopping.


def _stop_round(state: AgentState, message: StopRound) -> list[AgentEffect]:
    if state.phase is not Phase.RUNNING or message.round != state.last_round:
        return []
    state.phase = Phase.STOPPING
    running = len(_alive(state))
    others = f"; stopping {running} more on {state.host}" if running else ""
    said = Say(f"round {message.round} ends: {message.reason}{others}")
    return [said, *_stop_workers(state, signal.SIGTERM)]


def _stop_workers(state: AgentState, with_signal: int) -> list[AgentEffect]:
    state.stopped_by_us = True
    alive = _alive(state)
    if not alive:
        return _kill(state)
    grace = WakeAgent(GRACE_TIMER, state.config.timeouts.shutdown_s)
    return [SignalWorkers(with_signal, alive), grace]


def _kill(state: AgentState) -> list[AgentEffect]:
    """The grace is over, or nobody is left to need it: nothing below us survives this."""
    if state.killing:
        return []
    state.killing = True
    state.unanswered = 0
    wait = WakeAgent(UNKILLABLE_TIMER, state.config.timeouts.unkillable_s)
    return [EndSpawner() if state.phase is Phase.CLOSING else KillEverything(), wait]


def _all_gone(state: AgentState) -> list[AgentEffect]:
    if state.phase is Phase.CLOSING:
        return [] if state.given_up else [EndSpawner()]
    if state.phase is not Phase.STOPPING:
        return []
    state.workers = {}
    state.killing = False
    return _reserve(state)


def _timer(state: AgentState, name: str) -> list[AgentEffect]:
    preparing = state.warm_pending and state.phase is Phase.PREPARING
    if name == PRELOAD_TIMER and preparing:
        limit = f"{state.config.timeouts.preload_s:g} s"
        return [*_zygote_lost(state, f"preloading took more than {limit}"), *_ready(state)]
    if name == PRELOAD_NOTICE_TIMER and preparing:
        packages = dict.fromkeys(module.partition(".")[0] for module in state.preload)
        named = ", ".join(name for name in packages if name not in sys.stdlib_module_names)
        return [Say(f"importing {named or 'modules'} once for all workers of this node")]
    if name == GRACE_TIMER and state.phase in (Phase.STOPPING, Phase.CLOSING):
        alive = _alive(state)
        if not alive or state.killing:
            return []
        ranks = ", ".join(str(state.workers[local].rank) for local in alive)
        limit = f"{state.config.timeouts.shutdown_s:g} s"
        return [Say(f"rank {ranks} did not stop within {limit}: killing"), *_kill(state)]
    if name == UNKILLABLE_TIMER and state.killing:
        return _not_gone(state)
    return []


def _not_gone(state: AgentState) -> list[AgentEffect]:
    """Ask what is still there; a spawner that does not answer is killed; then go on without."""
    state.unanswered += 1
    again = WakeAgent(UNKILLABLE_TIMER, state.config.timeouts.unkillable_s)
    if state.unanswered == 1:
        return [ListStuck(), again]
    if state.unanswered == 2:
        return [Say("the spawner does not answer: killing it"), KillSpawner(), again]
    return _stuck(state, ("the spawner",))


def _stuck(state: AgentState, processes: tuple[str, ...]) -> list[AgentEffect]:
    """SIGKILL was sent, so they execute nothing more; but what they hold is not free."""
    if not state.killing or state.given_up:
        return []
    named = ", ".join(processes) or "a process"
    said = Say(f"{named} did not die of SIGKILL (stuck in the kernel?); going on without it")
    if state.phase is Phase.CLOSING:
        return [said, *_finish(state)]
    state.phase = Phase.CLOSING
    state.given_up = True
    reason = f"{named} on {state.host} cannot be killed, so what it holds cannot be reused"
    return [said, Report(NodeLeft(reason, failures=tuple(state.failures.values())))]


# Ending.


def _close(state: AgentState, outcome: Outcome) -> list[AgentEffect]:
    if state.outcome is None:
        state.outcome = outcome
    if state.phase is Phase.CLOSING:
        return _finish(state) if state.given_up else []
    state.phase = Phase.CLOSING
    if _alive(state):
        return _stop_workers(state, signal.SIGTERM)
    return _kill(state)


def _signalled(state: AgentState, number: int) -> list[AgentEffect]:
    if state.interrupted_by is not None or state.phase is Phase.CLOSING:
        if number == signal.SIGINT and not state.killing:
            return [Say("interrupted again: killing at once"), *_kill(state)]
        return []
    state.interrupted_by = number
    reason = f"{signal_name(number)} was sent to the agent on {state.host}"
    state.outcome = Outcome("interrupted", reason, 128 + number)
    already_stopping = state.phase is Phase.STOPPING
    state.phase = Phase.CLOSING
    alive = _alive(state)
    grace = f"{state.config.timeouts.shutdown_s:g} s"
    passed_on = f"; passing it on to {len(alive)} workers, {grace} of grace" if alive else ""
    said: list[AgentEffect] = [Say(f"{reason}{passed_on}")]
    if already_stopping and state.killing:
        return [*said, EndSpawner()]
    return said + _stop_workers(state, number)


def _launcher_lost(state: AgentState) -> list[AgentEffect]:
    """Nobody waits for the results any more: no grace, the end."""
    if state.outcome is None:
        state.outcome = Outcome("interrupted", "the process that launched the job is gone", 1)
    state.phase = Phase.CLOSING
    state.killing = False
    return _kill(state)


def _spawner_lost(state: AgentState, reason: str) -> list[AgentEffect]:
    if state.outcome is None:
        text = f"the spawner on {state.host} {reason}; its workers were killed with it"
        state.outcome = Outcome("failed", text, 1)
    return _finish(state)


def _finish(state: AgentState) -> list[AgentEffect]:
    """The last effect of every life. Every way here has an outcome."""
    assert state.outcome is not None, "an agent finished without an outcome"
    state.phase = Phase.FINISHED
    effects: list[AgentEffect] = []
    if state.interrupted_by is not None:
        effects.append(Report(NodeLeft(state.outcome.reason, signal=state.interrupted_by)))
    return [*effects, Finish(state.outcome)]


def _alive(state: AgentState) -> tuple[int, ...]:
    """Local ranks that have not ended, born or about to be."""
    return tuple(rank for rank, worker in state.workers.items() if worker.status is None)


def _worker(state: AgentState, round: int, local_rank: int) -> WorkerLife | None:
    if state.assignment is None or state.assignment.round != round:
        return None
    return state.workers.get(local_rank)
