"""The life of one node, from its start to its exit status.

Rules
1. `step` is the only way in: an event and the time go in, effects come out.
2. A node starts a round only if its number is above every round it ran, no process of an
   older round is left, and its lease is good.
3. Stopping is always the same: the signal, the grace, then SIGKILL to everything below the
   spawner; the round is stopped when nothing is left. What does not die is named and left behind.
4. A failure is reported at once; the coordinator decides what to do about it.
5. Whatever happens, the node reaches `Finish`, once: every wait has a timer, every end an outcome.

Phases (`MOVES` has every move, and `step` knows no other):

    preparing ──NodeJoined──▶ waiting ──RunRound──▶ running
                                 ▲                     │ StopRound, or the lease runs out
                                 └────RoundStopped── stopping
    any ──CloseJob, signal, spawner lost──▶ closing ──everything gone──▶ finished

What surrounds this (saving, hangs, workers that do not exit, warm start) are features: objects with
a state of their own, which the kernel reaches through its hooks (`core.node_hooks`).
"""

from __future__ import annotations

import signal
import zlib
from collections.abc import Iterator
from enum import StrEnum
from typing import Literal, TypeVar

from msgspec import Struct, field
from msgspec.structs import replace

from holdfast.core.membership import NodeLease
from holdfast.core.node_hooks import Effects, NodeFeature
from holdfast.core.node_io import (
    AllGone,
    CloseRound,
    ClosingAsked,
    CoordinatorLost,
    CoordinatorReached,
    Dial,
    EndpointReserved,
    EndSpawner,
    Finish,
    HangUp,
    KillEverything,
    KillSpawner,
    KillZygote,
    LauncherLost,
    LeaseRanOut,
    LeaveAsked,
    ListStuck,
    NodeEvent,
    NodeStarted,
    NodeTimerFired,
    ProcessesStuck,
    Released,
    Report,
    ReserveEndpoint,
    Say,
    SetDeadlines,
    SignalReceived,
    SignalWorkers,
    SpawnerEnded,
    SpawnerLost,
    SpawnerReady,
    StartWorkers,
    StepReported,
    StoreFailed,
    Told,
    WakeNode,
    WorkerExited,
    WorkerStarted,
)
from holdfast.core.policy import failures, root_cause, sentences, timing
from holdfast.core.policy.config import JobConfig
from holdfast.core.policy.signals import LastSignal, is_repeat
from holdfast.core.protocol import exit_status, messages
from holdfast.core.protocol.bounds import NUMBER_MOST, TEXT_MOST, cut
from holdfast.core.protocol.messages import Condition, FrameGroup, ToNode
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
    Record,
    Term,
    signal_name,
)
from holdfast.core.protocol.naming import on_itself
from holdfast.core.protocol.settings import of_job

REDIAL_FIRST_S = 0.1
REDIAL_MAX_S = 2.0
UNANSWERED = timing.HANGS_UP_AT - 1.5
"""How many heartbeats ago the oldest without an answer was sent; half of one is for timers."""
DRAIN_MARGIN_S = 2.0
"""How much longer than the coordinator's patience a node waits to be released."""
WITHHOLD_S = 0.5
"""How much later than its worker an agent may get a signal: both are sent at once, but a busy
machine may not run them so."""

F = TypeVar("F", bound=NodeFeature)


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
"""Every move from one phase to another, and its cause. There are no others."""


class Timer(StrEnum):
    HEARTBEAT = "heartbeat"
    REDIAL = "redial"
    SEEK = "seek"
    UNFIT = "unfit"
    GRACE = "grace"
    UNKILLABLE = "unkillable"
    DRAIN = "drain"
    WITHHOLD = "withhold failures"


# State.


class KilledFor(Record, frozen=True):
    """Why this node ended a worker: its failure's message, and kind of cause."""

    reason: str
    kind: str
    ends_job: bool = False
    """Another round cannot help."""


class WorkerHere(Struct):
    """One worker of the round, as this node sees it."""

    rank: int
    pid: int | None = None
    status: ExitStatus | None = None
    step: int | None = None
    """The last step that it reported."""
    ended_early: bool = False
    """It exited with status 0 while its round still ran."""
    ended_at: float = 0.0
    location: FrameGroup | None = None
    """Its location when its round was to end, if asked for."""
    killed_for: KilledFor | None = None
    counts_as_done: bool = False
    """Ended by us, but past the end of its program: however it ends, it has succeeded."""
    was_asked: bool = False
    """Asked to save: a clean exit now means it left, not that it finished."""


class RoundHere(Struct):
    """The round that runs here, or the last that did; each round has one of its own."""

    assignment: Assignment
    instance: int
    """Of the job, when the round was announced."""
    workers: dict[int, WorkerHere]
    """By local rank; none once all processes are gone."""
    failures: dict[int, Failure] = field(default_factory=dict)
    reported_failure: bool = False
    withholds_failures: bool = False
    """A worker died of a signal that may be meant for the whole node: waiting shows."""
    stopped_by_us: bool = False
    lease_ended: bool = False
    """Healthy workers had to be stopped, because the lease was not renewed."""


class Contact(StrEnum):
    NONE = "none"
    DIALLING = "dialling"
    CONNECTED = "connected"


class NodeLink(Struct):
    """A node's link to its coordinator."""

    lease: NodeLease | None = None
    """None in a job of one node: no other node could take over."""
    contact: Contact = Contact.NONE
    hosting: bool = False
    """The coordinator runs in this very process."""
    term: Term = Term()
    """The highest term heard: messages under a lower one are ignored."""
    attempts: int = 0
    """Failed attempts to dial."""
    without_contact_since: float | None = None
    warned: str = ""
    """The last warning about settings that differ from the job's."""

    @property
    def connected(self) -> bool:
        return self.contact is Contact.CONNECTED

    @property
    def is_up(self) -> bool:
        return self.connected or self.hosting


