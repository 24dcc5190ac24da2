"""The one place that forms rounds, decides restarts and orders failures.

Rules
1. `step` is the only way in: an event and the time go in, effects come out. There is no
   clock, no randomness and no I/O here; the same events give the same effects.
2. Round numbers only grow. What names an older round is ignored.
3. *Ending* a round is immediate: the first failure, loss or suspicion stops it everywhere.
   *Judging* it waits until every member is back or gone, because only then is it known
   whether a failure was the cause, or only followed from a machine that was lost.
4. Write before word: a round, a charge, an outcome is told only after it is written down.
5. A node that leaves, fails or is lost never closes the job; only success of all, a terminal
   failure, too few nodes for too long, or the end of a round after which none is wanted does.
   A job closes once. With that decided the job is over: who has to learn the outcome counts, and
   that it is written down, and nothing else does.
6. The coordinator's own stalls extend what it gave the nodes time for.
7. After a takeover nothing is formed until every node of the last round has reported or must
   be gone. When all have, and all still run, the round goes on and nobody notices.

A round's life, as its members see it:

    (forming) ──RunRound──▶ running ──all succeeded──▶ CloseJob
        ▲                      │ failure, loss, drain, newcomers
        │                   StopRound
        │                      ▼
        └─restart or re-form─ stopping ──give up──▶ CloseJob
"""

from __future__ import annotations

from msgspec.structs import replace

from holdfast.core.coordinator import ended_members as ended_members
from holdfast.core.coordinator import ending as ending
from holdfast.core.coordinator import forming as forming
from holdfast.core.coordinator import inheriting as inheriting
from holdfast.core.coordinator import judging as judging
from holdfast.core.coordinator import operating as operating
from holdfast.core.coordinator import saving as saving
from holdfast.core.coordinator import stalls as stalls
from holdfast.core.coordinator.io import (
    CoordinatorEffect,
    CoordinatorEvent,
    CoordinatorTimerFired,
    Depose,
    Disconnect,
    Explain,
    HandOverAsked,
    Heard,
    LoopDelayed,
    OperatorAsked,
    Raise,
    Resign,
    Retire,
    Tell,
    WakeCoordinator,
    Write,
    Written,
)
from holdfast.core.coordinator.leases import NodeGone, NodeHeardAgain, NodeSuspected
from holdfast.core.coordinator.round import (
    AnyRound,
    FormingRound,
    InheritedRound,
    MissingReports,
    RoundCourse,
    RunningRound,
    StoppingRound,
    ToldRound,
    is_present,
    missing_reports,
    seats_inherited,
)
from holdfast.core.coordinator.state import (
    Announced,
    CoordinatorState,
    JobEnd,
    Member,
    Retired,
    Unrecorded,
    forget,
    ledger,
    told_round,
    update_ready,
)
from holdfast.core.policy import restarts
from holdfast.core.policy.config import JobConfig
from holdfast.core.protocol import settings
from holdfast.core.protocol.document import SUCCESSORS, Ledger
from holdfast.core.protocol.messages import (
    CloseJob,
    ClosingWanted,
    FailuresDescribed,
    Heartbeat,
    MembersEnded,
    NodeDraining,
    NodeGreeted,
    NodeJoined,
    NodeLeft,
    RequestAnswered,
    RequestMade,
    RoundReport,
    RoundStopped,
    SaveHeard,
    Seen,
    StopRound,
    Welcomed,
    WorkersFailed,
    WorkersProgressed,
    WorkersResumed,
    WorkersSaved,
    WorkersStalled,
    WorkersSucceeded,
)
from holdfast.core.protocol.model import Term

LOOK_TIMER = "look"


