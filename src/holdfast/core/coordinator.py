"""The coordinator of a job: its nodes, the rounds of its workers, its ledger, its end.

Rules
1. `step` is the only way in: an event and the time go in, effects come out. There is no clock, no
   randomness and no I/O here; the same events give the same effects.
2. Round numbers only grow. A message that names an older round is ignored.
3. *Ending* a round is immediate: the first failure, loss or suspicion stops it everywhere.
   *Judging* it waits until every member is back or gone, because only then is it known whether a
   failure was the cause, or only followed from a machine that was lost (`core.rounds`).
4. Write before telling: the `Ledger` is written after the step that changed it, and a round or an
   outcome is announced only once its version is written.
5. A node that leaves, fails or is lost never closes the job; only success of all, a terminal
   failure, too few nodes for too long, or the end of a round after which none is wanted does.
   A job closes once. With that decided the job is over, which is a stage of its own: `step` takes
   only events about writing the outcome down and telling it to nodes.
6. The coordinator's own stalls extend the deadlines of the nodes.
7. After a takeover no round forms until every node of the last round has reported or must be
   gone.


Around the machine, in `Coordinator`
8. Heartbeats are many and decide nothing: the lease book notes them, and they are answered. Only
   decisions are steps, so a journal records decisions and can be replayed.
9. All readable input is handled before any node's silence is judged; the caller of `check_leases`
   ensures that.
10. The end of a connection is silence, not death. The orderly end of a tether is proof of death.
11. A greeting starts over: its answer tells the node all that it has to know.
12. A message that a node may not send (`core.objections`) is refused: it is no step.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

from msgspec import Struct, field
from msgspec.structs import replace

from holdfast.core import rounds, seating, takeover
from holdfast.core.coordinator_hooks import CoordinatorFeature
from holdfast.core.coordinator_io import (
    CoordinatorEffect,
    CoordinatorEvent,
    CoordinatorTimerFired,
    Depose,
    Disconnect,
    Explain,
    HandOverAsked,
    Heard,
    LoopDelayed,
    Raise,
    Refuse,
    Reinstate,
    Resign,
    Retire,
    Revoke,
    Tell,
    WakeCoordinator,
    Write,
    Written,
)
from holdfast.core.membership import (
    LeaseBook,
    Member,
    Membership,
    NodeGone,
    NodeHeardAgain,
    NodeSuspected,
)
from holdfast.core.objections import objection
from holdfast.core.policy import restarts, sentences
from holdfast.core.policy.config import JobConfig
from holdfast.core.protocol import settings
from holdfast.core.protocol.document import (
    SUCCESSORS,
    Document,
    Ledger,
    brief,
    fit_outcome,
)
from holdfast.core.protocol.messages import (
    CloseJob,
    ClosingWanted,
    FromNode,
    Heartbeat,
    HeartbeatAnswered,
    NodeDraining,
    NodeGreeted,
    NodeJoined,
    NodeLeft,
    RequestAnswered,
    RequestMade,
    RoundReport,
    RoundStopped,
    Seen,
    Welcomed,
    WorkersFailed,
    WorkersProgressed,
    WorkersSucceeded,
)
from holdfast.core.protocol.model import Endpoint, Outcome, Term
from holdfast.core.rounds import Group, flatten

TYPE_CHECKING = False  # As in `typing`, without its import.
if TYPE_CHECKING:
    from holdfast.core.election import Lead
    from holdfast.core.features.requests import RequestRouter

Effects = list[CoordinatorEffect]

FIRST_TERM = Term(1, 1)
DEADLINES_TIMER = "look"
LEASES_TIMER = "leases"
REQUESTS_TIMER = "requests"
EXPLAIN_AFTER_S = 1.0
"""An outcome that takes longer to be written down is explained."""
CHARGES_MOST = 10_000
"""The most failed rounds that a node may remember where only those of a window count."""
Deadline = Literal[
    "form",
    "room",
    "drain",
    "save",
    "stop",
    "stopping",
    "missing",
    "awaited",
    "departed",
    "quarantine",
    "unrecorded",
    "close",
]
"""The coordinator's timers."""


# State.