class NodeLeaving(Struct):
    """A node's way out of the job: the request to leave, and its progress."""

    last_signal: LastSignal | None = None
    asked_by: str = ""
    """The requester, in a sentence about the node; empty if it was a signal."""
    draining_by: int | None = None
    """The signal, while the node waits to be released from its round."""
    save_until: float = 0.0
    """How long it can wait for workers to save."""
    let_out: bool = False
    """The coordinator has ended the round for it."""
    signal: int | None = None
    """The signal that was passed on to the workers: the node waits for no other node any more."""
    job_continues: bool = False
    """Other nodes stay when it goes."""


class Killing(Struct):
    """The wait for everything that was sent SIGKILL to be gone."""

    unanswered: int = 0
    """How often that wait has run out."""


class StartMode(Record, frozen=True):
    """How workers are started: from a zygote or cold."""

    warm: bool = False
    has_torch: bool = False
    """The zygote has PyTorch, and can serve its store."""


class NodeState(Struct):
    """Everything that a node remembers (`core.features.of_node.new_node` makes one)."""

    config: JobConfig
    node: str
    host: str
    name: str = ""
    """The node's name: its host, unless another node of the job is there too."""
    features: tuple[NodeFeature, ...] = ()
    owners: dict[type[Record] | str, NodeFeature] = field(default_factory=dict)
    """The feature that handles each event, message or timer."""
    phase: Phase = Phase.PREPARING
    link: NodeLink = field(default_factory=NodeLink)
    round: RoundHere | None = None
    leaving: NodeLeaving = field(default_factory=NodeLeaving)
    start_mode: StartMode | None = None
    """None until known: a zygote may still be prepared."""
    endpoint: Endpoint | None = None
    store_failed: bool = False
    foreign: bool = False
    """The caller runs the workers itself."""
    unfit: str = ""
    """Why it takes no part; empty if it does."""
    furthest_step: int | None = None
    killing: Killing | None = None
    given_up: bool = False
    """Killed processes are not gone, and the node leaves without them."""
    closing: Outcome | None = None
    """No further round is wanted, and how the job ends unless the present one succeeds."""
    outcome: Outcome | None = None

    def __post_init__(self) -> None:
        self.name = self.name or self.host
        if self.config.max_nodes > 1 and self.link.lease is None:
            self.link.lease = NodeLease(self.config.leases)
        self.owners = {kind: each for each in self.features for kind in each.TAKES}

    @property
    def last_round(self) -> int:
        return 0 if self.round is None else self.round.assignment.round

    @property
    def workers(self) -> dict[int, WorkerHere]:
        """The workers of the last round, by local rank, until all their processes are gone."""
        return {} if self.round is None else self.round.workers

    @property
    def assignment(self) -> Assignment | None:
        return None if self.round is None else self.round.assignment

    def feature(self, kind: type[F]) -> F:
        return next(each for each in self.features if isinstance(each, kind))


def alive(state: NodeState) -> tuple[int, ...]:
    """Local ranks that have not exited, started or about to be."""
    return tuple(rank for rank, worker in state.workers.items() if worker.status is None)


def unstarted(state: NodeState) -> tuple[int, ...]:
    """Local ranks that were asked for and have no process yet."""
    return tuple(rank for rank in alive(state) if state.workers[rank].pid is None)


def running_round(state: NodeState, number: int) -> RoundHere | None:
    """The round of that number, if it runs here now."""
    is_running = state.phase is Phase.RUNNING and number == state.last_round
    return state.round if is_running else None


def has_succeeded(state: NodeState) -> bool:
    """Whether all workers of a running round have exited well, because they were done."""
    return _all_exited_well(state) and not any(one.was_asked for one in state.workers.values())


def has_left(state: NodeState) -> bool:
    """Whether all workers of a running round have exited well, but only to let a node leave."""
    return _all_exited_well(state) and bool(state.workers) and not has_succeeded(state)


def _all_exited_well(state: NodeState) -> bool:
    is_over = state.phase is Phase.RUNNING and state.round is not None and not alive(state)
    return is_over and state.round is not None and not state.round.failures


def worker_of(state: NodeState, round: int, local_rank: int) -> WorkerHere | None:
    here = state.round
    return here.workers.get(local_rank) if here and here.assignment.round == round else None


# Steps.


def step(state: NodeState, event: NodeEvent, now: float) -> Effects:
    """Advance by one event."""
    if state.phase is Phase.FINISHED:
        return []
    before = state.phase
    effects = _take(state, event, now)
    moved = state.phase is not before
    assert not moved or (before, state.phase) in MOVES, f"{before} → {state.phase} is no move"
    return effects


def _take(state: NodeState, event: NodeEvent, now: float) -> Effects:
    match event:
        case Told():
            if not accept_term(state, event.term):
                return []
            return _told(state, event.message, now)
        case NodeTimerFired():
            return _timer(state, event, now)
        case WorkerStarted():
            return _worker_started(state, event)
        case WorkerExited():
            return _worker_exited(state, event, now)
        case StepReported():
            return _step_reported(state, event)
        case AllGone():
            return _all_gone(state, event)
        case SignalReceived():
            return signalled(state, event.signal, now)
        case LeaveAsked():
            return leave_asked(state, event.by, now)
        case ClosingAsked():
            return closing_asked(state, event.outcome)
        case Released():
            return released(state)
        case CoordinatorReached():
            return reached(state, event.hosting, now)
        case CoordinatorLost():
            return lost(state, event.reason, event.permanent, now)
        case LeaseRanOut():
            return _lease_ran_out(state)
        case LauncherLost():
            return launcher_lost(state)
        case SpawnerLost():
            return spawner_lost(state, event.reason, event.left)
        case SpawnerEnded():
            return finish(state)
        case ProcessesStuck():
            return give_up(state, event.processes, event.forbidden)
        case _:
            owner = state.owners.get(type(event))
            return owner.take(state, event, now) if owner else _prepare(state, event)


