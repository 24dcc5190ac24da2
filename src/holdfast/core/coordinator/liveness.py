"""Who is alive: what comes in from connections, and the book of leases beside the coordinator.

Heartbeats are many and decide nothing, so they stay here: the book notes them and they are
answered. Everything that decides something goes on to `coordinator.step`: what nodes say, and
the verdicts of the book. A journal therefore records decisions, not heartbeats, and can be
replayed without them.

Rules
1. All that can be read is handled before anybody's silence is judged; whoever calls
   `check_leases` has seen to that.
2. The end of a connection is noted, nothing more: it is silence, not death. The orderly end of
   a tether is proof of death; any other end of it proves nothing.
3. A greeting begins anew: what was to be told to that node before and has not been sent is
   forgotten by whoever sends, because the coordinator takes it for lost, and answers with all
   that the node has to know.
4. Requests about the job (`request_routing`) are seen to here as well: they decide nothing.
5. What a node may not say (`core.coordinator.hearing`) goes nowhere: it renews no lease and is no
   step.
"""

from __future__ import annotations

from msgspec import Struct, field

from holdfast.core.coordinator import hearing, request_routing
from holdfast.core.coordinator import step as coordinator
from holdfast.core.coordinator.io import (
    CoordinatorEffect,
    CoordinatorEvent,
    Disconnect,
    Heard,
    LoopDelayed,
    Refuse,
    Reinstate,
    Revoke,
    Tell,
    WakeCoordinator,
)
from holdfast.core.coordinator.leases import LeaseBook
from holdfast.core.coordinator.request_routing import RequestRouter
from holdfast.core.coordinator.round import FormingRound, RunningRound
from holdfast.core.coordinator.state import CoordinatorState
from holdfast.core.protocol.messages import (
    FromNode,
    Heartbeat,
    HeartbeatAnswered,
    NodeGreeted,
    NodeLeft,
    RequestAnswered,
    RequestMade,
)

LEASES_TIMER = "leases"
REQUESTS_TIMER = "requests"


class Taken(Struct, frozen=True):
    """One step that the coordinator took: what a journal records."""

    event: CoordinatorEvent
    effects: list[CoordinatorEffect]


class Liveness(Struct):
    """A coordinator, and the book of leases by which it knows who is alive."""

    state: CoordinatorState
    book: LeaseBook
    greeted: set[str] = field(default_factory=set)
    """Who has greeted on the connection that it has."""
    check_at: float | None = None
    noticed: float | None = None
    """The check that was found to be overdue: the coordinator has been told once."""
    taken: list[Taken] = field(default_factory=list)
    """Steps since somebody last emptied this."""
    desk: RequestRouter = field(default_factory=RequestRouter)


def liveness_of(state: CoordinatorState, own_node: str = "") -> Liveness:
    """`own_node` is the one that the coordinator lives on."""
    return Liveness(state, LeaseBook(state.config.leases), desk=RequestRouter(own_node))


def receive(
    liveness: Liveness, node: str, message: FromNode, now: float
) -> list[CoordinatorEffect]:
    """A node said something."""
    effects = _notice_stall(liveness, now)
    wrong = hearing.objection(liveness.state, node, message, node in liveness.greeted)
    if wrong is not None:
        return [*effects, Refuse(node, wrong.kind, wrong.reason)]
    if isinstance(message, Heartbeat):
        return effects + _heartbeat(liveness, node, message, now)
    if isinstance(message, NodeGreeted):
        liveness.greeted.add(node)
    if isinstance(message, RequestMade | RequestAnswered):
        return effects + _request(liveness, node, message, now)
    if isinstance(message, NodeGreeted) and liveness.state.config.max_nodes > 1:
        liveness.book.connected(node, now)
        effects += _heartbeat(liveness, node, Heartbeat(message.heartbeat), now)
    if isinstance(message, NodeLeft):
        liveness.greeted.discard(node)
        liveness.book.forget(node)
        effects += request_routing.gone(liveness.desk, liveness.state, node)
    return effects + decide(liveness, Heard(node, message), now)


def _heartbeat(
    liveness: Liveness, node: str, message: Heartbeat, now: float
) -> list[CoordinatorEffect]:
    if not liveness.book.heartbeat(node, now):
        return []
    effects: list[CoordinatorEffect] = [Tell(node, HeartbeatAnswered(message.number))]
    for verdict in liveness.book.back(node):
        effects += decide(liveness, verdict, now)
    return effects