EndStage = Literal["unwritten", "told", "retired"]
"""*Unwritten*: the outcome may not be told yet. *Told*: nodes are told, and those that do not
answer are waited for. *Retired*: no node is waited for any more."""


class JobEnd(Struct):
    """The job is over."""

    outcome: Outcome
    unaware: set[str]
    """Nodes that may not have taken the outcome yet."""
    stage: EndStage = "unwritten"
    version: int = 0
    """The version of the ledger with which the outcome is told, once it is written."""
    explain_at: float | None = None
    explained: bool = False
    told_until: float | None = None
    member_lost: bool = False
    """Since then a member of the last round has gone that had not succeeded."""

    @property
    def is_told(self) -> bool:
        return self.stage != "unwritten"


class Succession(Struct):
    """The coordinator's node and its successors, in a job where any node can coordinate."""

    leader: str
    """The node that this coordinator runs on."""
    successors: tuple[str, ...] = ()
    addresses: dict[str, Endpoint] = field(default_factory=dict)
    """The addresses of the leader and its successors."""


class CoordinatorState(Membership, kw_only=True):
    """Everything the coordinator remembers."""

    config: JobConfig
    features: tuple[CoordinatorFeature, ...] = ()
    term: Term = FIRST_TERM
    succession: Succession | None = None
    """None where no other node can lead: what nodes remember of an earlier life is taken over."""
    began_at: float | None = None
    group: Group = field(default_factory=Group)
    end: JobEnd | None = None
    version: int = 0
    """The version of the ledger."""
    rewrite: bool = False
    """The ledger is to be written again: part of it has changed with time."""
    wake_at: float | None = None
    deadlines: dict[Deadline, float] = field(default_factory=dict)

    @property
    def next_version(self) -> int:
        """The version that this step is going to write."""
        return self.version + 1

    @property
    def embedded(self) -> bool:
        return self.succession is None

    @property
    def min_nodes(self) -> int:
        limits = self.group.limits
        return self.config.min_nodes if limits is None else limits.least

    @property
    def max_nodes(self) -> int:
        limits = self.group.limits
        return self.config.max_nodes if limits is None else limits.most

    @property
    def outcome(self) -> Outcome | None:
        return self.end.outcome if self.end is not None else None

    def update_ready(self, node: str) -> None:
        super().update_ready(node)
        current, member = self.group.round, self.members.get(node)
        if current is None:
            return
        if member is not None and member.suspected and node in current.seats:
            current.seats.suspected.add(node)
        else:
            current.seats.suspected.discard(node)

    def remove(self, node: str) -> Member | None:
        if self.end is not None:
            self.end.unaware.discard(node)
        return super().remove(node)

    def close(self, outcome: Outcome) -> None:
        """The job is over; it is told once it is written down."""
        assert self.end is None, "a job is closed twice"
        self.deadlines = {}
        told = outcome if self.config.max_nodes == 1 else fit_outcome(outcome)
        self.end = JobEnd(told, set(self.members), version=self.next_version)


def begin(
    config: JobConfig, *, term: Term = FIRST_TERM, succession: Succession | None = None
) -> CoordinatorState:
    """A coordinator without any earlier record."""
    from holdfast.core.features.of_coordinator import features_of

    features = features_of(config)
    return CoordinatorState(config=config, features=features, term=term, succession=succession)


def take_over(
    config: JobConfig, term: Term, written: Ledger, now: float, gone_after_s: float
) -> CoordinatorState:
    """A coordinator that goes on from the last one's ledger.

    `gone_after_s` is how long a node of the last round may still run without having been
    heard here.
    """
    state = begin(config, term=term)
    state.began_at, state.version = now, 1
    group = state.group
    group.round_number = written.round
    group.budget.history = [restarts.forgotten(now)] * written.charges
    group.closing, group.limits = written.closing, written.limits
    for feature in state.features:
        feature.took_over(state, written, now)
    if written.outcome is not None:
        state.end = JobEnd(written.outcome, set(), "told")
    elif written.size:
        takeover.inherit(state, written, now + gone_after_s)
        state.deadlines["awaited"] = now + takeover.EXPLAIN_AFTER_S
    return state


# One step.