def _told(state: NodeState, message: ToNode, now: float) -> Effects:
    match message:
        case messages.HeartbeatAnswered():
            return heartbeat_answered(state, message)
        case messages.RunRound():
            return _run(state, message, now)
        case messages.StopRound():
            return _stop_round(state, message)
        case messages.CloseJob():
            told = [one for each in state.features for one in each.job_closed(state)]
            return [*close(state, message.outcome), *told]
        case messages.Welcomed():
            return welcomed(state, message)
        case messages.StandBy():
            state.leaving.job_continues = True  # Without this node, so far.
            return [Say(message.reason)]
        case _:
            owner = state.owners.get(type(message))
            return owner.take(state, message, now) if owner else []


def _timer(state: NodeState, event: NodeTimerFired, now: float) -> Effects:
    owner = state.owners.get(event.name)
    if owner is not None:
        return owner.take(state, event, now)
    link, phase = state.link, state.phase
    match event.name:
        case Timer.HEARTBEAT:
            return heartbeat_due(state, now)
        case Timer.REDIAL:
            return [] if link.connected or phase is Phase.CLOSING else dial(state)
        case Timer.SEEK if link.contact is Contact.DIALLING:
            return lost(state, "no node is the coordinator yet", False, now)
        case Timer.UNFIT if phase is Phase.PREPARING:
            return leave_unfit(state)
        case Timer.DRAIN if state.leaving.draining_by is not None and phase is Phase.RUNNING:
            return leave(state, state.leaving.draining_by)
        case Timer.WITHHOLD:
            return _withheld_long_enough(state)
        # Only killed workers are waited for, and foreign workers are not killed.
        case Timer.GRACE if not state.foreign:
            return _grace_over(state)
        case Timer.UNKILLABLE if state.killing is not None and not state.foreign:
            return _not_gone(state, state.killing)
    return []


# Getting ready: a node joins, or reports the end of its old round, only when it holds an endpoint
# for the next master and knows how its workers will start.


def _prepare(state: NodeState, event: NodeEvent) -> Effects:
    effects: Effects = []
    if state.phase is Phase.CLOSING:
        return []
    match event:
        case NodeStarted():
            effects += _started(state, event)
        case SpawnerReady(subreaper=False):
            effects.append(Say(sentences.NO_SUBREAPER))
        case EndpointReserved():
            state.endpoint = event.endpoint
        case StoreFailed():
            # A round that uses it fails on its own; in the next one rank 0 serves the store.
            state.store_failed = True
            failed = f"the process that serves the store {event.reason}"
            effects.append(Say(f"{failed}; rank 0 will serve the next one"))
    return effects + ready(state)


def _started(state: NodeState, event: NodeStarted) -> Effects:
    state.foreign, state.unfit = event.foreign, event.unfit
    if event.unfit:
        wait = WakeNode(Timer.UNFIT, state.config.timeouts.seek_s)
        return [Say(f"this node stays out: {event.unfit}"), *dial(state), wait]
    return dial(state) + [one for each in state.features for one in each.started(state, event)]


def ready_to_start(state: NodeState, mode: StartMode) -> Effects:
    """The way in which workers start is known: nothing else is needed from its preparation."""
    state.start_mode = mode
    return [*reserve(state), *ready(state)]


def zygote_lost(state: NodeState) -> Effects:
    """Workers that it has not forked start cold; a round that is being stopped goes without."""
    state.start_mode = StartMode()
    missing = unstarted(state)
    if not missing or state.round is None:
        return []
    if state.phase is Phase.RUNNING:
        return [StartWorkers(state.round.assignment, missing, warm=False)]
    for local_rank in missing:
        del state.round.workers[local_rank]
    return [] if alive(state) else kill(state)


def reserve(state: NodeState) -> Effects:
    """Ask for the next round's endpoint; with a store where PyTorch is loaded already."""
    config, mode = state.config, state.start_mode
    is_ours = config.master_port is None and not config.worker_store and not state.store_failed
    return [ReserveEndpoint(mode is not None and mode.warm and mode.has_torch and is_ours)]


def ready(state: NodeState) -> Effects:
    """Join, or report the end of the old round, once everything is ready."""
    waits = any(each.delays_joining(state) for each in state.features)
    if state.endpoint is None or state.start_mode is None or waits:
        return []
    round = state.round
    if state.phase is Phase.PREPARING:
        state.phase = Phase.WAITING
        return [Report(messages.NodeJoined(node_info(state), state.endpoint))]
    if state.phase is Phase.STOPPING and round is not None and not round.workers:
        state.phase = Phase.WAITING
        known = (
            round.assignment.round,
            failures.in_brief(round.failures, state.config, round.assignment),
            state.endpoint,
        )
        return [Report(messages.RoundStopped(*known, lease_ended=round.lease_ended))]
    return []


# The link to the coordinator. A node obeys only the highest term it has heard of. Its lease counts
# from when it sent the last heartbeat that was answered; the spawner keeps the deadline, so that it
# holds whether or not the agent is awake. A broken link, or one without answers, is
# dialled again, soon at first and then less often, while workers go on as long as the lease lasts.
# Every dial ends: by reaching a coordinator, by a loss, or when it has taken too long; and without
# contact for `join_timeout` the node gives up. On every new connection it reports its whole state.


def accept_term(state: NodeState, term: Term) -> bool:
    """Whether a message under this term counts. A higher one than ever before is remembered."""
    if term < state.link.term:
        return False
    state.link.term = term
    return True


