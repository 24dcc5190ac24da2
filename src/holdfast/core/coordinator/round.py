"""A round as the coordinator knows it: a type for each of its stages, with what that stage has.

    FormingRound ──written down──▶ RunningRound ◀──all have reported── InheritedRound
         │                              │                                    │
         └──────────────────────────────┴─────── whatever ends it ───────────┘
                                        ▼
                                  StoppingRound ──every member is back or gone──▶ judged

Rules
1. Nobody has heard of a round that forms: what is said of it is ignored.
2. A seat is a node's. In a round that an earlier coordinator formed it may also be one of which
   only the number is known: its node has not reported yet, did not in time, has ended, or had
   finished.
3. A node has one seat at most.
4. A member of a round that stops is waited for until it is back or gone; it is one of the two.
"""

from __future__ import annotations

from typing import Literal

from msgspec import Struct, field

from holdfast.core.protocol.document import Ledger, roll
from holdfast.core.protocol.marks import MarkTree
from holdfast.core.protocol.messages import EndingKind, StopRound, WorkersStalled
from holdfast.core.protocol.model import Assignment, Failure

SaveResult = Literal["saved", "nobody looks", "given up"]
ENDINGS: dict[EndingKind, tuple[str, str]] = {
    "failure": ("a worker failed", "one restart, unless a member was lost too"),
    "loss": ("a member is lost, suspected, has left or stopped by itself", "nothing"),
    "drain": ("a member was asked to leave (SIGTERM, USR1 or USR2 to its agent)", "nothing"),
    "newcomers": ("nodes wait, and there is room for them", "nothing"),
    "asked": ("somebody asked for it (`holdfast restart`, or `scale` to fewer nodes)", "nothing"),
}
"""What ends a round, and what it costs of the restart budget."""


# Seats.


class NodeSeat(Struct, frozen=True):
    """The seat of a node that is known."""

    node: str


class UnreportedSeat(Struct, frozen=True):
    """Whoever sits there has not reported to the new coordinator yet."""


class FinishedSeat(Struct, frozen=True):
    """The workers there had succeeded before: whose they were does not matter any more."""


class AbsentSeat(Struct, frozen=True):
    """Whoever sat there has ended, or did not report in time and counts as gone."""


Seat = NodeSeat | UnreportedSeat | FinishedSeat | AbsentSeat


class RoundSeats(Struct):
    """Who sits where."""

    by_rank: list[Seat]
    ranks: dict[str, int]
    """The group rank of every node that is known."""
    unreported: int = 0
    """How many seats are `UnreportedSeat`."""
    known_roll: int | None = None
    """Who the members are, as one number (`document.roll`), where that is known."""
    marks: MarkTree = ()
    """By which what is told of members that have ended is checked; where inherited, its top."""
    suspected: set[str] = field(default_factory=set)
    """Nodes among them that may be lost: kept up to date by `state.update_ready`."""

    def __len__(self) -> int:
        return len(self.by_rank)

    def __contains__(self, node: str) -> bool:
        return node in self.ranks

    def nodes(self) -> list[str]:
        """Those that are known, by group rank."""
        return [seat.node for seat in self.by_rank if isinstance(seat, NodeSeat)]

    def take(self, rank: int, node: str) -> None:
        """The seat, which was nobody's that is known, is this node's."""
        if isinstance(self.by_rank[rank], UnreportedSeat):
            self.unreported -= 1
        self.by_rank[rank] = NodeSeat(node)
        self.ranks[node] = rank

    def unreported_ranks(self) -> list[int]:
        return [n for n, seat in enumerate(self.by_rank) if isinstance(seat, UnreportedSeat)]

    def lose(self, rank: int) -> None:
        """Whoever sat there had not reported, and is gone."""
        self.by_rank[rank] = AbsentSeat()
        self.unreported -= 1

    def give_up(self) -> None:
        """Nobody waits for those who have not reported any more."""
        for rank in self.unreported_ranks():
            self.by_rank[rank] = AbsentSeat()
        self.unreported = 0

    def roll(self) -> int:
        """Who the members are, as one number; 0 where that cannot be said."""
        if self.known_roll is None and len(self.ranks) == len(self.by_rank):
            self.known_roll = roll(self.ranks)
        return self.known_roll or 0


def seats_of(nodes: list[str]) -> RoundSeats:
    """The seats of a round that is formed here: these nodes, by group rank."""
    return RoundSeats([NodeSeat(node) for node in nodes], {n: rank for rank, n in enumerate(nodes)})


