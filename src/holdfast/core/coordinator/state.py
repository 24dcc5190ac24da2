"""What the coordinator remembers, and the small requests asked of it."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct, field

from holdfast.core.coordinator.round import (
    AnyRound,
    FormingRound,
    ToldRound,
    missing_reports,
)
from holdfast.core.policy import restarts
from holdfast.core.policy.config import JobConfig
from holdfast.core.protocol import marks
from holdfast.core.protocol.document import DONE_KEPT, HostKept, Ledger, NodeLimits, brief
from holdfast.core.protocol.model import Blame, Endpoint, NodeInfo, Outcome, Term
from holdfast.core.protocol.naming import Names, host_of

TYPE_CHECKING = False  # As in `typing`, without its import.
if TYPE_CHECKING:
    from holdfast.core.policy.quarantine import HostRecord

Look = Literal[
    "form",
    "room",
    "drain",
    "save",
    "stop",
    "stopping",
    "missing",
    "awaited",
    "departed",
    "stay",
    "unrecorded",
    "close",
]
"""What the coordinator comes back for, at its time."""


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


class Penalty(Struct):
    """A host whose nodes were lost again comes back after a pause: losses cost no restart, and so
    no backoff slows them down. Where it keeps happening, see `core.coordinator.quarantine`."""

    losses: int = 0
    until: float = 0.0


class RestartBudget(Struct):
    """What failed so far, and how far the job got by then."""

    history: list[restarts.RoundFailure] = field(default_factory=list)
    remembered: dict[str, int] = field(default_factory=dict)
    """Charges that nodes claim beyond ours, by node."""
    fruitless: int = 0
    """Rounds in a row that ended without progress, whatever ended them."""
    furthest_step: int | None = None

    @property
    def charges(self) -> int:
        """How many rounds have ended because a worker failed: each is followed by a restart."""
        return len(self.history)


class FormingWait(Struct):
    """Since when the next round is waited for, and what was said of that."""

    not_before: float = 0.0
    enough_since: float | None = None
    short_since: float | None = None
    newcomer_since: float | None = None
    note: str = ""
    """What nodes are told with the next round that is announced (`core.coordinator.quarantine`)."""
    reason: str = ""
    said_at: float = 0.0


class Unrecorded(Struct):
    """The outcome is not written down yet, so nobody may be told."""

    version: int
    explain_at: float | None = None
    explained: bool = False


class Announced(Struct):
    """The outcome is written down, and nodes are told; those that are not heard, until then."""

    until: float | None = None


class Retired(Struct, frozen=True):
    """Nobody is waited for any more."""


class JobEnd(Struct):
    """The job is over."""

    outcome: Outcome
    stage: Unrecorded | Announced | Retired
    unaware: set[str] = field(default_factory=set)
    """Nodes that may not have taken the outcome yet."""
    member_lost: bool = False
    """Since then a member of the last round has gone that had not succeeded."""

    @property
    def is_told(self) -> bool:
        return not isinstance(self.stage, Unrecorded)


class Succession(Struct):
    """In a job where any node can be the coordinator: which one is, and who follows it."""

    leader: str
    """The node that this coordinator lives on."""
    successors: tuple[str, ...] = ()
    places: dict[str, Endpoint] = field(default_factory=dict)
    """Where the leader and its successors can be dialled."""
    leader_seat: int | None = None
    """The leader's own seat in the round, as it was written down."""


class NodeLoss(Struct, frozen=True):
    """With which node a round was lost (`core.coordinator.losses`)."""

    round: int
    node: str
    blame: Blame


