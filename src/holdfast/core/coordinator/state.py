"""What the coordinator remembers, and the small questions asked of it."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct, field

from holdfast.core.policy import restarts
from holdfast.core.policy.config import JobConfig
from holdfast.core.protocol.document import DONE_KEPT, Ledger, brief, roll
from holdfast.core.protocol.messages import WorkersStood
from holdfast.core.protocol.model import Assignment, Endpoint, Failure, NodeInfo, Outcome, Tenure
from holdfast.core.protocol.naming import Names, host_of

UNKNOWN = ""
"""The name of a round's node that has not reported to a new coordinator yet."""

EndingKind = Literal["failure", "loss", "drain", "newcomers"]
"""Why a round ends (`ENDINGS`)."""
ENDINGS: dict[EndingKind, tuple[str, str]] = {
    "failure": ("a worker failed", "one restart, unless a member was lost too"),
    "loss": ("a member is lost, suspected, has left or stopped by itself", "nothing"),
    "drain": ("a member asked to be let out (SIGTERM to its agent)", "nothing"),
    "newcomers": ("nodes wait, and there is room for them", "nothing"),
}
"""What ends a round, and what it costs of the restart budget."""


class Member(Struct):
    """A node as the coordinator knows it."""

    info: NodeInfo
    arrival: int
    name: str = ""
    """What it is called in every sentence."""
    endpoint: Endpoint | None = None
    round: int = 0
    """It may still have processes of this round; 0 where it has none."""
    last_round: int = 0
    """The last round that it ran, as it said when it greeted."""
    last_rank: int = 0
    draining: str = ""
    drain_until: float = 0.0
    suspected: str = ""
    revoked: bool = False
    warned: bool = False
    """It was said that it was started with other settings."""

    @property
    def ready(self) -> bool:
        """A candidate for the next round, as far as the node itself goes."""
        free = self.endpoint is not None and not self.round
        return free and not (self.draining or self.suspected or self.revoked)


class RunningRound(Struct):
    """The round that is being announced, runs, or is being stopped."""

    number: int
    members: list[str]
    """By group rank; `UNKNOWN` where a node has not reported to a new coordinator."""
    started_at: float
    version: int = 0
    instance: int = 0
    """Of the job, when it was formed; 0 where that is not known."""
    announced: bool = False
    has_run: bool = True
    """Whether any node may have heard of it; one that never ran gave nobody a seat."""
    assignments: dict[str, Assignment] = field(default_factory=dict)
    missing_until: float | None = None
    """When the nodes that have not reported count as gone."""
    reported: bool = False
    """At least one node has: from then on an older coordinator holds nobody's lease for long."""
    ending: EndingKind | None = None
    stop_reason: str = ""
    stop_about: str = ""
    """The name of the node with which that begins, if it does."""
    stop_deadline: float | None = None
    back: set[str] = field(default_factory=set)
    """Members that have said that no process of the round is left."""
    gone: dict[str, str] = field(default_factory=dict)
    """Members that are lost or left, and why."""
    idle: set[str] = field(default_factory=set)
    """Members that started nothing: without a lease, or because the word did not reach them."""
    succeeded: set[str] = field(default_factory=set)
    done: dict[str, int] = field(default_factory=dict)
    """Members that have succeeded and may be gone by the time that somebody takes over, and their
    seats."""
    leaving: dict[str, float] = field(default_factory=dict)
    """Members that want to leave, in the order in which they said so, and how long they wait."""
    failures: dict[int, Failure] = field(default_factory=dict)
    """By rank, the first that was heard of in front."""
    described: int = 0
    furthest_step: int | None = None
    still: dict[str, WorkersStood] = field(default_factory=dict)
    """Members whose workers stand still (`core.coordinator.standstill`)."""
    hang_told: bool = False

    seats: dict[str, int] = field(default_factory=dict)
    """The group rank of every member that is known."""

    def __post_init__(self) -> None:
        self.seats = {name: rank for rank, name in enumerate(self.members) if name != UNKNOWN}

    def has(self, node: str) -> bool:
        return node in self.seats

    def seat(self, rank: int, node: str) -> None:
        """A node of an inherited round has reported, or is named because it has not."""
        self.members[rank] = node
        self.seats[node] = rank

    @property
    def is_over(self) -> bool:
        """Whether every member is back or gone: each is in one of the two at most."""
        return len(self.back) + len(self.gone) >= len(self.members)

    def awaited(self) -> tuple[str, ...]:
        """Members that may still have processes of this round."""
        done = self.back | self.gone.keys()
        return tuple(name for name in self.members if name not in done)


class Penalty(Struct):
    """A host whose nodes were lost again and again sits out for a while."""

    losses: int = 0
    until: float = 0.0