def seats_inherited(written: Ledger) -> RoundSeats:
    """The seats of a round that another coordinator formed, of which nobody has reported yet."""
    seats: list[Seat] = [UnreportedSeat()] * written.size
    for rank in written.done:
        seats[rank] = FinishedSeat()
    marks = ((written.marks,),) if written.marks else ()
    return RoundSeats(seats, {}, len(seats) - len(written.done), written.roll or None, marks)


# What is known of a round that its members have heard of.


class HangCase(Struct):
    """The whole job stands still (`core.coordinator.stalls`)."""

    node: str
    """On which a worker is to be ended for it; empty where none is."""
    rank: int | None = None
    """Which one, where that is known."""
    told: set[str] = field(default_factory=set)


class SaveEnd(Struct, frozen=True):
    """What came of a save after which the round went on."""

    number: int
    result: SaveResult
    step: int | None = None


class RoundCourse(Struct):
    """What members have told of it so far."""

    succeeded: set[str] = field(default_factory=set)
    done: set[int] = field(default_factory=set)
    """Seats of members that have succeeded and may be gone by the time that somebody takes over."""
    failures: dict[int, Failure] = field(default_factory=dict)
    """By rank, the first that was heard of in front."""
    described: int = 0
    """How many nodes were asked for all that they know of their failures."""
    furthest_step: int | None = None
    still: dict[str, WorkersStalled] = field(default_factory=dict)
    """Members whose workers stand still (`core.coordinator.stalls`)."""
    hang: HangCase | None = None
    """While all of them do."""
    left: dict[str, None] = field(default_factory=dict)
    """Members all of whose workers have ended after they were told to save."""
    saves: int = 0
    """The number of the last save (`Saving`)."""
    save: SaveEnd | None = None
    """What came of the last save after which the round went on."""
    restart: str = ""
    """Who asked for its end (`holdfast restart`): it comes when all have saved."""

    @property
    def has_success(self) -> bool:
        """Whether any member has succeeded, of those too of whom only the seat is known."""
        return bool(self.succeeded or self.done)

    def has_all_succeeded(self, seats: RoundSeats) -> bool:
        return not seats.unreported and len(self.succeeded) == len(seats.ranks)


class Saving(Struct):
    """Workers of a round are to save (`core.coordinator.saving`)."""

    reason: str
    until: float
    unheard: set[str]
    """Members that have not passed it on yet."""
    unsaved: set[str] = field(default_factory=set)
    """Members with workers that have something left to save."""
    furthest: int | None = None
    """The furthest step that any worker waits at, if any said so."""
    step: int | None = None
    """At which all of them save, once it is decided."""
    about: str = ""
    """The name of the node with which the reason begins."""
    number: int = 0
    """Which save of this round it is."""
    leaves: bool = True
    """The round ends when all have saved."""
    requested: bool = False
    """It began with `holdfast save`, as far as is known."""
    listened: bool = False
    """There are workers that ask."""
    unasked: set[str] = field(default_factory=set)
    """Members with workers that have never asked."""
    is_late: bool = False
    """It was said that it takes long."""


class MissingReports(Struct):
    """Not all nodes of a round have reported to the coordinator that took it over."""

    until: float
    """When those that have not count as gone."""
    held: bool = False
    """An earlier coordinator may hold the leases of those that have not (`Ledger`)."""
    reported: bool = False
    """One that had not succeeded has: from then on an older coordinator holds no lease for long."""


class DepartedLeader(Struct, frozen=True):
    """The member that died with the earlier coordinator, and when nothing of it can be left."""

    node: str
    gone_at: float


class StopCause(Struct, frozen=True):
    """Why a round is stopped."""

    kind: EndingKind
    reason: str
    about: str = ""
    """The name of the node with which the reason begins, if it does."""
    suspicion: bool = False
    """It may turn out to be true, or not."""
    locate: bool = False
    """Where the workers are that still run says more of it than those that failed."""


MemberExit = Literal["back", "idle", "gone"]
"""Why a member is not waited for any more: no process of the round is left on it (*back*), nor ever
was there one (*idle*: without a lease, or because the word did not reach it); or it is lost, or has
left (*gone*)."""


# The stages.


class FormingRound(Struct):
    """Who sits where is settled, and being written down: nobody has been told."""

    number: int
    instance: int
    """Of the job."""
    seats: RoundSeats
    version: int
    """It is announced once this is written."""
    formed_at: float
    assignments: dict[str, Assignment]
    leaving: dict[str, float] = field(default_factory=dict)
    """Members that want to leave, in the order in which they said so, and how long they wait."""
    note: str = ""
    """What its members are told of hosts that are kept out (`core.coordinator.quarantine`)."""

    def announced(self, now: float) -> RunningRound:
        known = (self.number, self.instance, self.seats)
        return RunningRound(*known, now, self.leaving, self.assignments, note=self.note)

    def stopping(self, cause: StopCause, deadline: float) -> StoppingRound:
        known = (self.number, self.instance, self.seats, self.formed_at, cause, deadline)
        return StoppingRound(*known, self.assignments, has_run=False)


