"""Members of a round whose own machine says that they have ended.

Rules
1. It is believed of the member whose secret is shown, and of no other (`core.protocol.marks`), as
   the end of its tether is. Any node may say it: who shows the secret has read that member's note.
2. It ends the round, and nobody waits for that member any more. When all are proven to have ended,
   and none has to be waited for, the next round forms at once.
3. It says nothing of other members. An earlier coordinator may hold their leases without one that
   had succeeded before its end, so they are waited for as long as before.
4. What fits no seat of the present round is of another one, and is ignored.
"""

from __future__ import annotations

from holdfast.core.coordinator import ending as ending
from holdfast.core.coordinator.io import CoordinatorEffect
from holdfast.core.coordinator.round import (
    FormingRound,
    NodeSeat,
    StopCause,
    StoppingRound,
    ToldRound,
    UnreportedSeat,
)
from holdfast.core.coordinator.state import CoordinatorState
from holdfast.core.protocol.marks import leads_to, top
from holdfast.core.protocol.messages import EndedMember
from holdfast.core.protocol.naming import host_of

WHY = "all its processes have ended, as its machine confirms"


def heard(
    state: CoordinatorState, told: tuple[EndedMember, ...], now: float
) -> list[CoordinatorEffect]:
    """A node told who has ended on its machine."""
    effects: list[CoordinatorEffect] = []
    for one in told:
        current = state.round
        if not isinstance(current, FormingRound | None) and is_proven(current, one):
            effects += _ended(state, current, one, now)
    return effects


def is_proven(current: ToldRound, one: EndedMember) -> bool:
    """Whether this is the secret of the member on that seat of this very round."""
    known, size = top(current.seats.marks), len(current.seats)
    if one.round != current.number or not known:
        return False
    return leads_to(one.secret, one.seat, size, one.path) == known


def _ended(
    state: CoordinatorState, current: ToldRound, one: EndedMember, now: float
) -> list[CoordinatorEffect]:
    about = f"a node of round {current.number}, on {host_of(one.node)}, has ended"
    match current.seats.by_rank[one.seat]:
        case NodeSeat(node=node) if node in state.members:
            return ending.gone(state, node, WHY, now, ended=True)
        case NodeSeat(node=node) if isinstance(current, StoppingRound):
            if node not in current.exited:  # It died with the last coordinator.
                current.exited[node] = "gone"
                ending.note_loss(current, about)
        case UnreportedSeat():
            effects = ending.end(state, current, StopCause("loss", about), now)
            current.seats.lose(one.seat)
            ending.note_loss(state.round, about)
            if not current.seats.unreported:
                ending.finish_takeover(state, now)
            return effects
    return []