class CoordinatorState(Struct):
    """Everything the coordinator remembers."""

    config: JobConfig
    term: Term = Term(1, 1)
    succession: Succession | None = None
    """None where nobody else can lead: what nodes remember of an earlier life is taken over."""
    began_at: float | None = None
    members: dict[str, Member] = field(default_factory=dict)
    names: Names = field(default_factory=Names)
    ready: dict[str, None] = field(default_factory=dict)
    arrivals: int = 0
    roles: set[str] = field(default_factory=set)
    round: AnyRound | None = None
    round_number: int = 0
    formed: int = 0
    """Rounds formed by this very coordinator."""
    former: tuple[str, ...] = ()
    """The members of the last round by group rank: who has state, oldest first."""
    holders: tuple[NodeInfo, ...] = ()
    """Who last held each seat: a spare takes the seat of its own role only."""
    budget: RestartBudget = field(default_factory=RestartBudget)
    penalties: dict[str, Penalty] = field(default_factory=dict)
    hosts: dict[int, HostRecord] = field(default_factory=dict)
    """On which rounds failed, by their number (`core.coordinator.quarantine`)."""
    loss: NodeLoss | None = None
    """Why the last round was lost, until another one runs."""
    wait: FormingWait = field(default_factory=FormingWait)
    closing: Outcome | None = None
    """A node wants no further round: how the job ends unless the present one succeeds."""
    end: JobEnd | None = None
    limits: NodeLimits | None = None
    """Between how many nodes the job may have, where somebody asked for that while it ran."""
    version: int = 0
    """Of what is to be written down."""
    wake_at: float | None = None
    looks: dict[Look, float] = field(default_factory=dict)
    """When to look again, and for what."""

    @property
    def embedded(self) -> bool:
        return self.succession is None

    @property
    def min_nodes(self) -> int:
        return self.config.min_nodes if self.limits is None else self.limits.least

    @property
    def max_nodes(self) -> int:
        return self.config.max_nodes if self.limits is None else self.limits.most

    @property
    def outcome(self) -> Outcome | None:
        return self.end.outcome if self.end is not None else None


def ledger(state: CoordinatorState, now: float) -> Ledger:
    """What is written down of all this."""
    current, follows = state.round, state.succession
    missing = missing_reports(current)
    course = None if current is None or isinstance(current, FormingRound) else current.course
    return Ledger(
        state.round_number,
        len(current.seats) if current is not None else 0,
        state.budget.charges,
        brief(state.outcome),
        follows.leader_seat if follows is not None else None,
        # Only where somebody else may take over does anybody have to know.
        current.seats.roll() if follows is not None and current is not None else 0,
        current.instance if current is not None else 0,
        missing.held if missing is not None else False,
        () if course is None else tuple(sorted(course.done)),
        state.closing,
        marks.top(current.seats.marks) if current is not None else "",
        _kept(state, now),
        state.limits,
        "" if course is None else course.restart,
    )


def _kept(state: CoordinatorState, now: float) -> tuple[HostKept, ...]:
    """What is held against hosts, for as long as there may be another round."""
    ends = state.outcome is not None or state.closing is not None
    records = () if ends else sorted(state.hosts.items())
    return tuple(
        HostKept(number, record.failures, record.stays, round(record.until - now, 1))
        for number, record in records
    )


def is_owed(state: CoordinatorState) -> bool:
    """Whether somebody may still have to learn the outcome from this coordinator."""
    end = state.end
    if end is None or isinstance(end.stage, Retired):
        return False
    return state.embedded or end.is_told


def note_done(state: CoordinatorState, current: ToldRound, node: str) -> None:
    """Have it written down that nobody needs to wait for this member any more."""
    rank, done = current.seats.ranks[node], current.course.done
    if rank not in done and len(done) < DONE_KEPT:
        done.add(rank)
        state.version += 1


def forget(state: CoordinatorState, node: str) -> Member | None:
    """The node is gone, or has left; what was known of it."""
    member = state.members.pop(node, None)
    if state.end is not None:
        state.end.unaware.discard(node)
    if member is not None:
        state.names.release(member.name)
        update_ready(state, node)
    return member


def name_of(state: CoordinatorState, node: str) -> str:
    """What a node is called; its host, if it is none of ours."""
    member = state.members.get(node)
    return member.name if member is not None else host_of(node)


def update_ready(state: CoordinatorState, node: str) -> None:
    """Keep what is counted of nodes true to what is known of this one."""
    member = state.members.get(node)
    if member is not None and member.ready:
        state.ready.setdefault(node, None)
    else:
        state.ready.pop(node, None)
    seats = state.round.seats if state.round is not None else None
    if seats is not None and member is not None and member.suspected and node in seats:
        seats.suspected.add(node)
    elif seats is not None:
        seats.suspected.discard(node)


def current_round(state: CoordinatorState, number: int) -> AnyRound | None:
    if state.round is not None and state.round.number == number:
        return state.round
    return None


def told_round(state: CoordinatorState, number: int, node: str) -> ToldRound | None:
    """The present round, if it is that one and the node, a member, can have heard of it."""
    current = current_round(state, number)
    if current is None or isinstance(current, FormingRound) or node not in current.seats:
        return None
    return current
