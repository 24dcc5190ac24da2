"""Liveness locks: proof, by a machine, that nodes which ran on it before have ended.

Rules
1. A node takes a lock on a file of its machine before it joins, and records its seat in it; while
   any process of the node lives, the lock is held (`core.policy.liveness_locks`). A disk that does
   not answer is waited for `LOCK_WAIT_S`.
2. A node that finds a free lock of another node of its job tells the coordinator, and repeats it on
   every connection: that node has ended.
3. A member whose end is proven so is gone, also in a round of an earlier coordinator. What does not
   match the seats of the present round is ignored.
"""

from __future__ import annotations

from typing import Any, ClassVar

from holdfast.core.coordinator_hooks import CoordinatorFeature
from holdfast.core.coordinator_hooks import Effects as CoordinatorEffects
from holdfast.core.node import NodeState, ready
from holdfast.core.node_hooks import Effects, NodeFeature
from holdfast.core.node_io import (
    EndedFound,
    KnowEnded,
    LivenessLockTaken,
    NodeEvent,
    NodeStarted,
    NodeTimerFired,
    RecordSeat,
    RemoveLivenessLocks,
    Report,
    WakeNode,
)
from holdfast.core.policy import sentences
from holdfast.core.protocol.messages import (
    ENDED_TOLD,
    EndedMember,
    FromNode,
    MembersEnded,
    NodeGreeted,
    ToNode,
)
from holdfast.core.protocol.naming import host_of
from holdfast.core.rounds import Round, StopCause, end, gone, note_lost

TYPE_CHECKING = False  # As in `typing`, without its import.
if TYPE_CHECKING:
    from holdfast.core.coordinator import CoordinatorState

LOCK_TIMER = "liveness lock"
LOCK_WAIT_S = 2.0


class NodeLivenessLock(NodeFeature):
    """The lock of this node, and what it has found of others."""

    TAKES: ClassVar = (LivenessLockTaken, EndedFound, LOCK_TIMER)
    pending: bool = False
    """It is not yet known whether the node will have a lock."""
    held: bool = False
    ended: tuple[EndedMember, ...] = ()
    """Members of rounds that have ended on this machine."""

    def started(self, state: NodeState, event: NodeStarted) -> Effects:
        self.pending = event.locks
        return [WakeNode(LOCK_TIMER, LOCK_WAIT_S)] if event.locks else []

    def delays_joining(self, state: NodeState) -> bool:
        return self.pending

    def take(self, state: NodeState, event: NodeEvent | ToNode, now: float) -> Effects:
        match event:
            case LivenessLockTaken():
                self.pending, self.held = False, event.is_held
                return ready(state)
            case NodeTimerFired():
                was_pending, self.pending = self.pending, False
                return ready(state) if was_pending else []
            case EndedFound():
                return self._found(state, event)
        raise AssertionError(f"not about liveness locks: {event}")

    def _found(self, state: NodeState, event: EndedFound) -> Effects:
        """Tell the election of this node, and the coordinator (rule 2)."""
        known = {one.node for one in self.ended}
        new = tuple(one for one in event.members if one.node not in known)
        self.ended = (*self.ended, *new)[-ENDED_TOLD:]
        effects: Effects = [KnowEnded(event.nodes)]
        if new and state.link.connected:
            effects.append(Report(MembersEnded(new[-ENDED_TOLD:])))
        return effects

    def in_greeting(self, state: NodeState) -> dict[str, Any]:
        return {"ended": self.ended}

    def round_started(self, state: NodeState) -> Effects:
        if not self.held or state.round is None:
            return []
        assignment = state.round.assignment
        return [RecordSeat(state.round.instance, assignment.round, assignment.group_rank)]

    def job_closed(self, state: NodeState) -> Effects:
        return [RemoveLivenessLocks()] if self.held else []


class LivenessLocks(CoordinatorFeature):
    """Takes members as gone whose machine has proven their end."""

    messages = (MembersEnded,)

    def heard(
        self, state: CoordinatorState, node: str, message: FromNode, now: float
    ) -> CoordinatorEffects:
        assert isinstance(message, MembersEnded), "it has no other"
        return _members_ended(state, message.ended, now)

    def greeted(
        self, state: CoordinatorState, message: NodeGreeted, now: float
    ) -> CoordinatorEffects:
        return _members_ended(state, message.ended, now)


def _members_ended(
    state: CoordinatorState, ended: tuple[EndedMember, ...], now: float
) -> CoordinatorEffects:
    effects: CoordinatorEffects = []
    for one in ended:
        current = state.group.round
        if state.end is None and current is not None and _has_seat(current, one):
            effects += _member_ended(state, current, one, now)
    return effects


def _has_seat(current: Round, one: EndedMember) -> bool:
    """Whether this is about a seat of this very round."""
    if not current.announced or one.round != current.number or one.seat >= len(current.seats):
        return False
    if one.instance and current.instance and one.instance != current.instance:
        return False
    return current.seats.by_rank[one.seat].node in ("", one.node)


def _member_ended(
    state: CoordinatorState, current: Round, one: EndedMember, now: float
) -> CoordinatorEffects:
    about = sentences.member_ended(current.number, host_of(one.node))
    seat = current.seats.by_rank[one.seat]
    if seat.status == "member" and seat.node in state.members:
        return gone(state, seat.node, sentences.PROVEN_END, now, ended=True)
    if seat.status == "member" and current.stop is not None and seat.exit is None:
        current.seats.note_exit(seat.node, "gone")  # It died with the last coordinator.
        note_lost(current, about)
    if seat.status == "unreported":
        effects = end(state, current, StopCause("loss", about), now)
        current.seats.give_up(one.seat)
        note_lost(current, about)
        if not current.seats.unreported:
            current.missing = None
        return effects
    return []
