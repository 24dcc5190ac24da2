"""The seats of a round: their states, and which ready nodes can sit, with which ranks.

`core.policy.ranks` has the rules of seats, order and ranks; this module applies them to a job.

Rules
1. Only nodes that are ready are candidates. One whose host is paused (`HostRecord`) is none; one
   whose host is quarantined takes part only where too few would be left without it.
2. Counting candidates is cheap as long as every ready node can sit: it happens after every event.
3. Where ranks are fixed, each node sits at the rank that it was started with. A node whose rank is
   taken is told so, and stands by. Fixed ranks come with a fixed master: each node's workers get
   its address and port as given on that node.
"""

from __future__ import annotations

from typing import Literal

from msgspec import Struct, field
from msgspec.structs import replace

from holdfast.core.policy import ranks, sentences
from holdfast.core.protocol.document import Ledger, roll
from holdfast.core.protocol.model import Assignment, Endpoint, NodeInfo

TYPE_CHECKING = False  # As in `typing`, without its import.
if TYPE_CHECKING:
    from holdfast.core.coordinator import CoordinatorState
    from holdfast.core.membership import HostRecord
    from holdfast.core.rounds import Round

CROWD = 8
"""With more ready nodes than this, what is looked up or printed at each arrival is kept short."""


# The seats of a round.

SeatStatus = Literal["member", "unreported", "finished", "absent"]
"""*Member*: its node is known. In a round of an earlier coordinator only the number of a seat may
be known: its node has not reported yet, had finished before, or has ended or did not report."""


MemberExit = Literal["back", "idle", "gone"]
"""Why a member is not waited for: no process of the round is left on it (*back*), there never was
one (*idle*: without a lease, or because RunRound did not arrive), or it is lost or has left
(*gone*)."""


class Seat(Struct):
    """One seat in a round, and the state of its node."""

    rank: int
    status: SeatStatus = "member"
    node: str = ""
    succeeded: bool = False
    """All workers of its node have ended well."""
    exit: MemberExit | None = None


class Seats(Struct):
    """The seats of a round by group rank, with counts of their states.

    Only the methods here change a seat.
    """

    by_rank: list[Seat]
    by_node: dict[str, Seat]
    unreported: int = 0
    succeeded: int = 0
    exited: int = 0
    suspected: set[str] = field(default_factory=set)
    """Suspected members: kept up to date by `CoordinatorState.update_ready`."""
    known_roll: int | None = None
    """The set of members, as one number (`document.roll`), if known."""

    def __len__(self) -> int:
        return len(self.by_rank)

    def __contains__(self, node: str) -> bool:
        return node in self.by_node

    def nodes(self) -> list[str]:
        """Known members, by group rank."""
        return [seat.node for seat in self.by_rank if seat.status == "member"]

    def present(self) -> list[str]:
        """Known members that are neither lost nor have left."""
        return [s.node for s in self.by_rank if s.status == "member" and s.exit != "gone"]

    def awaited(self) -> list[str]:
        """Members that may still have processes of the round."""
        return [s.node for s in self.by_rank if s.status == "member" and s.exit is None]

    def unreported_ranks(self) -> list[int]:
        return [seat.rank for seat in self.by_rank if seat.status == "unreported"]

    def is_present(self, node: str) -> bool:
        """Whether the node is a member, and neither lost nor has left."""
        seat = self.by_node.get(node)
        return seat is not None and seat.exit != "gone"

    def has_succeeded(self, node: str) -> bool:
        seat = self.by_node.get(node)
        return seat is not None and seat.succeeded

    def exit_of(self, node: str) -> MemberExit | None:
        seat = self.by_node.get(node)
        return seat.exit if seat is not None else None

    def take(self, rank: int, node: str) -> None:
        """Give this node the seat, whose node was not known."""
        self.unreported -= self.by_rank[rank].status == "unreported"
        self.by_rank[rank] = self.by_node[node] = Seat(rank, node=node)

    def note_success(self, node: str) -> None:
        seat = self.by_node[node]
        self.succeeded += not seat.succeeded
        seat.succeeded = True

    def note_exit(self, node: str, how: MemberExit) -> None:
        seat = self.by_node[node]
        self.exited += seat.exit is None
        seat.exit = how

    def give_up(self, rank: int) -> None:
        """Its node has not reported, and is not waited for any more."""
        self.unreported -= 1
        self.by_rank[rank].status = "absent"

    def give_up_all(self) -> None:
        for rank in self.unreported_ranks():
            self.give_up(rank)

    def roll(self) -> int:
        """The set of members, as one number; 0 if not known."""
        if self.known_roll is None and len(self.by_node) == len(self.by_rank):
            self.known_roll = roll(self.by_node)
        return self.known_roll or 0


def seats_of(nodes: list[str]) -> Seats:
    """The seats of a round that is formed here: these nodes, by group rank."""
    seats = [Seat(rank, node=node) for rank, node in enumerate(nodes)]
    return Seats(seats, {seat.node: seat for seat in seats})


