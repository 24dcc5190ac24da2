"""Seating: which ready nodes can sit in a round, in which order, and with which ranks.

`core.policy.ranks` has the rules of seats, order and ranks; this module applies them to a job.

Rules
1. Only nodes that are ready are candidates. One whose host is paused after repeated losses is none;
   one that sits out (`core.features.quarantine`) takes part where too few would be left without it.
2. Counting candidates is cheap as long as every ready node can sit: it happens after every event.
3. Where ranks are fixed, each node sits at the rank that it was started with. A node whose rank is
   taken is told so, and stands by. Fixed ranks come with a fixed master: each node's workers get
   its address and port as given on that node.
"""

from __future__ import annotations

from msgspec.structs import replace

from holdfast.core.policy import ranks, rounds
from holdfast.core.protocol.model import Assignment, Endpoint, NodeInfo

TYPE_CHECKING = False  # As in `typing`, without its import.
if TYPE_CHECKING:
    from holdfast.core.coordinator import CoordinatorState
    from holdfast.core.rounds import Round

CROWD = 8
"""With more ready nodes than this, what is looked up or printed at each arrival is kept short."""


def count_candidates(state: CoordinatorState, now: float) -> tuple[int, float | None]:
    """How many nodes could sit now, and when the first node that sits out may come back."""
    fixed = state.config.has_fixed_ranks
    if fixed and _is_gathering(state):
        return len(state.ready), None  # At most this many, and far from enough.
    all_may = not state.penalties and not _sitting_out(state, now)
    if not fixed and all_may and (len(state.roles) < 2 or not state.group.holders):
        return len(state.ready), None  # A seat is a role's only once one of that role held it.
    nodes = candidates(state, now)
    until = _next_return(state, now) if len(nodes) < len(state.ready) else None
    return _seats_for(state, nodes), until


def candidates(state: CoordinatorState, now: float) -> list[str]:
    """Ready nodes, without those that sit out, as far as the job can do without them."""
    nodes, out = _split_ready(state, now)
    for name in out:
        if _seats_for(state, nodes) >= state.min_nodes:
            break
        nodes.append(name)
    return nodes


def count_newcomers(state: CoordinatorState, current: Round, now: float) -> int:
    """How many nodes wait for which there would be a seat, without those that sit out."""
    waiting = list(state.ready)
    if state.ready and (state.penalties or _sitting_out(state, now)):
        waiting, _ = _split_ready(state, now)
        if len(waiting) < len(state.ready):
            state.deadlines["room"] = _next_return(state, now)
    if not waiting or len(state.roles) < 2:
        return len(waiting)
    present = [name for name in current.seats.nodes() if name in state.members]
    return len(select(state, [*present, *waiting])) - len(present)


def _seats_for(state: CoordinatorState, nodes: list[str]) -> int:
    """How many of these nodes would get a seat."""
    if state.config.has_fixed_ranks:
        return len(_by_rank(state, nodes))
    if len(state.roles) < 2 or len(nodes) < state.min_nodes:
        return min(len(nodes), state.max_nodes)
    return len(select(state, nodes))


def _split_ready(state: CoordinatorState, now: float) -> tuple[list[str], list[str]]:
    """The candidates, and those that sit out: the soonest to be over in front."""
    present = [name for name in state.ready if not state.is_paused(name, now)]
    out = _sitting_out(state, now)
    kept = [name for name in present if name in out]
    return [name for name in present if name not in out], sorted(kept, key=out.__getitem__)


def _sitting_out(state: CoordinatorState, now: float) -> dict[str, float]:
    """Ready nodes that sit out for a while, and until when."""
    out: dict[str, float] = {}
    for feature in state.features:
        out |= feature.sits_out(state, now)
    return out


def _next_return(state: CoordinatorState, now: float) -> float:
    """When the first host that sits out may come back."""
    pausing = (one.until for one in state.penalties.values() if now < one.until)
    return min((*pausing, *_sitting_out(state, now).values()))


def select(state: CoordinatorState, nodes: list[str]) -> tuple[NodeInfo, ...]:
    """Those of these nodes that would get a seat, in the order of their ranks."""
    if state.config.has_fixed_ranks:
        return tuple(_by_rank(state, nodes).values())
    seated = ranks.select(_arrived(state, nodes), state.group.holders, state.max_nodes)
    return ranks.order(seated, _by_age_of_state(state))