def step(state: CoordinatorState, event: CoordinatorEvent, now: float) -> Effects:
    """Advance by one event."""
    if state.began_at is None:
        state.began_at = now
    before = _recorded(state)
    _extend(state, event, now)
    if isinstance(event, CoordinatorTimerFired):
        state.wake_at = None
    if state.end is None:
        effects = _advance(state, event, now)
    else:
        effects = _conclude(state, state.end, event, now)
    effects += _explain_unwritten(state, now)
    effects += _retire(state, now)
    if _has_changed(state, before):
        effects.append(_next_version(state, now))
    return effects + _wake(state, now)


def _advance(state: CoordinatorState, event: CoordinatorEvent, now: float) -> Effects:
    """Take the event, then whatever is due: until the end is decided."""
    effects = _take(state, event, now)
    # After every event, not only the timer's: `_wake` replaces a timer, even one that is due.
    for check in (
        takeover.check,
        _check_deadlines,
        _check_features,
        rounds.settle,
        rounds.advance,
        _name_successors,
    ):
        if state.end is None:
            effects += check(state, now)
    return effects


def _take(state: CoordinatorState, event: CoordinatorEvent, now: float) -> Effects:
    match event:
        case Heard():
            return _heard(state, event.node, event.message, now)
        case Written():
            return rounds.written(state, event.version, now)
        case NodeSuspected():
            return rounds.suspected(state, event.node, event.reason, now)
        case NodeHeardAgain():
            return _heard_again(state, event.node)
        case NodeGone():
            return rounds.gone(state, event.node, event.reason, now, ended=event.ended)
        case HandOverAsked():
            return _hand_over(state, now)
        case LoopDelayed() | CoordinatorTimerFired():
            return []  # A stall has moved the deadlines already.
        case _:
            mine = (one for one in state.features if isinstance(event, one.events))
            return flatten(feature.take(state, event, now) for feature in mine)


def _heard(state: CoordinatorState, node: str, message: FromNode, now: float) -> Effects:
    match message:
        case NodeGreeted():
            return _greeted(state, node, message, now)
        case NodeJoined():
            return _joined(state, node, message, now)
        case WorkersFailed():
            return rounds.failed(state, node, message, now)
        case WorkersSucceeded():
            return rounds.succeeded(state, node, message)
        case WorkersProgressed():
            return _progressed(state, node, message)
        case RoundStopped():
            return rounds.stopped(state, node, message, now)
        case NodeDraining():
            return rounds.draining(state, node, message, now)
        case NodeLeft():
            return rounds.left(state, node, message, now)
        case ClosingWanted():
            return rounds.closing_wanted(state, message.outcome)
        case Heartbeat():
            return []  # Leases are kept beside the coordinator.
        case _:
            mine = (one for one in state.features if isinstance(message, one.messages))
            return flatten(feature.heard(state, node, message, now) for feature in mine)


def _hand_over(state: CoordinatorState, now: float) -> Effects:
    """Have all decisions written and the term given up, so that no node waits for its end.

    An embedded coordinator can have no successor.
    """
    if state.embedded:
        return []
    return [_write(state, now), Resign("its node leaves", leaves=True)]


def _heard_again(state: CoordinatorState, node: str) -> Effects:
    if node in state.members:
        state.members[node].suspected = ""
        state.update_ready(node)
    return []


def _progressed(state: CoordinatorState, node: str, message: WorkersProgressed) -> Effects:
    current = state.group.told_round(message.round, node)
    if current is not None:
        current.furthest_step = max(message.step, current.furthest_step or 0)
    return []


# Deadlines.


def _check_deadlines(state: CoordinatorState, now: float) -> Effects:
    due = [what for what, at in state.deadlines.items() if at <= now]
    effects: Effects = []
    for what in due:
        del state.deadlines[what]
        if what == "missing":
            effects += takeover.give_up_missing(state, now)
        elif what == "stop":
            effects += rounds.revoke_unstopped(state, now)
        elif what == "stopping":
            effects += rounds.explain_stop(state)
        for feature in state.features:
            feature.due(state, what, now)
    return effects


def _check_features(state: CoordinatorState, now: float) -> Effects:
    return flatten(feature.check(state, now) for feature in state.features)