def reached(state: NodeState, hosting: bool, now: float) -> Effects:
    """Greet, and begin to renew the lease."""
    link, number = state.link, 0
    effects: Effects = []
    link.contact, link.hosting = Contact.CONNECTED, hosting
    if link.attempts and link.lease is not None and not hosting:
        effects.append(Say("reached the coordinator"))
    link.without_contact_since, link.attempts = None, 0
    if link.lease is not None:
        link.lease.forget()  # Heartbeats of another connection get no answer any more.
        number = link.lease.heartbeat(now)
    effects.append(Report(greeting(state, now, number)))
    if number:
        effects.append(WakeNode(Timer.HEARTBEAT, state.config.leases.heartbeat_s))
    effects += [one for each in state.features for one in each.connected(state)]
    return [*effects, *leave_unfit(state)] if state.unfit else effects


def lost(state: NodeState, reason: str, permanent: bool, now: float) -> Effects:
    """Dial again in a moment, or give up."""
    link, draining_by = state.link, state.leaving.draining_by
    if link.contact is Contact.NONE:
        return []  # The loss is known already, or the link was never wanted.
    link.contact = Contact.NONE
    if state.phase in (Phase.CLOSING, Phase.FINISHED):
        return []
    in_vain = state.phase is Phase.RUNNING and (permanent or may_leave_now(state))
    if draining_by is not None and in_vain:
        return leave(state, draining_by)  # No coordinator is there to release the node.
    if link.without_contact_since is None:
        link.without_contact_since = now
    limit_s = state.config.timeouts.join_s
    without_s = now - link.without_contact_since
    if state.unfit and permanent:
        return leave_unfit(state)
    if permanent or without_s >= limit_s:
        tried = "" if permanent else f" for {limit_s:g} s (--join-timeout)"
        why = f"no coordinator could be reached{tried}: {reason}"
        return close(state, Outcome("not_formed", why, exit_status.NOT_FORMED))
    said: Effects = []
    if link.attempts == 0 and not state.unfit:
        has_job, is_done = link.term.instance > 0, has_succeeded(state)
        told_s = None if state.phase is Phase.RUNNING else limit_s
        said.append(Say(sentences.no_contact(reason, is_done, has_job, told_s)))
    delay_s = min(_redial_delay(state), limit_s - without_s)
    link.attempts += 1
    return [*said, WakeNode(Timer.REDIAL, delay_s)]


def _redial_delay(state: NodeState) -> float:
    """Spread by a hash, since the core draws no random numbers: a thousand nodes that lost the same
    coordinator do not come back at once."""
    attempts = state.link.attempts
    longest_s = min(REDIAL_FIRST_S * 2.0 ** min(attempts, 10), REDIAL_MAX_S)
    spread = zlib.crc32(f"{state.node}/{attempts}".encode()) / 2**32
    return longest_s * (0.5 + 0.5 * spread)


def dial(state: NodeState) -> Effects:
    """Search for the coordinator, for a while: none may answer."""
    state.link.contact = Contact.DIALLING
    if state.config.max_nodes == 1:
        return [Dial()]
    return [Dial(), WakeNode(Timer.SEEK, state.config.timeouts.seek_s)]


def send_heartbeat(state: NodeState, now: float) -> Effects:
    if state.link.lease is None:
        return []
    number = state.link.lease.heartbeat(now)
    again = WakeNode(Timer.HEARTBEAT, state.config.leases.heartbeat_s)
    return [Report(messages.Heartbeat(number)), again]


def heartbeat_due(state: NodeState, now: float) -> Effects:
    """Send the next heartbeat; hang up if none has been answered for too long."""
    lease = state.link.lease
    if not state.link.connected or lease is None:
        return []
    oldest = min(lease.sent.values(), default=now)
    if now - oldest < UNANSWERED * state.config.leases.heartbeat_s:
        return send_heartbeat(state, now)
    lease.forget()
    return [HangUp(), *lost(state, "it has stopped answering", False, now)]


def heartbeat_answered(state: NodeState, message: messages.HeartbeatAnswered) -> Effects:
    """The lease is renewed: the spawner keeps the new deadline, if there is anything to stop.

    While the round runs there is, even where all workers have succeeded: its store may be here.
    """
    lease = state.link.lease
    if lease is None or not lease.answered(message.number):
        return []
    return set_deadlines(state) if state.phase is Phase.RUNNING or alive(state) else []


def set_deadlines(state: NodeState) -> Effects:
    lease = state.link.lease
    return [] if lease is None else [SetDeadlines(lease.stop_at, lease.kill_at)]


def welcomed(state: NodeState, message: messages.Welcomed) -> Effects:
    link = state.link
    said: Effects = []
    state.name = message.name or state.name
    if message.warning and message.warning != link.warned:
        link.warned = message.warning
        said.append(Say(message.warning))
    if message.waiting and link.lease is not None and not link.hosting:
        said.append(Say(message.waiting))
    return said


def node_info(state: NodeState) -> NodeInfo:
    return NodeInfo(
        node=state.node,
        host=state.host,
        slots=state.config.slots,
        role=state.config.role,
        rank_hint=state.config.node_rank,
        topology=state.config.topology_key,
        name=state.name if state.link.term.instance else "",
    )


def greeting(state: NodeState, now: float, heartbeat: int = 0) -> messages.NodeGreeted:
    leaving, round = state.leaving, state.round
    draining, within_s = "", 0.0
    if leaving.draining_by is not None:
        within_s = max(0.0, leaving.save_until - now)
        sent = f"{signal_name(leaving.draining_by)} was sent to its agent"
        draining = cut(leaving.asked_by) or sent
    restarts = 0 if round is None else round.assignment.restart_count
    greeting = messages.NodeGreeted(
        node_info(state),
        seen=messages.Seen(state.link.term, state.last_round, restarts),
        report=None if round is None else _round_report(state, round, now),
        endpoint=state.endpoint if state.phase is Phase.WAITING else None,
        draining=draining,
        within_s=within_s,
        heartbeat=heartbeat,
        closing=state.closing,
        settings={} if state.link.lease is None else of_job(state.config),
    )
    for each in state.features:
        greeting = replace(greeting, **each.in_greeting(state))
    return greeting