def take_over(
    config: JobConfig,
    term: Term,
    written: Ledger,
    now: float,
    gone_after_s: float,
) -> CoordinatorState:
    """A coordinator that goes on from what the last one wrote down.

    `gone_after_s` is how long a node of the last round may still run without having been
    heard here.
    """
    state = CoordinatorState(config, term=term, began_at=now)
    state.version = 1
    state.round_number = written.round
    state.budget.history = [restarts.forgotten(now)] * written.charges
    state.closing = written.closing
    state.limits = written.limits
    if written.hosts:
        from holdfast.core.coordinator import quarantine

        quarantine.inherit(state, written, now)
    if written.outcome is not None:
        state.end = JobEnd(written.outcome, Announced())
    elif written.size:
        _await_members(state, written, now + gone_after_s)
        state.looks["awaited"] = now + inheriting.SAID_AFTER_S
    return state


def _await_members(state: CoordinatorState, written: Ledger, until: float) -> None:
    """Go on with the round that is written down, once its members have reported."""
    state.round_number = max(state.round_number, written.round)
    state.wait.reason = ""
    state.round = InheritedRound(
        written.round,
        written.instance,
        seats_inherited(written),
        started_at=until,
        missing=MissingReports(until, written.held),
        course=RoundCourse(done=set(written.done), restart=written.restart),
    )
    state.looks["missing"] = until


def step(state: CoordinatorState, event: CoordinatorEvent, now: float) -> list[CoordinatorEffect]:
    """Advance by one event."""
    if state.began_at is None:
        state.began_at = now
    version = state.version
    _extend(state, event, now)
    if isinstance(event, CoordinatorTimerFired):
        state.wake_at = None
    if state.end is None:
        effects = _advance(state, event, now)
    else:
        effects = _conclude(state, state.end, event, now)
    effects += judging.say_unrecorded(state, now)
    effects += _retire(state, now)
    _note_own_seat(state)
    if state.version > version:
        effects.append(_write(state, now))
    return effects + _wake(state, now)


def _advance(
    state: CoordinatorState, event: CoordinatorEvent, now: float
) -> list[CoordinatorEffect]:
    """Take the event, then whatever is due: until the end is decided."""
    effects = _take(state, event, now)
    # After every event, not only the timer's: `_wake` replaces a timer, even one that is due.
    for look in (
        inheriting.look,
        ending.look,
        saving.look,
        judging.settle_round,
        forming.consider,
        _name_successors,
    ):
        if state.end is None:
            effects += look(state, now)
    return effects


def _write(state: CoordinatorState, now: float) -> Write:
    """Have all that is decided written down."""
    follows = state.succession
    if follows is None:
        return Write(state.version, ledger(state, now))
    return Write(state.version, ledger(state, now), follows.successors, follows.places)


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
    """We were held up ourselves: what nodes had to do meanwhile, they could not have told us."""
    current = state.round
    if isinstance(current, StoppingRound):
        # By the stall alone: on a busy host the next one comes long before all patience is over.
        current.deadline = state.looks["stop"] = current.deadline + late_s
    missing = missing_reports(current)
    if missing is not None:
        missing.until = state.looks["missing"] = missing.until + late_s
    if state.wait.short_since is not None:
        state.wait.short_since += late_s


def _take(state: CoordinatorState, event: CoordinatorEvent, now: float) -> list[CoordinatorEffect]:
    match event:
        case Heard():
            return _heard(state, event, now)
        case Written():
            return forming.written(state, event.version, now)
        case NodeSuspected():
            return ending.suspected(state, event.node, event.reason, now)
        case NodeHeardAgain():
            return _heard_again(state, event.node)
        case NodeGone():
            return ending.gone(state, event.node, event.reason, now, ended=event.ended)
        case HandOverAsked():
            return _hand_over(state, now)
        case OperatorAsked():
            return operating.asked(state, event, now)
        case LoopDelayed() | CoordinatorTimerFired():
            return []  # A stall has moved the deadlines already.


def _hand_over(state: CoordinatorState, now: float) -> list[CoordinatorEffect]:
    """Have all that is decided written, and the place given away: nobody waits until it is missed.

    An embedded coordinator can have no successor.
    """
    if state.embedded:
        return []
    return [_write(state, now), Resign("its node leaves", leaves=True)]