def _extend(state: CoordinatorState, event: CoordinatorEvent, now: float) -> None:
    """One stall may show twice, in a timer of our own and at the leases: it counts once."""
    late_s = 0.0 if state.wake_at is None else now - state.wake_at
    if late_s > state.config.leases.tether_s:
        state.wake_at = None
    else:
        late_s = 0.0
    if isinstance(event, LoopDelayed):
        late_s = max(late_s, event.late_s)
    if late_s:
        _delayed(state, late_s)


def _delayed(state: CoordinatorState, late_s: float) -> None:
    """This coordinator stalled: nodes could not report what they had to meanwhile."""
    current, wait = state.group.round, state.group.wait
    if current is not None and current.stop is not None:
        # By the stall alone: on a busy host the next one comes long before all patience is over.
        stop = current.stop
        stop.deadline = state.deadlines["stop"] = stop.deadline + late_s
    if current is not None and current.missing is not None:
        missing = current.missing
        missing.until = state.deadlines["missing"] = missing.until + late_s
    if wait.short_since is not None:
        wait.short_since += late_s


def _wake(state: CoordinatorState, now: float) -> Effects:
    """One timer, for whatever is due first."""
    due = [at for at in state.deadlines.values() if at > now]
    if not due or (state.wake_at is not None and state.wake_at == min(due)):
        return []
    state.wake_at = min(due)
    return [WakeCoordinator(DEADLINES_TIMER, state.wake_at - now)]


# Arrivals.


def _joined(state: CoordinatorState, node: str, message: NodeJoined, now: float) -> Effects:
    state.admit(message.info).endpoint = message.endpoint
    state.update_ready(node)
    return rounds.stand_by(state, node, now)


def _greeted(state: CoordinatorState, node: str, message: NodeGreeted, now: float) -> Effects:
    if _is_outranked(state, message.seen):
        return [Depose(message.seen.term)]
    effects = _remember(state, message, now)
    if state.end is not None:
        return [*effects, Tell(node, Welcomed()), *_tell_outcome(state.end, node)]
    member = state.admit(message.info)
    member.endpoint, member.suspected = message.endpoint, ""
    if message.report is not None:
        member.last_round = message.report.round
        member.last_rank = message.report.group_rank
    effects += _receive(state, member, message)
    for feature in state.features:
        feature.connected(state, node)
    effects += takeover.take_report(state, node, message.report, now)
    state.update_ready(node)
    if state.outcome is not None:
        return effects  # It was the last that had to succeed.
    if not member.round:
        effects += rounds.reinstate(state, node)
    effects += flatten(feature.greeted(state, message, now) for feature in state.features)
    if message.closing is not None:
        effects += rounds.closing_wanted(state, message.closing)
    if message.draining:
        drain = NodeDraining(message.draining, message.within_s)
        effects += rounds.draining(state, node, drain, now)
    state.update_ready(node)
    effects += rounds.stand_by(state, node, now)
    return effects + flatten(feature.after_greeting(state) for feature in state.features)


def _receive(state: CoordinatorState, member: Member, message: NodeGreeted) -> Effects:
    """Tell a node all that it has to know, and which of its settings differ from the job's."""
    differing = settings.differing(settings.of_job(state.config), message.settings)
    warning = settings.warn_node(differing)
    welcome = replace(_welcome(state), name=member.name, warning=warning)
    effects: Effects = [Tell(member.info.node, welcome)]
    if differing and member.arrival <= seating.CROWD and not member.warned:
        member.warned = True
        effects.append(Explain(settings.warn_coordinator(member.name, differing), member.name))
    return effects


def _is_outranked(state: CoordinatorState, seen: Seen) -> bool:
    """Another node leads, or led under this very term: this node was told what we do not know."""
    group = state.group
    more = seen.round > group.round_number or seen.charges > group.budget.charges
    same = seen.term == state.term and more
    return not state.embedded and (seen.term > state.term or same)