def _arrived(state: CoordinatorState, nodes: list[str]) -> list[NodeInfo]:
    in_turn = sorted(nodes, key=lambda name: state.members[name].arrival)
    return [state.members[name].info for name in in_turn]


def _by_age_of_state(state: CoordinatorState) -> tuple[str, ...]:
    """Nodes with state, the newest and oldest first: former members, then those that ran before.

    A coordinator that took over between two rounds knows former members only by their reports.
    """
    former = set(state.group.former)
    others = [
        (-member.last_round, member.last_rank, name)
        for name, member in state.members.items()
        if member.last_round and name not in former
    ]
    return (*state.group.former, *(name for _, _, name in sorted(others)))


def assignments(state: CoordinatorState, seated: tuple[NodeInfo, ...]) -> dict[str, Assignment]:
    """Each member's assignment."""
    assigned = ranks.assign(
        seated,
        round=state.group.round_number,
        restart_count=state.group.budget.charges,
        master=_endpoint(state, seated[0].node),
    )
    if not state.config.has_fixed_ranks:
        return assigned
    # Masters are kept as they were given (rule 3).
    return {
        node: replace(assignment, master=_endpoint(state, node))
        for node, assignment in assigned.items()
    }


def _endpoint(state: CoordinatorState, node: str) -> Endpoint:
    held = state.members[node].endpoint
    assert held is not None, "a node without an endpoint was a candidate"
    return held


# Fixed ranks.


def _is_gathering(state: CoordinatorState) -> bool:
    """Many have come and many are missing: no scan at each arrival (rule 2)."""
    return CROWD < len(state.ready) < state.min_nodes - CROWD


def _by_rank(state: CoordinatorState, nodes: list[str]) -> dict[int, NodeInfo]:
    return ranks.by_rank(_arrived(state, nodes), _by_age_of_state(state), state.max_nodes)


def missing_ranks(state: CoordinatorState, after: str, now: float) -> str:
    """In words, where ranks are fixed: the ranks without a node, and those with two."""
    if not state.config.has_fixed_ranks or _is_gathering(state):
        return ""
    nodes = candidates(state, now)
    seated = _by_rank(state, nodes)
    missing = tuple(str(rank) for rank in range(state.max_nodes) if rank not in seated)
    said = f"{after}rank{'' if len(missing) == 1 else 's'} {rounds.names(missing)}"
    for other in _arrived(state, nodes):
        holder = seated.get(-1 if other.rank_hint is None else other.rank_hint)
        if holder is not None and holder.node != other.node:
            rivals = f"{state.name_of(holder.node)} and by {state.name_of(other.node)}"
            said += f"; rank {other.rank_hint} is claimed by {rivals}"
            break
    return said


def refused_rank(state: CoordinatorState, node: str) -> str:
    """Why a node does not get the rank that it was started with; empty if it may."""
    info, size = state.members[node].info, state.max_nodes
    rank = info.rank_hint
    if rank is None:
        return "this job has fixed ranks, and this node came without --node-rank: standing by"
    if not 0 <= rank < size:
        return f"this node came with --node-rank {rank} to a job of {size} nodes: standing by"
    holder = _holder(state, rank)
    if holder is None or holder.node == node:
        return ""
    other = state.name_of(holder.node)
    return f"--node-rank {rank} is taken by {other}: this node stands by until that one is gone"


def displaced_by(state: CoordinatorState, node: str) -> dict[str, str]:
    """The nodes that were ready sooner, and came later, and why the rank is this node's."""
    if not state.config.has_fixed_ranks or _is_gathering(state):
        return {}
    rank = state.members[node].info.rank_hint
    rivals = [name for name in state.ready if state.members[name].info.rank_hint == rank]
    return {name: refused_rank(state, name) for name in rivals if name != node}


def _holder(state: CoordinatorState, rank: int) -> NodeInfo | None:
    """The node with this rank: in the round, or for the next one, as far as known."""
    current = state.group.round
    if current is not None:
        seat = current.seats.by_rank[rank] if rank < len(current.seats) else None
        member = state.members.get(seat.node) if seat is not None else None
        return member.info if member is not None else None
    return None if _is_gathering(state) else _by_rank(state, list(state.ready)).get(rank)