def _round_report(state: NodeState, round: RoundHere, now: float) -> messages.RoundReport:
    condition: Condition
    if state.phase is Phase.RUNNING:
        condition = "succeeded" if has_succeeded(state) else "running"
        condition = "left" if has_left(state) else condition
        condition = "failed" if round.failures else condition
    else:
        condition = "stopped" if state.phase is Phase.WAITING else "stopping"
    report = messages.RoundReport(
        round=round.assignment.round,
        group_rank=round.assignment.group_rank,
        group_size=round.assignment.group_size,
        condition=condition,
        failures=failures.in_full(round.failures, state.config),
        instance=round.instance,
        lease_ended=round.lease_ended,
    )
    for each in state.features:
        report = replace(report, **each.in_report(state, now))
    return report


# A round.


def _run(state: NodeState, message: messages.RunRound, now: float) -> Effects:
    assignment, link = message.assignment, state.link
    if state.phase is not Phase.WAITING or assignment.round <= state.last_round:
        return []
    if link.lease is not None and not link.lease.good(now):
        # It would be unknown when our workers must have ended: not a member after all. The
        # heartbeat goes first, so that the next offer finds a lease.
        assert state.endpoint is not None, "a node without an endpoint was waiting"
        stopped = Report(messages.RoundStopped(assignment.round, (), state.endpoint, ran=False))
        return [*send_heartbeat(state, now), stopped]
    assert state.start_mode is not None, "a node that cannot start workers was waiting"
    workers = {ranks.local_rank: WorkerHere(ranks.rank) for ranks in assignment.workers}
    state.phase = Phase.RUNNING
    state.round = RoundHere(assignment, link.term.instance, workers)
    state.endpoint = None
    state.leaving.job_continues = False  # From now on it needs this node.
    effects = set_deadlines(state)
    if link.lease is not None:
        effects.append(Say(sentences.seat(assignment)))
    if message.note and not link.hosting:
        effects.append(Say(message.note))
    effects += [one for each in state.features for one in each.round_started(state)]
    return [*effects, StartWorkers(assignment, tuple(workers), warm=state.start_mode.warm)]


def _worker_started(state: NodeState, event: WorkerStarted) -> Effects:
    worker = worker_of(state, event.round, event.local_rank)
    if worker is None:
        return []
    worker.pid = event.pid
    if state.phase is Phase.RUNNING or worker.status is not None:
        return []
    # It was started in a round that is being stopped: it gets the same signals as the others.
    if state.killing is not None:
        return [KillEverything(state.last_round)]
    return [SignalWorkers(state.leaving.signal or signal.SIGTERM, (event.local_rank,))]


def _worker_exited(state: NodeState, event: WorkerExited, now: float) -> Effects:
    worker = worker_of(state, event.round, event.local_rank)
    if worker is None:
        return []
    if worker.counts_as_done:
        event = replace(event, status=ExitStatus(code=0))
    worker.pid, worker.status = event.pid, event.status
    worker.ended_early = event.status.succeeded and state.phase is Phase.RUNNING
    worker.ended_at = now
    effects = [] if event.status.succeeded else worker_failed(state, worker, event, now)
    if not alive(state):
        if state.phase is not Phase.RUNNING:
            return effects + kill(state)
        if has_succeeded(state):
            effects.append(Report(messages.WorkersSucceeded(event.round)))
    return effects + [one for each in state.features for one in each.worker_exited(state, worker)]


def _step_reported(state: NodeState, event: StepReported) -> Effects:
    worker = worker_of(state, event.round, event.local_rank)
    if worker is None:
        return []
    if not 0 <= event.step <= NUMBER_MOST:
        return []  # No rank has this step, and no message could be sent.
    worker.step = event.step
    if state.furthest_step is not None and event.step <= state.furthest_step:
        return []
    state.furthest_step = event.step
    return [Report(messages.WorkersProgressed(event.round, event.step, event.age_s))]


def _lease_ran_out(state: NodeState) -> Effects:
    """The spawner stops the workers already, and kills them at the end of the lease."""
    round = state.round
    if state.phase is not Phase.RUNNING or round is None:
        return []
    if state.leaving.draining_by is not None:
        return leave(state, state.leaving.draining_by)
    if not alive(state) and not round.failures:
        return []  # All have succeeded: finished work needs no lease.
    state.phase = Phase.STOPPING
    round.stopped_by_us = True
    round.lease_ended = not round.failures
    limit = f"--lease {state.config.leases.lease_s:g}"
    said = Say(f"the coordinator has not answered for too long ({limit}): stopping the workers")
    if not alive(state):
        return [said, *kill(state)]
    return [said, WakeNode(Timer.GRACE, state.config.leases.stop_reserve_s)]


def _stop_round(state: NodeState, message: messages.StopRound) -> Effects:
    leaving, link = state.leaving, state.link
    if message.round == state.last_round:
        _note_job_continues(state, message.goes_on)
    round = running_round(state, message.round)
    if round is None:
        return []
    if leaving.draining_by is not None:
        leaving.let_out = True
        return leave(state, leaving.draining_by)
    if state.closing is not None and has_succeeded(state):
        return depart(state)  # No further round will run here.
    state.phase = Phase.STOPPING
    stopped = [one for each in state.features for one in each.before_stop(state, message)]
    stopped = stopped or stop_workers(state, signal.SIGTERM)
    if link.lease is None or link.hosting:
        return stopped  # The coordinator runs here, too, and will have judged it in a moment.
    # Of those that failed, one may be stuck in the kernel, and still there.
    left = [local_rank for local_rank in alive(state) if local_rank not in round.failures]
    reason = on_itself(message.reason, message.about, state.name)
    said = sentences.round_ends(message.round, reason, len(left), bool(round.failures))
    return [Say(said), *stopped]