def _remember(state: CoordinatorState, message: NodeGreeted, now: float) -> Effects:
    """A node remembers more than this coordinator: the record was lost; its memory replaces it."""
    seen, report, group = message.seen, message.report, state.group
    charges = _possible_charges(state, seen.charges)
    more = seen.term > state.term
    more = more or seen.round > group.round_number or charges > group.budget.charges
    # A node that we never met has heard our term: it was another life of this coordinator.
    stranger = message.info.node not in state.members and not group.formed
    more = more or (stranger and state.embedded and seen.term == state.term)
    if seen.term.instance == 0 or not more:
        return []
    effects: Effects = []
    if seen.term >= state.term:
        state.term = Term(seen.term.instance, seen.term.epoch + 1)
        effects.append(Raise(state.term))
    group.round_number = max(group.round_number, seen.round)
    budget = group.budget
    if charges > budget.charges:
        # When they were is not known, so they count as fresh, as those of a register do.
        budget.history = [restarts.forgotten(now)] * (charges - budget.charges) + budget.history
    if group.formed == 0 and group.round is None:
        _await_the_round_of(state, report, now)
    return effects


def _possible_charges(state: CoordinatorState, charges: int) -> int:
    """The most failures that a job that goes on can have been charged."""
    policy = state.config.restarts
    return min(charges, CHARGES_MOST if policy.window_s is not None else policy.max_restarts)


def _await_the_round_of(state: CoordinatorState, report: RoundReport | None, now: float) -> None:
    """An earlier life of this coordinator formed rounds: nothing forms while one may run."""
    assert state.began_at is not None, "a node has greeted, so the first event has come"
    until = state.began_at + state.config.leases.gone_after_s
    state.group.wait.not_before = max(state.group.wait.not_before, until)
    is_possible = report is not None and report.group_size <= state.max_nodes
    if report is not None and is_possible and until > now:
        of = Ledger(report.round, report.group_size, instance=report.instance)
        takeover.inherit(state, of, until)


# Successors.


def _name_successors(state: CoordinatorState, now: float) -> Effects:
    """Name the nodes that have been there longest as successors, and tell them."""
    follows = state.succession
    if follows is None:
        return []
    known = [name for name in follows.successors if name in state.members]
    if len(known) < SUCCESSORS and len(state.members) > len(known):
        others = (name for name in state.members if name not in known and name != follows.leader)
        known += list(others)[: SUCCESSORS - len(known)]
    members = {name: state.members.get(name) for name in (follows.leader, *known)}
    addresses = {
        name: member.info.address
        for name, member in members.items()
        if member is not None and member.info.address is not None
    }
    if tuple(known) == follows.successors and addresses == follows.addresses:
        return []
    follows.successors, follows.addresses = tuple(known), addresses
    return [Tell(name, _welcome(state, waiting="")) for name in known]


def _welcome(state: CoordinatorState, waiting: str | None = None) -> Welcomed:
    follows, current = state.succession, state.group.round
    if waiting is None:
        waits = current is None or current.missing is not None
        waiting = state.group.wait.reason if waits else ""
    if follows is None:
        return Welcomed(waiting=waiting)
    return Welcomed(follows.successors, waiting, follows.leader, follows.addresses)


# The ledger.


def ledger(state: CoordinatorState, now: float) -> Ledger:
    """The ledger as it is now."""
    group, current = state.group, state.group.round
    ends = state.outcome is not None or group.closing is not None
    of_job = Ledger(
        round=group.round_number,
        charges=group.budget.charges,
        outcome=brief(state.outcome),
        closing=group.closing,
        hosts=() if ends else state.kept_hosts(now),
        limits=group.limits,
    )
    if current is None:
        return of_job
    return replace(
        of_job,
        size=len(current.seats),
        leader_seat=_leader_seat(state),
        # Needed only where another node may take over.
        roll=0 if state.embedded else current.seats.roll(),
        instance=current.instance,
        held=current.missing is not None and current.missing.held,
        done=tuple(sorted(current.done)),
        restart=current.restart,
    )


def _leader_seat(state: CoordinatorState) -> int | None:
    """This node's seat, so that a successor that finds it dead knows which member died."""
    current, follows = state.group.round, state.succession
    if current is None or follows is None or follows.leader not in current.seats:
        return None
    return current.seats.by_node[follows.leader].rank


class Recorded(NamedTuple):
    """All inputs of the ledger and the succession, to see whether a step has changed them.

    Cheap, since every step asks twice. Mere passing of time is no change, and neither is the end of
    a round: the next one is written down, and until then the last one stays.
    """

    job: tuple[object, ...]
    round: int
    of_round: tuple[object, ...]