class RunningRound(Struct):
    """Its members run, as far as they have told."""

    number: int
    instance: int
    """Of the job, when it was formed; 0 where that is not known."""
    seats: RoundSeats
    started_at: float
    leaving: dict[str, float]
    assignments: dict[str, Assignment] = field(default_factory=dict)
    """What each was told; nothing, where another coordinator told it."""
    course: RoundCourse = field(default_factory=RoundCourse)
    gone: set[str] = field(default_factory=set)
    """Members that are lost or have left, after they had succeeded."""
    saving: Saving | None = None
    note: str = ""

    def stopping(self, cause: StopCause, deadline: float) -> StoppingRound:
        known = (self.number, self.instance, self.seats, self.started_at, cause, deadline)
        stopping = StoppingRound(*known, self.assignments, self.course)
        stopping.exited = dict.fromkeys(self.gone, "gone")
        return stopping


class InheritedRound(Struct):
    """An earlier coordinator formed it, and not all of its members have reported to this one."""

    number: int
    instance: int
    seats: RoundSeats
    started_at: float
    """Not known: it counts as begun when all must have reported."""
    missing: MissingReports
    course: RoundCourse
    leaving: dict[str, float] = field(default_factory=dict)
    gone: set[str] = field(default_factory=set)
    saving: Saving | None = None

    def whole(self, now: float) -> RunningRound:
        known = (self.number, self.instance, self.seats)
        running = RunningRound(*known, now, self.leaving, course=self.course, gone=self.gone)
        running.saving = self.saving
        return running

    def stopping(self, cause: StopCause, deadline: float) -> StoppingRound:
        known = (self.number, self.instance, self.seats, self.started_at, cause, deadline)
        stopping = StoppingRound(*known, course=self.course, missing=self.missing)
        stopping.exited = dict.fromkeys(self.gone, "gone")
        return stopping


class StoppingRound(Struct):
    """Its members were told to stop, and some are waited for."""

    number: int
    instance: int
    seats: RoundSeats
    started_at: float
    cause: StopCause
    deadline: float
    """When those that have not stopped lose their leases."""
    assignments: dict[str, Assignment] = field(default_factory=dict)
    course: RoundCourse = field(default_factory=RoundCourse)
    has_run: bool = True
    """Whether any node may have heard of it; one that never ran gave nobody a seat."""
    exited: dict[str, MemberExit] = field(default_factory=dict)
    """Members that are not waited for any more."""
    lost: str = ""
    """In words: the first member that was lost, or whose lease ended, before it had succeeded."""
    lost_hosts: set[str] = field(default_factory=set)
    """Where members were that were proven to be gone before they had succeeded."""
    missing: MissingReports | None = None
    departed: DepartedLeader | None = None
    goes_on: bool = False
    """Whether enough were left, when it was ended, who did not want to leave."""
    is_explained: bool = False
    """Why it ends was said, since that takes long."""

    @property
    def is_over(self) -> bool:
        """Whether nobody is waited for any more."""
        return not self.seats.unreported and len(self.exited) == len(self.seats.ranks)

    def awaited(self) -> list[str]:
        """Members that may still have processes of this round, as far as they are known."""
        return [node for node in self.seats.nodes() if node not in self.exited]

    def order(self) -> StopRound:
        cause = self.cause
        return StopRound(
            self.number, cause.reason, cause.about, self.goes_on, cause.locate, cause.kind
        )


ToldRound = RunningRound | InheritedRound | StoppingRound
"""A round that its members have heard of."""
AnyRound = FormingRound | ToldRound


def is_present(current: AnyRound, node: str) -> bool:
    """Whether the node is a member, and neither lost nor gone by itself."""
    if node not in current.seats:
        return False
    match current:
        case FormingRound():
            return True
        case RunningRound() | InheritedRound():
            return node not in current.gone
        case StoppingRound():
            return current.exited.get(node) != "gone"


def staying_members(current: FormingRound | RunningRound | InheritedRound) -> int:
    """How many members are there, as far as they are known, and do not want to leave."""
    gone = 0 if isinstance(current, FormingRound) else len(current.gone)
    return len(current.seats.ranks) - gone - len(current.leaving)


def missing_reports(current: AnyRound | None) -> MissingReports | None:
    """What is missing, where not all nodes of an inherited round have reported."""
    if isinstance(current, InheritedRound | StoppingRound):
        return current.missing
    return None