def _heard(state: CoordinatorState, event: Heard, now: float) -> list[CoordinatorEffect]:
    node, message = event.node, event.message
    match message:
        case NodeGreeted():
            return _greeted(state, node, message, now)
        case NodeJoined():
            return _joined(state, node, message, now)
        case WorkersFailed():
            return ending.failed(state, node, message, now)
        case FailuresDescribed():
            return ending.described(state, node, message)
        case WorkersSucceeded():
            return ending.succeeded(state, node, message)
        case WorkersProgressed():
            return _progressed(state, node, message)
        case WorkersStalled():
            return stalls.stood(state, node, message)
        case WorkersResumed():
            return stalls.moved(state, node, message)
        case RoundStopped():
            return ending.stopped(state, node, message, now)
        case NodeDraining():
            return ending.draining(state, node, message, now)
        case SaveHeard():
            return saving.heard(state, node, message, now)
        case WorkersSaved():
            return saving.saved(state, node, message)
        case NodeLeft():
            return ending.left(state, node, message, now)
        case ClosingWanted():
            return judging.closing_wanted(state, message.outcome)
        case MembersEnded():
            return ended_members.heard(state, message.ended, now)
        case Heartbeat():
            return []  # Leases are kept beside the coordinator: see `core.coordinator.leases`.
        case RequestMade() | RequestAnswered():
            return []  # So are requests: see `core.coordinator.request_routing`.


# Arrivals.


def _joined(
    state: CoordinatorState, node: str, message: NodeJoined, now: float
) -> list[CoordinatorEffect]:
    member = _member(state, node, message)
    member.endpoint = message.endpoint
    update_ready(state, node)
    return forming.stand_by(state, node, now)


def _member(state: CoordinatorState, node: str, message: NodeJoined | NodeGreeted) -> Member:
    member = state.members.get(node)
    if member is None:
        state.arrivals += 1
        name = state.names.give(message.info)
        member = state.members[node] = Member(message.info, state.arrivals, name)
        state.roles.add(message.info.role)
    member.info = message.info
    return member


def _greeted(
    state: CoordinatorState, node: str, message: NodeGreeted, now: float
) -> list[CoordinatorEffect]:
    effects: list[CoordinatorEffect] = []
    if _is_outranked(state, message.seen):
        return [Depose(message.seen.term)]
    effects += _inherit(state, message, now)
    if state.end is not None:
        return [*effects, Tell(node, Welcomed()), *_tell_outcome(state.end, node)]
    member = _member(state, node, message)
    member.endpoint, member.suspected = message.endpoint, ""
    if message.standing is not None:
        member.last_round = message.standing.round
        member.last_rank = message.standing.group_rank
    effects += _receive(state, member, message)
    stalls.greeted(state, node)
    effects += _take_standing(state, node, message.standing, now)
    update_ready(state, node)
    if state.outcome is not None:
        return effects  # It was the last that had to succeed.
    if not member.round:
        effects += ending.reinstate(state, node)
    effects += ended_members.heard(state, message.ended, now)
    if message.closing is not None:
        effects += judging.closing_wanted(state, message.closing)
    if message.draining:
        wish = NodeDraining(message.draining, message.within_s)
        effects += ending.draining(state, node, wish, now)
    update_ready(state, node)
    return effects + forming.stand_by(state, node, now) + stalls.look(state)


def _receive(
    state: CoordinatorState, member: Member, message: NodeGreeted
) -> list[CoordinatorEffect]:
    """Tell a node what it has to know, and where it was started otherwise than the job."""
    differing = settings.differing(settings.of_job(state.config), message.settings)
    warning = settings.warn_node(differing)
    welcome = replace(_welcome(state), name=member.name, warning=warning)
    effects: list[CoordinatorEffect] = [Tell(member.info.node, welcome)]
    if differing and member.arrival <= forming.COUNTED_ALOUD and not member.warned:
        member.warned = True
        effects.append(Explain(settings.warn_coordinator(member.name, differing), member.name))
    return effects