class CoordinatorState(Struct):
    """Everything the coordinator remembers."""

    config: JobConfig
    tenure: Tenure = Tenure(1, 1)
    embedded: bool = True
    """Nobody else can lead: what nodes remember of an earlier life is taken over."""
    leader: str = ""
    """The node that this coordinator lives on; empty in embedded mode."""
    leader_seat: int | None = None
    """That node's own seat in the round, as it was written down."""
    successors: tuple[str, ...] = ()
    places: dict[str, Endpoint] = field(default_factory=dict)
    """Where the leader and its successors can be dialled."""
    inherited_roll: int = 0
    """The roll of the round that was taken over, as it was written down."""
    held: bool = False
    """An earlier coordinator may hold the leases of members that have not reported (`Ledger`)."""
    departed: str = ""
    """The member of an inherited round that died with the last coordinator."""
    departed_at: float = 0.0
    began_at: float | None = None
    members: dict[str, Member] = field(default_factory=dict)
    names: Names = field(default_factory=Names)
    ready: dict[str, None] = field(default_factory=dict)
    arrivals: int = 0
    round: RunningRound | None = None
    round_number: int = 0
    former: tuple[str, ...] = ()
    """The members of the last round by group rank: who has state, oldest first."""
    seats: tuple[NodeInfo, ...] = ()
    """Who last held each seat: a spare takes the seat of its own role only."""
    roles: set[str] = field(default_factory=set)
    formed: int = 0
    """Rounds formed by this very coordinator."""
    restart_count: int = 0
    charges: int = 0
    remembered: dict[str, int] = field(default_factory=dict)
    """Charges that nodes claim beyond ours, by node."""
    history: list[restarts.RoundFailure] = field(default_factory=list)
    fruitless: int = 0
    """Rounds in a row that ended without progress, whatever ended them."""
    furthest_step: int | None = None
    penalties: dict[str, Penalty] = field(default_factory=dict)
    not_before: float = 0.0
    enough_since: float | None = None
    short_since: float | None = None
    newcomer_since: float | None = None
    waiting_for: str = ""
    said_at: float = 0.0
    version: int = 0
    closing: Outcome | None = None
    """A node wants no further round: how the job ends unless the present one succeeds."""
    outcome: Outcome | None = None
    outcome_version: int = 0
    outcome_told: bool = False
    unrecorded_at: float | None = None
    """When it is said that the outcome is not written down yet."""
    unrecorded_said: bool = False
    unaware: set[str] = field(default_factory=set)
    """Nodes that may not have taken the outcome yet."""
    close_deadline: float | None = None
    retired: bool = False
    wake_at: float | None = None
    looks: dict[str, float] = field(default_factory=dict)
    """When to look again, and for what."""


def ledger(state: CoordinatorState) -> Ledger:
    current = state.round
    members = current.members if current is not None else []
    return Ledger(
        state.round_number,
        len(members),
        state.charges,
        brief(state.outcome),
        state.leader_seat,
        _roll(state, members),
        current.instance if current is not None else 0,
        state.held,
        tuple(sorted(current.done.values())) if current is not None else (),
        state.closing,
    )


def is_owed(state: CoordinatorState) -> bool:
    """Whether somebody may still have to learn the outcome from this coordinator."""
    is_known = state.outcome is not None if state.embedded else state.outcome_told
    return is_known and not state.retired


def _roll(state: CoordinatorState, members: list[str]) -> int:
    """Only where somebody else may take over does anybody have to know."""
    if state.embedded:
        return 0
    return state.inherited_roll if UNKNOWN in members else roll(members)


def note_done(state: CoordinatorState, current: RunningRound, node: str) -> None:
    """Have it written down that nobody needs to wait for this member any more."""
    if node not in current.done and len(current.done) < DONE_KEPT:
        current.done[node] = current.seats[node]
        state.version += 1


def forget(state: CoordinatorState, node: str) -> Member | None:
    """The node is gone, or has left; what was known of it."""
    member = state.members.pop(node, None)
    state.unaware.discard(node)
    if member is not None:
        state.names.release(member.name)
        settle(state, node)
    return member


def name_of(state: CoordinatorState, node: str) -> str:
    """What a node is called; its host, if it is none of ours."""
    member = state.members.get(node)
    return member.name if member is not None else host_of(node)


def settle(state: CoordinatorState, node: str) -> None:
    """Keep `ready` true to what is known of a node."""
    member = state.members.get(node)
    if member is not None and member.ready:
        state.ready.setdefault(node, None)
    else:
        state.ready.pop(node, None)


def current_round(state: CoordinatorState, number: int) -> RunningRound | None:
    if state.round is not None and state.round.number == number:
        return state.round
    return None