def _all_gone(state: NodeState, event: AllGone) -> Effects:
    """The answer comes once for each request, and may be about an earlier round."""
    if event.round != state.last_round:
        return []
    if state.phase is Phase.CLOSING:
        return [] if state.given_up else [EndSpawner()]
    if state.phase is not Phase.STOPPING or state.round is None:
        return []
    state.round.workers = {}
    state.killing = None
    return [CloseRound(), *reserve(state)]


# Workers that fail.


def worker_failed(state: NodeState, worker: WorkerHere, event: WorkerExited, now: float) -> Effects:
    """Record a failure; while the round runs, report it, unless the worker was asked to leave."""
    round, draining_by = state.round, state.leaving.draining_by
    assert round is not None, "a worker failed of no round"
    failure = round.failures[event.local_rank] = _failure(state, round, worker, event, now)
    number = failure.status.signal
    if state.phase is not Phase.RUNNING:
        return []
    if number is not None and number == draining_by:
        _excuse(round, number)
        return leave(state, number)
    if any(each.is_excused(state, failure) for each in state.features):
        _excuse(round, number)
        return []
    if round.reported_failure or round.withholds_failures:
        return []
    may_be_drain = draining_by is None and not failure.ended_for
    if number is not None and may_be_drain and asks_to_leave(state, number):
        round.withholds_failures = True
        return [WakeNode(Timer.WITHHOLD, WITHHOLD_S)]
    return _report_failures(state, round)


def _withheld_long_enough(state: NodeState) -> Effects:
    """The wait is over in which a signal to the whole node would have come here, too."""
    round = state.round
    if round is None or not round.withholds_failures:
        return []
    round.withholds_failures = False
    return _report_failures(state, round) if state.phase is Phase.RUNNING else []


def _report_failures(state: NodeState, round: RoundHere) -> Effects:
    round.reported_failure = True
    return [
        Report(
            messages.WorkersFailed(
                round.assignment.round,
                failures.in_brief(round.failures, state.config, round.assignment),
            )
        )
    ]


def _excuse(round: RoundHere, number: int | None) -> bool:
    """Mark workers that died of this signal as stopped; return whether there are any."""
    died = [rank for rank, one in round.failures.items() if one.status.signal == number]
    for rank in died:
        round.failures[rank] = replace(round.failures[rank], stopped_by_us=True)
    return bool(died)


def _failure(
    state: NodeState, round: RoundHere, worker: WorkerHere, event: WorkerExited, now: float
) -> Failure:
    killed_for, error = worker.killed_for, event.error
    if killed_for is not None:  # A worker that was ended because it took too long says nothing.
        error = ErrorDetail(message=killed_for.reason, non_retryable=killed_for.ends_job)
    early = [one for one in round.workers.values() if one.ended_early]
    location, in_collective = failures.in_words(worker.location)
    raised_s = failures.raised_s(event.error, event.wall_time)
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
        error=failures.within_bounds(error),
        stderr_tail=event.stderr_tail[-TEXT_MOST:],
        out_of_memory=cut(event.out_of_memory),
        stopped_by_us=round.stopped_by_us and not _failed_on_its_own(state, event),
        error_file=event.error_file,
        wall_time=event.wall_time,
        versions=cut(event.versions),
        ended_for="" if killed_for is None else killed_for.kind,
        ended_before=tuple(EarlyEnd(one.rank, one.step, state.name) for one in early)[
            : root_cause.EARLY_ENDS_TOLD
        ],
        location=location,
        in_collective=in_collective,
    )


def _failed_on_its_own(state: NodeState, event: WorkerExited) -> bool:
    """Whether a worker that we were stopping ended of something else than that.

    A worker that has left an exception had failed already: its peers may notice while it still
    ends, and it is stopped for their failure then.
    """
    if event.error.message or event.status.signal is None:
        return bool(event.error.message)
    ours = (signal.SIGTERM, signal.SIGKILL, state.leaving.signal)
    return event.status.signal not in ours or bool(event.out_of_memory)


# Being asked to leave.
#
# 1. A signal of `--drain-signals` is a drain: the node asks, once, to be released from its round.
#    If no worker can save, and the coordinator is out of reach or the job is this node's alone, it
#    leaves at once; so it does on any other signal, and on a second one (`core.policy.signals`).
#    Workers that listen may save for as long as there is time and the lease lasts.
# 2. Some schedulers send the signal to every process below the agent as well. A worker that dies of
#    it has not failed: its node was asked to leave. Such a round cannot go on, so the node leaves.
# 3. An operator may ask as well (`holdfast drain`). That is the drain of rule 1.
# 4. The two may come in any order. So the failure of a worker that died of such a signal is
#    withheld for a moment, with all later failures on this node (`worker_failed`).


def signalled(state: NodeState, number: int, now: float) -> Effects:
    leaving, round = state.leaving, state.round
    if is_repeat(number, now, leaving.last_signal):
        return []
    leaving.last_signal = LastSignal(number, now)
    if leaving.signal is not None or state.phase is Phase.CLOSING:
        if number == signal.SIGINT and state.killing is None:
            return [Say("interrupted again: killing the workers at once"), *kill(state)]
        return []
    asks = asks_to_leave(state, number)
    if asks and round is not None and round.withholds_failures and _excuse(round, number):
        round.withholds_failures = False
        leaving.draining_by = number
        return leave(state, number)
    if not (asks and _can_ask(state)):
        return leave(state, number)
    name = signal_name(number)
    return _ask_to_leave(state, number, (name, f"{name} was sent to its agent"), now)