def _is_outranked(state: CoordinatorState, seen: Seen) -> bool:
    """Somebody else leads, or did under this very term: it was told what we know nothing of."""
    more = seen.round > state.round_number or seen.charges > state.budget.charges
    same = seen.term == state.term and more
    return not state.embedded and (seen.term > state.term or same)


def _inherit(state: CoordinatorState, message: NodeGreeted, now: float) -> list[CoordinatorEffect]:
    """A node remembers more than we do: our record was lost, and its memory stands for it."""
    seen, standing = message.seen, message.standing
    charges = inheriting.remembered(state, message.info.node, seen.charges)
    more = seen.term > state.term
    more = more or seen.round > state.round_number or charges > state.budget.charges
    # Somebody whom we never met has heard our term: it was another life of this coordinator.
    stranger = message.info.node not in state.members and not state.formed
    more = more or (stranger and state.embedded and seen.term == state.term)
    if seen.term.instance == 0 or not more:
        return []
    effects: list[CoordinatorEffect] = []
    if seen.term >= state.term:
        state.term = Term(seen.term.instance, seen.term.epoch + 1)
        effects.append(Raise(state.term))
    if seen.round > state.round_number:
        state.round_number = seen.round
        state.version += 1
    budget = state.budget
    if charges > budget.charges:
        # When they were is not known, so they count as fresh, as those of a register do.
        budget.history = [restarts.forgotten(now)] * (charges - budget.charges) + budget.history
        state.version += 1
    if state.formed == 0 and state.round is None:
        _await_the_round_of(state, standing, now)
    return effects


def _await_the_round_of(state: CoordinatorState, standing: RoundReport | None, now: float) -> None:
    """An earlier life of this coordinator formed rounds: nothing forms while one may run."""
    assert state.began_at is not None, "a node has greeted, so the first event has come"
    until = state.began_at + state.config.leases.gone_after_s
    state.wait.not_before = max(state.wait.not_before, until)
    is_possible = standing is not None and standing.group_size <= state.max_nodes
    if standing is not None and is_possible and until > now:
        of = Ledger(standing.round, standing.group_size, instance=standing.instance)
        _await_members(state, of, until)


def _take_standing(
    state: CoordinatorState, node: str, standing: RoundReport | None, now: float
) -> list[CoordinatorEffect]:
    """Bring what the node says about its round together with what is known of it."""
    member, current = state.members[node], state.round
    stands_in = _stands_in(current, standing)
    if standing is not None and stands_in is not None:
        if standing.group_rank < standing.group_size == len(stands_in.seats):
            inheriting.take_seat(stands_in, standing, node)
        if is_present(stands_in, node):
            effects = ending.stands(state, stands_in, node, standing, now)
            return effects + inheriting.reported(state, standing, now)
    elif current is not None and is_present(current, node):
        member.round = current.number
        return _offer_again(state, current, node)
    if standing is None or standing.condition == "stopped":
        member.round = 0
        return []
    member.round = standing.round
    return [Tell(node, StopRound(standing.round, "that round is over"))]


def _stands_in(current: AnyRound | None, standing: RoundReport | None) -> ToldRound | None:
    """The present round, if the node stands in it. Another instance may have one of that number."""
    if current is None or isinstance(current, FormingRound) or standing is None:
        return None
    known = standing.instance and current.instance
    same = not known or standing.instance == current.instance
    return current if same and standing.round == current.number else None


def _offer_again(state: CoordinatorState, current: AnyRound, node: str) -> list[CoordinatorEffect]:
    """It has not heard of the round that it is a member of: the word was lost on the way."""
    match current:
        case RunningRound():
            is_ours = node in current.assignments
            return [Tell(node, forming.announcement(current, node))] if is_ours else []
        case StoppingRound():
            current.exited[node] = "idle"
            state.members[node].round = 0
    return []


