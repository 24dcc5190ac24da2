"""Which node a round was lost with, and what can be said of it.

Rules
1. The first node of a round that is suspected, lost or leaves is the one that is named; what is
   learned of it later replaces what was suspected.
2. A node whose processes have all ended was killed, or its machine started anew: its own kernel
   told the end. Of one that is silent nobody can say whether it is its machine or the network.
3. It is remembered until another round runs: a job that never gets one ends because of it.
"""

from __future__ import annotations

from holdfast.core.coordinator.round import AnyRound, InheritedRound
from holdfast.core.coordinator.state import CoordinatorState, NodeLoss
from holdfast.core.protocol.bounds import cut
from holdfast.core.protocol.model import Blame


def suspected(state: CoordinatorState, current: AnyRound, node: str, reason: str) -> None:
    from holdfast.core.policy import kinds  # Here and below, because most jobs lose nobody.

    who = state.members[node].name
    _note(state, current, node, Blame(kinds.LOST_NODE, who, "unclear", cut(reason)))


def gone(state: CoordinatorState, current: AnyRound, node: tuple[str, str], ended: bool) -> None:
    """`node` is the node and what it is called."""
    from holdfast.core.policy import kinds

    name, who = node
    if ended:
        why = "all its processes ended at once, without a word"
        found = Blame(kinds.AGENT_ENDED, who, "certain", why)
    else:
        why = "nothing was heard of it any more, and its connections did not end"
        found = Blame(kinds.LOST_NODE, who, "likely", why)
    _note(state, current, name, found)


def left(state: CoordinatorState, current: AnyRound, node: tuple[str, str], told: Blame) -> None:
    """It said so itself; `told` has the kind and the reason."""
    from holdfast.core.policy import kinds

    name, who = node
    _note(state, current, name, Blame(told.kind or kinds.NODE_LEFT, who, "certain", told.why))


def _note(state: CoordinatorState, current: AnyRound, node: str, found: Blame) -> None:
    known = state.loss
    if known is not None and known.round == current.number and known.node != node:
        return
    who = f"{found.who}{_its_ranks(current, node)}"
    blame = Blame(found.kind, who, found.certainty, found.why)
    state.loss = NodeLoss(current.number, node, blame)


def _its_ranks(current: AnyRound, node: str) -> str:
    """Which workers went with it, where that is known."""
    if isinstance(current, InheritedRound) or node not in current.assignments:
        return ""
    ranks = [worker.rank for worker in current.assignments[node].workers]
    return f" (rank {ranks[0]})" if len(ranks) == 1 else f" (ranks {ranks[0]} to {ranks[-1]})"