def leave_asked(state: NodeState, by: str, now: float) -> Effects:
    """A request to leave, without a signal."""
    leaving = state.leaving
    is_leaving = leaving.draining_by is not None or leaving.signal is not None
    if is_leaving or state.phase is Phase.CLOSING:
        return []
    leaving.asked_by = f"{by} asked it to leave"
    if not _can_ask(state):
        return leave(state, signal.SIGTERM)
    words = (f"{by} asked this node to leave", leaving.asked_by)
    return _ask_to_leave(state, signal.SIGTERM, words, now)


def _ask_to_leave(state: NodeState, number: int, words: tuple[str, str], now: float) -> Effects:
    """Ask the coordinator to release the node from the round, now or once it can be reached."""
    what, reason = words
    times = state.config.timeouts
    state.leaving.draining_by, state.leaving.save_until = number, now + times.save_s
    save_s = 0.0 if may_leave_now(state) else times.save_s
    leaving = "this node leaves the job as soon as the job can do without it"
    if state.link.lease is None:
        leaving = "the workers save, and the job ends"
    said = Say(f"{what}: {leaving}")
    ask = Report(messages.NodeDraining(cut(reason), times.save_s))
    return [said, ask, wait_to_leave(state, save_s)]


def wait_to_leave(state: NodeState, save_s: float) -> WakeNode:
    """Leave unless released in this time."""
    patience_s = max(save_s, state.config.timeouts.drain_s) + DRAIN_MARGIN_S
    return WakeNode(Timer.DRAIN, patience_s)


def _can_ask(state: NodeState) -> bool:
    """Once, and where workers can save, or a coordinator can choose the time."""
    if state.leaving.draining_by is not None or state.phase is not Phase.RUNNING:
        return False
    return not may_leave_now(state) or (state.link.lease is not None and state.link.connected)


def may_leave_now(state: NodeState) -> bool:
    return all(each.may_leave_now(state) for each in state.features)


def asks_to_leave(state: NodeState, number: int) -> bool:
    """Whether this signal asks the node to leave."""
    return signal_name(number) in state.config.drain_signals


def _note_job_continues(state: NodeState, job_continues: bool) -> None:
    """Other nodes stay when this one goes, or all have to go. It may be on its way already.

    For a node that has not asked, it is about the leaving of another, and this node is one of
    those that stay: asked to leave a moment later, it cannot say that any node does.
    """
    leaving, outcome = state.leaving, state.outcome
    has_asked = leaving.draining_by is not None or leaving.signal is not None
    leaving.job_continues = job_continues and has_asked
    if outcome is not None and outcome.asked and leaving.signal is not None:
        state.outcome = replace(outcome, asked=_who_was_asked(state, leaving.signal))


def _who_was_asked(state: NodeState, number: int) -> Literal["", "node", "job"]:
    if not asks_to_leave(state, number):
        return ""
    return "node" if state.leaving.job_continues else "job"


def leave(state: NodeState, number: int, why: str = "") -> Effects:
    """Pass the signal on, give the workers their grace, and leave; `why` if there was no signal."""
    leaving = state.leaving
    leaving.signal = number
    why = why or leaving.asked_by
    sent = f"{signal_name(number)} was sent to"
    reason = f"{state.name}: {why}" if why else f"{sent} the agent on {state.name}"
    status = exit_status.BY_SIGNAL + number
    asked = _who_was_asked(state, number)
    state.outcome = Outcome("interrupted", reason, status, asked=asked)
    is_interrupt, grace_s = number == signal.SIGINT, state.config.timeouts.shutdown_s
    passed_on = sentences.passed_on(len(alive(state)), grace_s, is_interrupt)
    said: Effects = [Say(f"{reason}{passed_on}")]
    if is_interrupt and not why:
        said += _others_wait(state)
    already_stopping = state.phase is Phase.STOPPING
    state.phase = Phase.CLOSING
    if state.link.lease is not None and not leaving.let_out:
        said.append(Report(messages.NodeDraining(cut(why) or f"{sent} its agent", at_once=True)))
    if already_stopping and state.killing is not None:
        return [*said, EndSpawner()]
    return said + stop_workers(state, number)


def _others_wait(state: NodeState) -> Effects:
    """A user who ends one node of a job that needs all may believe to have ended the job."""
    others = state.round.assignment.group_size - 1 if state.round is not None else 0
    is_member = state.link.lease is not None and state.phase is Phase.RUNNING
    if not is_member or not 0 < others < state.config.min_nodes:
        return []
    return [Say(sentences.others_wait(others, state.config.timeouts.join_s))]


# Stopping.


def stop_workers(state: NodeState, with_signal: int) -> Effects:
    if state.round is not None:
        state.round.stopped_by_us = True
    running = alive(state)
    if not running:
        return kill(state)
    grace = WakeNode(Timer.GRACE, state.config.timeouts.shutdown_s)
    return [SignalWorkers(with_signal, running), grace]


def _grace_over(state: NodeState) -> Effects:
    running = alive(state)
    is_stopping = state.phase in (Phase.STOPPING, Phase.CLOSING)
    if not is_stopping or not running or state.killing is not None:
        return []
    ranks = [state.workers[local_rank].rank for local_rank in running]
    said = Say(sentences.not_stopped(ranks, state.config.timeouts.shutdown_s))
    # A zygote that has not forked all this time does not fork at all; a late fork would still be
    # waited for.
    is_warm = state.start_mode is not None and state.start_mode.warm
    hangs = state.phase is Phase.STOPPING and is_warm and bool(unstarted(state))
    return [said, *([KillZygote()] if hangs else []), *kill(state)]


def kill(state: NodeState) -> Effects:
    """The grace is over, or not needed: nothing below the spawner survives this."""
    if state.killing is not None:
        return []
    state.killing = Killing()
    is_closing = state.phase is Phase.CLOSING
    return [EndSpawner() if is_closing else KillEverything(state.last_round), _unkillable(state)]