def _heard_again(state: CoordinatorState, node: str) -> list[CoordinatorEffect]:
    if node in state.members:
        state.members[node].suspected = ""
        update_ready(state, node)
    return []


def _progressed(
    state: CoordinatorState, node: str, message: WorkersProgressed
) -> list[CoordinatorEffect]:
    current = told_round(state, message.round, node)
    if current is not None:
        current.course.furthest_step = max(message.step, current.course.furthest_step or 0)
    return []


def _name_successors(state: CoordinatorState, now: float) -> list[CoordinatorEffect]:
    """Those who have been there longest take over first, where anybody can; they are told so."""
    follows = state.succession
    if follows is None:
        return []
    known = [name for name in follows.successors if name in state.members]
    if len(known) < SUCCESSORS and len(state.members) > len(known):
        others = (name for name in state.members if name not in known and name != follows.leader)
        known += list(others)[: SUCCESSORS - len(known)]
    members = {name: state.members.get(name) for name in (follows.leader, *known)}
    places = {
        name: member.info.place
        for name, member in members.items()
        if member is not None and member.info.place is not None
    }
    if tuple(known) == follows.successors and places == follows.places:
        return []
    follows.successors, follows.places = tuple(known), places
    state.version += 1
    return [Tell(name, _welcome(state, waiting="")) for name in known]


def _welcome(state: CoordinatorState, waiting: str | None = None) -> Welcomed:
    follows = state.succession
    if waiting is None:
        waits = state.round is None or missing_reports(state.round) is not None
        waiting = state.wait.reason if waits else ""
    if follows is None:
        return Welcomed(waiting=waiting)
    return Welcomed(follows.successors, waiting, follows.leader, follows.places)


def _note_own_seat(state: CoordinatorState) -> None:
    """Whoever finds our node dead has to know which member of the round died with it."""
    current, follows = state.round, state.succession
    if follows is None:
        return
    seat = current.seats.ranks.get(follows.leader) if current is not None else None
    if seat != follows.leader_seat:
        follows.leader_seat = seat
        state.version += 1


# The end.


def _conclude(
    state: CoordinatorState, end: JobEnd, event: CoordinatorEvent, now: float
) -> list[CoordinatorEffect]:
    """The job is over: what becomes of the round, and who fails in it, does not matter any more."""
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
    """The node is gone, or has left; whether it was there."""
    current = state.round
    if current is not None and node in current.seats:
        end.member_lost |= not ending.has_succeeded(current, node)
    return forget(state, node) is not None


def _outcome_written(end: JobEnd, version: int) -> list[CoordinatorEffect]:
    if not isinstance(end.stage, Unrecorded) or version < end.stage.version:
        return []
    end.stage = Announced()
    return [Tell(name, CloseJob(end.outcome)) for name in sorted(end.unaware)]


def _tell_outcome(end: JobEnd, node: str) -> list[CoordinatorEffect]:
    end.unaware.add(node)
    return [Tell(node, CloseJob(end.outcome))] if end.is_told else []


def _retire(state: CoordinatorState, now: float) -> list[CoordinatorEffect]:
    end = state.end
    if end is None or not isinstance(end.stage, Announced):
        return []
    if end.stage.until is None:
        end.stage.until = now + state.config.timeouts.close_s
        state.looks = {"close": end.stage.until}
    if end.unaware and now < end.stage.until:
        return []
    end.stage = Retired()
    return [Retire()]


def _wake(state: CoordinatorState, now: float) -> list[CoordinatorEffect]:
    """One timer, for whatever is due first."""
    due = [at for at in state.looks.values() if at > now]
    if not due or (state.wake_at is not None and state.wake_at == min(due)):
        return []
    state.wake_at = min(due)
    return [WakeCoordinator(LOOK_TIMER, state.wake_at - now)]