def _recorded(state: CoordinatorState) -> Recorded:
    group, follows, current = state.group, state.succession, state.group.round
    successors = follows and (follows.successors, follows.addresses, _leader_seat(state))
    known = (group.round_number, group.budget.charges, group.closing, group.limits)
    job = (*known, state.outcome, successors)
    if current is None:
        return Recorded(job, 0, ())
    held = current.missing is not None and current.missing.held
    return Recorded(job, current.number, (frozenset(current.done), current.restart, held))


def _has_changed(state: CoordinatorState, before: Recorded) -> bool:
    after, wanted = _recorded(state), state.rewrite
    state.rewrite = False
    of_round = before.round == after.round and before.of_round != after.of_round
    return wanted or before.job != after.job or of_round


def _next_version(state: CoordinatorState, now: float) -> Write:
    """Have a step's changes written down."""
    state.version = state.next_version
    return _write(state, now)


def _write(state: CoordinatorState, now: float) -> Write:
    """Have all decisions written down."""
    follows = state.succession
    if follows is None:
        return Write(state.version, ledger(state, now))
    return Write(state.version, ledger(state, now), follows.successors, follows.addresses)


# The end.


def _conclude(state: CoordinatorState, end: JobEnd, event: CoordinatorEvent, now: float) -> Effects:
    """The job is over: the state of the round, and later failures in it, no longer matter."""
    match event:
        case Heard(node=node, message=NodeGreeted() as message):
            return _greeted(state, node, message, now)
        case Heard(node=node, message=NodeJoined()):
            return _tell_outcome(end, node)
        case Heard(node=node, message=NodeLeft()):
            _depart(state, end, node)
        case NodeGone(node=node):
            return [Disconnect(node)] if _depart(state, end, node) else []
        case Written(version=version):
            return _outcome_written(end, version)
    return []


def _depart(state: CoordinatorState, end: JobEnd, node: str) -> bool:
    """Remove a node that is gone or has left; return whether it was there."""
    current = state.group.round
    if current is not None and node in current.seats:
        end.member_lost |= not current.seats.has_succeeded(node)
    return state.remove(node) is not None


def _outcome_written(end: JobEnd, version: int) -> Effects:
    if end.is_told or version < end.version:
        return []
    end.stage = "told"
    return [Tell(name, CloseJob(end.outcome)) for name in sorted(end.unaware)]


def _tell_outcome(end: JobEnd, node: str) -> Effects:
    end.unaware.add(node)
    return [Tell(node, CloseJob(end.outcome))] if end.is_told else []


def _explain_unwritten(state: CoordinatorState, now: float) -> Effects:
    """Explain the wait: the end is decided but not written down, which looks like a hang."""
    end = state.end
    if state.embedded or end is None or end.is_told:
        return []
    if end.explain_at is None:
        end.explain_at = state.deadlines["unrecorded"] = now + EXPLAIN_AFTER_S
    if end.explained or now < end.explain_at:
        return []
    end.explained = True
    failure = "" if end.outcome.verdict == "succeeded" else end.outcome.reason
    return [Explain(sentences.end_unwritten(failure), topic="waiting")]


def _retire(state: CoordinatorState, now: float) -> Effects:
    end = state.end
    if end is None or end.stage != "told":
        return []
    if end.told_until is None:
        end.told_until = now + state.config.timeouts.close_s
        state.deadlines = {"close": end.told_until}
    if end.unaware and now < end.told_until:
        return []
    end.stage = "retired"
    return [Retire()]


def is_owed(state: CoordinatorState) -> bool:
    """Whether any node may still have to learn the outcome from this coordinator."""
    end = state.end
    if end is None or end.stage == "retired":
        return False
    return state.embedded or end.is_told


# Input from connections.


class Taken(Struct, frozen=True):
    """One step that the coordinator took: what a journal records."""

    event: CoordinatorEvent
    effects: Effects