def inherited_seats(written: Ledger) -> Seats:
    """The seats of a round that another coordinator formed, before any node has reported."""
    seats = [Seat(rank, "unreported") for rank in range(written.size)]
    for rank in written.done:
        seats[rank].status = "finished"
    return Seats(seats, {}, len(seats) - len(written.done), known_roll=written.roll or None)


# Who can sit.


def count_candidates(state: CoordinatorState, now: float) -> tuple[int, float | None]:
    """How many nodes could sit now, and when the first node that sits out may come back."""
    fixed = state.config.has_fixed_ranks
    if fixed and _is_gathering(state):
        return len(state.ready), None  # At most this many, and far from enough.
    if not fixed and not _absent(state, now) and (len(state.roles) < 2 or not state.group.holders):
        return len(state.ready), None  # A seat is a role's only once one of that role held it.
    nodes = candidates(state, now)
    out = {name: one for name, one in _absent(state, now).items() if name not in nodes}
    return _seats_for(state, nodes), _next_return(out, now) if out else None


def candidates(state: CoordinatorState, now: float) -> list[str]:
    """Ready nodes, without those that sit out, as far as the job can do without them."""
    absent = _absent(state, now)
    nodes = [name for name in state.ready if name not in absent]
    quarantined = [name for name, record in absent.items() if not record.is_paused(now)]
    for name in sorted(quarantined, key=lambda name: absent[name].until):
        if _seats_for(state, nodes) >= state.min_nodes:
            break
        nodes.append(name)
    return nodes


def count_newcomers(
    state: CoordinatorState, current: Round, now: float
) -> tuple[int, float | None]:
    """How many nodes wait for which there would be a seat, without those that sit out, and when
    the first of these may come back."""
    absent = _absent(state, now)
    waiting = [name for name in state.ready if name not in absent]
    until = _next_return(absent, now) if absent else None
    if not waiting or len(state.roles) < 2:
        return len(waiting), until
    present = [name for name in current.seats.nodes() if name in state.members]
    return len(select(state, [*present, *waiting])) - len(present), until


def paused_names(state: CoordinatorState, now: float) -> list[str]:
    """The names of ready nodes whose hosts are paused."""
    absent = _absent(state, now)
    return [state.name_of(node) for node, record in absent.items() if record.is_paused(now)]


def _seats_for(state: CoordinatorState, nodes: list[str]) -> int:
    """How many of these nodes would get a seat."""
    if state.config.has_fixed_ranks:
        return len(_by_rank(state, nodes))
    if len(state.roles) < 2 or len(nodes) < state.min_nodes:
        return min(len(nodes), state.max_nodes)
    return len(select(state, nodes))


def _absent(state: CoordinatorState, now: float) -> dict[str, HostRecord]:
    """Ready nodes that are paused or quarantined, and the record that says so. Mostly none."""
    if not any(record.is_out(now) or record.is_paused(now) for record in state.hosts.values()):
        return {}
    records = {node: state.record_of(node) for node in state.ready}
    return {node: r for node, r in records.items() if r and (r.is_out(now) or r.is_paused(now))}


def _next_return(absent: dict[str, HostRecord], now: float) -> float:
    """When the next pause or quarantine of these nodes is over."""
    ends = (at for record in absent.values() for at in (record.until, record.paused_until))
    return min(at for at in ends if at > now)


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
    """Nodes whose workers have state: members of the last round, then those of earlier rounds, the
    latest first, each in the order of their ranks.

    A coordinator that took over between two rounds knows the last members only by their reports.
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


def missing_ranks(state: CoordinatorState, now: float) -> str:
    """In words, where ranks are fixed: the ranks without a node, and those with two."""
    if not state.config.has_fixed_ranks or _is_gathering(state):
        return ""
    nodes = candidates(state, now)
    seated = _by_rank(state, nodes)
    missing = [rank for rank in range(state.max_nodes) if rank not in seated]
    rivals = None
    for other in _arrived(state, nodes):
        holder = seated.get(-1 if other.rank_hint is None else other.rank_hint)
        if holder is not None and holder.node != other.node:
            names = state.name_of(holder.node), state.name_of(other.node)
            rivals = (other.rank_hint or 0, *names)
            break
    return sentences.missing_ranks(missing, rivals)


def refused_rank(state: CoordinatorState, node: str) -> str:
    """Why a node does not get the rank that it was started with; empty if it may."""
    info, size = state.members[node].info, state.max_nodes
    rank = info.rank_hint
    if rank is None:
        return sentences.NO_RANK
    if not 0 <= rank < size:
        return sentences.rank_too_high(rank, size)
    holder = _holder(state, rank)
    if holder is None or holder.node == node:
        return ""
    return sentences.rank_taken(rank, state.name_of(holder.node))


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