def _request(
    liveness: Liveness, node: str, message: RequestMade | RequestAnswered, now: float
) -> list[CoordinatorEffect]:
    desk, state = liveness.desk, liveness.state
    if isinstance(message, RequestAnswered):
        return request_routing.answered(desk, state, node, message)
    effects = request_routing.asked(desk, state, node, message, now)
    for put in [one for one in effects if isinstance(one, Tell)]:
        # Its connection has ended, and it does not count as gone yet: nobody hears that request.
        if put.node not in liveness.greeted and put.node not in (node, desk.own_node):
            effects += request_routing.gone(desk, state, put.node)
    return effects + _check_requests_again(desk, now)


def check_requests(liveness: Liveness, now: float) -> list[CoordinatorEffect]:
    """The timer of the requests has fired."""
    effects = request_routing.expire(liveness.desk, liveness.state, now)
    return effects + _check_requests_again(liveness.desk, now)


def _check_requests_again(desk: RequestRouter, now: float) -> list[CoordinatorEffect]:
    due = desk.next_check()
    return [] if due is None else [WakeCoordinator(REQUESTS_TIMER, max(0.0, due - now))]


def disconnected(liveness: Liveness, node: str, now: float) -> list[CoordinatorEffect]:
    """A node's connection ended, in whatever way."""
    liveness.greeted.discard(node)
    liveness.book.disconnected(node, now)
    lost = request_routing.gone(liveness.desk, liveness.state, node)
    return lost + _check_again(liveness, now)


def tether_ended(liveness: Liveness, node: str, clean: bool, now: float) -> list[CoordinatorEffect]:
    """A node's tether ended; `clean` when in order, not by a reset or a time-out."""
    if clean:
        liveness.book.tether_ended(node, now)
    return _check_again(liveness, now)


def check_leases(liveness: Liveness, now: float) -> list[CoordinatorEffect]:
    """The timer of the leases has fired, and all that could be read has been handled."""
    due_at = now if liveness.check_at is None else liveness.check_at
    liveness.check_at = None
    effects: list[CoordinatorEffect] = []
    for verdict in liveness.book.check(now, due_at):
        effects += decide(liveness, verdict, now)
    return effects + _check_again(liveness, now)


def decide(liveness: Liveness, event: CoordinatorEvent, now: float) -> list[CoordinatorEffect]:
    """Have the coordinator take a step."""
    effects = _notice_stall(liveness, now) + _step(liveness, event, now)
    return effects + _check_again(liveness, now)


def _step(liveness: Liveness, event: CoordinatorEvent, now: float) -> list[CoordinatorEffect]:
    effects = coordinator.step(liveness.state, event, now)
    liveness.taken.append(Taken(event, effects))
    for effect in effects:
        if isinstance(effect, Revoke):
            liveness.book.revoke(effect.node)
        elif isinstance(effect, Reinstate):
            liveness.book.reinstate(effect.node)
        elif isinstance(effect, Disconnect):
            liveness.greeted.discard(effect.node)
    return list(effects)


def _notice_stall(liveness: Liveness, now: float) -> list[CoordinatorEffect]:
    """A check of the leases is overdue, so we were held up: see to it before anything is judged.

    The coordinator's own timers may be far apart; those of the leases never are.
    """
    due = liveness.check_at
    if due is None or due == liveness.noticed or now - due <= liveness.book.terms.tether_s:
        return []
    liveness.noticed = due
    return _step(liveness, LoopDelayed(now - due), now)


def _check_again(liveness: Liveness, now: float) -> list[CoordinatorEffect]:
    """Ask for a look at the leases, sooner than one that was asked for already."""
    due = liveness.book.next_check()
    if due is None or (liveness.check_at is not None and liveness.check_at <= due):
        return []
    liveness.check_at = max(due, now)
    return [WakeCoordinator(LEASES_TIMER, liveness.check_at - now)]


def all_heard(liveness: Liveness, now: float) -> bool:
    """Whether every member of the running round has been heard of late."""
    current, end = liveness.state.round, liveness.state.end
    if not isinstance(current, FormingRound | RunningRound):
        return False
    if end is not None and end.member_lost:
        return False
    succeeded = current.course.succeeded if isinstance(current, RunningRound) else ()
    # A member that is in no watch is gone or has left, and the round would be ending for that.
    for name, watch in liveness.book.watches.items():
        if now - watch.heard_at < liveness.book.terms.suspect_s:
            return True  # Everybody behind was heard later.
        if name in current.seats and name not in succeeded:
            return False
    return True