def _unkillable(state: NodeState) -> WakeNode:
    return WakeNode(Timer.UNKILLABLE, state.config.timeouts.unkillable_s)


def _not_gone(state: NodeState, killing: Killing) -> Effects:
    """Ask for the remaining processes; kill a spawner that does not answer; then go on without."""
    killing.unanswered += 1
    if killing.unanswered == 1:
        return [ListStuck(), _unkillable(state)]
    if killing.unanswered == 2:
        return [Say(sentences.SPAWNER_SILENT), KillSpawner(), _unkillable(state)]
    return give_up(state, ("the spawner",))


def give_up(
    state: NodeState, processes: tuple[str, ...], forbidden: tuple[str, ...] = ()
) -> Effects:
    """Killed processes are still there: they execute nothing more, but keep their resources.

    Those that are `forbidden` to us may well go on.
    """
    if state.killing is None or state.given_up:
        return []
    said: Effects = [Say(each) for each in sentences.left_behind(processes, forbidden)]
    if state.phase is Phase.CLOSING:
        return [*said, *finish(state)]
    state.phase = Phase.CLOSING
    state.given_up = True
    named = ", ".join((*processes, *forbidden)) or "a process"
    reason = f"{named} on {state.name} cannot be killed, so what it holds cannot be reused"
    from holdfast.core.policy.kinds import FORBIDDEN, STUCK

    kind = FORBIDDEN if forbidden else STUCK
    failed = () if state.round is None else failures.in_full(state.round.failures, state.config)
    left = Report(messages.NodeLeft(cut(reason), failures=failed, kind=kind))
    if state.link.lease is None:
        return [*said, left]
    # The other nodes go on; no message will come of an end that is ours alone.
    found = Blame(kind, state.name, "certain", cut(reason))
    state.outcome = Outcome("failed", reason, 1, blame=found)
    return [*said, left, *finish(state)]


# Ending.


def close(state: NodeState, outcome: Outcome) -> Effects:
    if state.outcome is None:
        state.outcome = outcome
    if state.phase is Phase.CLOSING:
        return finish(state) if state.given_up else []
    state.phase = Phase.CLOSING
    return stop_workers(state, signal.SIGTERM) if alive(state) else kill(state)


def leave_unfit(state: NodeState) -> Effects:
    """The node failed its check: it leaves, and tells the coordinator, if it was reached.

    A job that can do without it goes on; otherwise the scheduler of this node should know.
    """
    reason = f"{state.name} stays out: {state.unfit}"
    elastic = state.config.min_nodes < state.config.max_nodes
    asked: Literal["", "node"] = "node" if elastic else ""
    return close(state, Outcome("failed", reason, exit_status.UNFIT, asked=asked))


def closing_asked(state: NodeState, outcome: Outcome) -> Effects:
    """Report it; repeat the report on every new connection until the job is over."""
    if state.closing is not None or state.phase is Phase.CLOSING:
        return []
    state.closing = replace(outcome, reason=cut(outcome.reason))
    return [Report(messages.ClosingWanted(state.closing))]


def released(state: NodeState) -> Effects:
    """Leave, and let the others go on; the host of the coordinator stays until all are done."""
    if state.phase is Phase.CLOSING:
        return []
    if not has_succeeded(state):
        return leave(state, signal.SIGINT, "it takes no further part")
    return [] if state.link.hosting else depart(state)


def depart(state: NodeState) -> Effects:
    """The node's part is done, whatever the state of the others."""
    state.outcome = Outcome("succeeded", f"all workers on {state.name} succeeded", 0)
    return finish(state)


def launcher_lost(state: NodeState) -> Effects:
    """No result is waited for any more: end without grace."""
    if state.outcome is None:
        state.outcome = Outcome("interrupted", "the process that launched the job is gone", 1)
    state.phase = Phase.CLOSING
    state.killing = None
    return kill(state)


def spawner_lost(state: NodeState, reason: str, left: tuple[str, ...] = ()) -> Effects:
    if state.outcome is None:
        text = f"the spawner on {state.name} {reason}; its workers were killed with it"
        if left:
            text += f", but {', '.join(left)} could not be ended"
        from holdfast.core.policy.kinds import SPAWNER_ENDED

        found = Blame(SPAWNER_ENDED, state.name, "certain", cut(text))
        state.outcome = Outcome("failed", text, 1, blame=found)
    return finish(state)


def finish(state: NodeState) -> Effects:
    """The last effect of every life. Every way to it sets an outcome."""
    assert state.outcome is not None, "an agent finished without an outcome"
    state.phase = Phase.FINISHED
    effects = [one for each in state.features for one in each.finishing(state)]
    with_signal = state.leaving.signal
    if with_signal is not None or (state.link.lease is not None and not state.given_up):
        kind = state.outcome.blame.kind if state.outcome.blame is not None else ""
        reason, unfit = cut(state.unfit or state.outcome.reason), bool(state.unfit)
        effects.append(
            Report(messages.NodeLeft(reason, signal=with_signal, kind=kind, unfit=unfit))
        )
    return [*effects, Finish(state.outcome)]


def broken_invariants(state: NodeState) -> Iterator[str]:
    """The broken invariants, in words. The simulator checks after every step."""
    phase, round = state.phase, state.round
    if phase is Phase.RUNNING and not state.workers:
        yield "a round runs without workers"
    if phase is Phase.WAITING and state.endpoint is None:
        yield "the node waits for a round, and holds no endpoint"
    if phase in (Phase.PREPARING, Phase.WAITING) and alive(state):
        yield f"workers run while the node is {phase}"
    if round is not None and round.workers and not round.failures.keys() <= round.workers.keys():
        yield "somebody failed who is no worker of the round"
    joined = phase in (Phase.WAITING, Phase.RUNNING, Phase.STOPPING)
    if joined and any(each.delays_joining(state) for each in state.features):
        yield "the node has joined, and something is waited for that has to come before"
