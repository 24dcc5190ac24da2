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
from holdfast.core.coordinator.state import UNKNOWN, CoordinatorState, RunningRound
from holdfast.core.protocol.marks import leads_to
from holdfast.core.protocol.messages import EndedMember
from holdfast.core.protocol.naming import host_of

WHY = "all its processes have ended, as its machine knows"


def heard(
    state: CoordinatorState, told: tuple[EndedMember, ...], now: float
) -> list[CoordinatorEffect]:
    """A node told who has ended on its machine."""
    effects: list[CoordinatorEffect] = []
    for one in told:
        current = state.round
        if current is not None and current.announced and is_proven(current, one):
            effects += _ended(state, current, one, now)
    return effects


def is_proven(current: RunningRound, one: EndedMember) -> bool:
    """Whether this is the secret of the member on that seat of this very round."""
    if one.round != current.number or not current.marks:
        return False
    size = len(current.members)
    return leads_to(one.secret, one.seat, size, one.path) == current.marks


def _ended(
    state: CoordinatorState, current: RunningRound, one: EndedMember, now: float
) -> list[CoordinatorEffect]:
    name = current.members[one.seat]
    if name in state.members:
        return ending.gone(state, name, WHY, now)
    if name in current.gone or name in current.back:
        return []
    if name == UNKNOWN:
        name = f"node {one.seat + 1} of round {current.number}"
        current.seat(one.seat, name)
    about = f"a node of round {current.number}, on {host_of(one.node)}, has ended"
    current.gone[name] = about
    return ending.end(state, current, "loss", about, now) + ending.whole_again(current, now)