class Coordinator(Struct):
    """The coordinator and its lease book."""

    state: CoordinatorState
    leases: LeaseBook
    requests: RequestRouter
    greeted: set[str] = field(default_factory=set)
    """Nodes that have greeted on their present connection."""
    check_at: float | None = None
    noticed: float | None = None
    """The check that was found overdue: the coordinator has been told once."""
    taken: list[Taken] = field(default_factory=list)
    """Steps since the caller last emptied this."""


def coordinator_of(state: CoordinatorState, own_node: str = "") -> Coordinator:
    """`own_node` is the node that the coordinator runs on."""
    from holdfast.core.features.requests import RequestRouter

    return Coordinator(state, LeaseBook(state.config.leases), RequestRouter(own_node))


def receive(coordinator: Coordinator, node: str, message: FromNode, now: float) -> Effects:
    """A message from a node."""
    effects, state = _notice_stall(coordinator, now), coordinator.state
    wrong = objection(state, node, message, node in coordinator.greeted)
    if wrong is not None:
        return [*effects, Refuse(node, wrong.kind, wrong.reason)]
    if isinstance(message, Heartbeat):
        return effects + _heartbeat(coordinator, node, message, now)
    if isinstance(message, NodeGreeted):
        coordinator.greeted.add(node)
    if isinstance(message, RequestMade | RequestAnswered):
        here, requests = coordinator.greeted, coordinator.requests
        effects += requests.heard(state, node, message, here, now)
        is_new = isinstance(message, RequestMade)
        return effects + (_check_requests(requests, now) if is_new else [])
    if isinstance(message, NodeGreeted) and state.config.max_nodes > 1:
        coordinator.leases.connected(node, now)
        effects += _heartbeat(coordinator, node, Heartbeat(message.heartbeat), now)
    if isinstance(message, NodeLeft):
        coordinator.greeted.discard(node)
        coordinator.leases.forget(node)
        effects += coordinator.requests.gone(state, node)
    return effects + run_step(coordinator, Heard(node, message), now)


def _heartbeat(coordinator: Coordinator, node: str, message: Heartbeat, now: float) -> Effects:
    if not coordinator.leases.heartbeat(node, now):
        return []
    effects: Effects = [Tell(node, HeartbeatAnswered(message.number))]
    for verdict in coordinator.leases.back(node):
        effects += run_step(coordinator, verdict, now)
    return effects


def check_requests(coordinator: Coordinator, now: float) -> Effects:
    """The timer of the requests has fired."""
    effects = coordinator.requests.expire(coordinator.state, now)
    return effects + _check_requests(coordinator.requests, now)


def _check_requests(requests: RequestRouter, now: float) -> Effects:
    due = requests.next_check()
    return [] if due is None else [WakeCoordinator(REQUESTS_TIMER, max(0.0, due - now))]


def disconnected(coordinator: Coordinator, node: str, now: float) -> Effects:
    """A node's connection ended, for any reason."""
    coordinator.greeted.discard(node)
    coordinator.leases.disconnected(node, now)
    lost = coordinator.requests.gone(coordinator.state, node)
    return lost + _check_again(coordinator, now)


def tether_ended(coordinator: Coordinator, node: str, clean: bool, now: float) -> Effects:
    """A node's tether ended; `clean` when in order, not by a reset or a time-out."""
    if clean:
        coordinator.leases.tether_ended(node, now)
    return _check_again(coordinator, now)


def check_leases(coordinator: Coordinator, now: float) -> Effects:
    """The timer of the leases has fired, and all readable input has been handled."""
    due_at = now if coordinator.check_at is None else coordinator.check_at
    coordinator.check_at = None
    effects: Effects = []
    for verdict in coordinator.leases.check(now, due_at):
        effects += run_step(coordinator, verdict, now)
    return effects + _check_again(coordinator, now)


def run_step(coordinator: Coordinator, event: CoordinatorEvent, now: float) -> Effects:
    """Have the coordinator take a step."""
    effects = _notice_stall(coordinator, now) + _step(coordinator, event, now)
    return effects + _check_again(coordinator, now)


def _step(coordinator: Coordinator, event: CoordinatorEvent, now: float) -> Effects:
    effects = step(coordinator.state, event, now)
    coordinator.taken.append(Taken(event, effects))
    for effect in effects:
        if isinstance(effect, Revoke):
            coordinator.leases.revoke(effect.node)
        elif isinstance(effect, Reinstate):
            coordinator.leases.reinstate(effect.node)
        elif isinstance(effect, Disconnect):
            coordinator.greeted.discard(effect.node)
    return list(effects)


def _notice_stall(coordinator: Coordinator, now: float) -> Effects:
    """Handle an overdue check of the leases, which means that we stalled, before judging any node.

    The coordinator's own timers may be far apart; those of the leases never are.
    """
    due = coordinator.check_at
    overdue_after_s = coordinator.leases.terms.tether_s
    if due is None or due == coordinator.noticed or now - due <= overdue_after_s:
        return []
    coordinator.noticed = due
    return _step(coordinator, LoopDelayed(now - due), now)


def _check_again(coordinator: Coordinator, now: float) -> Effects:
    """Ask for a check of the leases, unless an earlier one is due."""
    due = coordinator.leases.next_check()
    if due is None or (coordinator.check_at is not None and coordinator.check_at <= due):
        return []
    coordinator.check_at = max(due, now)
    return [WakeCoordinator(LEASES_TIMER, coordinator.check_at - now)]


def all_heard(coordinator: Coordinator, now: float) -> bool:
    """Whether every member of the running round has been heard recently."""
    current, end = coordinator.state.group.round, coordinator.state.end
    if current is None or current.stop is not None or current.missing is not None:
        return False
    if end is not None and end.member_lost:
        return False
    # A member that is in no watch is gone or has left, and the round would be ending for that.
    leases = coordinator.leases
    for name, watch in leases.watches.items():
        if now - watch.heard_at < leases.terms.suspect_s:
            return True  # All nodes after this one were heard later.
        if name in current.seats and not current.seats.has_succeeded(name):
            return False
    return True


# The coordinator's initial state: a journal records it, so that decisions can be replayed.


class Beginning(Struct, frozen=True, omit_defaults=True):
    """The coordinator's initial state."""

    term: Term = FIRST_TERM
    embedded: bool = True
    leader: str = ""
    ledger: Ledger | None = None
    """The last coordinator's ledger; None if there is none."""
    gone_after_s: float = 0.0
    """How long a node of the last round may run without having been heard."""
    successors: tuple[str, ...] = ()
    dead: str = ""
    """The last coordinator's own node, if proven dead."""
    dead_seat: int | None = None
    """Its seat in the round, if it had one."""

    def state(self, config: JobConfig, now: float) -> CoordinatorState:
        """The coordinator at its first moment."""
        follows = None if self.embedded else Succession(self.leader, self.successors)
        if self.ledger is None:
            return begin(config, term=self.term, succession=follows)
        state = take_over(config, self.term, self.ledger, now, self.gone_after_s)
        state.succession = follows
        if self.dead_seat is not None:
            takeover.begin_without(state, self.dead, self.dead_seat, now)
        return state


def next_life(config: JobConfig, written: Document | None, instance: int) -> Beginning:
    """The initial state of an embedded coordinator, from the record of an earlier one, if any.

    Without a record it is a new instance. The record of a job that is over is left by a coordinator
    that died before all nodes knew: the others are told, and no node runs the job anew.
    """
    if written is None:
        return Beginning(Term(instance, 1), ledger=Ledger())
    term = Term(written.instance, written.epoch + 1)
    if written.ledger.outcome is not None:
        return Beginning(term, ledger=written.ledger)
    return Beginning(term, ledger=written.ledger, gone_after_s=config.leases.gone_after_s)


def elected(config: JobConfig, node: str, lead: Lead) -> Beginning:
    """The initial state of a coordinator that was elected through a register.

    An earlier one that may still hold leases without its register can have renewed them for
    `hold_s` at most, and every one of them lasts its own time after that.
    """
    leases, document = config.leases, lead.document
    held_s = leases.hold_s * (1 + leases.drift) if lead.holder_possible else 0.0
    return Beginning(
        document.term,
        embedded=False,
        leader=node,
        ledger=document.ledger,
        gone_after_s=held_s + leases.gone_after_s,
        successors=tuple(other for other in document.successors if other != node),
        dead=lead.dead,
        dead_seat=lead.dead_seat,
    )
