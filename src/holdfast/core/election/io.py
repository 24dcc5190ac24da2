"""What goes into the machine of the election, and what comes out of it (`core.election.step`)."""

from __future__ import annotations

from msgspec import field

from holdfast.core.protocol.document import Document, Ledger
from holdfast.core.protocol.model import Endpoint, Outcome, Record, Term

# Events.


class ElectionStarted(Record, frozen=True):
    """The node is up: look who leads."""


class RegisterRead(Record, frozen=True):
    """The register's content, or None where nothing was ever written."""

    document: Document | None
    token: int
    expired: bool = False
    """The register itself knows that whoever wrote last has been silent beyond its term."""


class RegisterWrote(Record, frozen=True):
    """The answer to a write: whether it was done, and what is there now."""

    has_set: bool
    document: Document | None
    token: int
    nonce: str = ""
    """Of the document that was to be written: an answer to an older write means nothing."""


class RegisterUnclear(Record, frozen=True):
    """No answer came, and none will: the request may or may not have been carried out."""

    wrote: bool
    nonce: str = ""
    """Of the document that was to be written."""
    reason: str = ""
    refused: bool = False
    """The register will not serve us: asking again is of no use."""


class LedgerWanted(Record, frozen=True):
    """The coordinator wants this written down."""

    version: int
    ledger: Ledger
    successors: tuple[str, ...]
    places: dict[str, Endpoint] = field(default_factory=dict)


class LeaderTetherEnded(Record, frozen=True):
    """All processes of the leader's node are gone."""

    leader: str


class DialWanted(Record, frozen=True):
    """The node has no connection to a coordinator: whom should it try next?"""


class NodesEnded(Record, frozen=True):
    """This node's machine has proven that these, which were there before, have ended."""

    nodes: tuple[str, ...]


class Pointed(Record, frozen=True):
    """A coordinator has welcomed the node: who leads, and who would follow."""

    leader: str
    successors: tuple[str, ...]
    places: dict[str, Endpoint] = field(default_factory=dict)
    """Where each of them can be dialled."""
    term: Term = Term()
    """Under which it was said."""


class Outranked(Record, frozen=True):
    """Somebody has heard of a higher term than ours."""

    term: Term


class ResignationWanted(Record, frozen=True):
    """Somebody else should lead, and why; `leaves` if nothing runs on this node any more."""

    reason: str
    leaves: bool = False


class NodeLeaves(Record, frozen=True):
    """The node has nothing more to do for the job; for a little while others may need it."""


class OutcomeKnown(Record, frozen=True):
    """The job is over, and everybody knows."""


class RegisterForgot(Record, frozen=True):
    """What `ForgetRegister` asked for is arranged, or cannot be."""


class ElectionTimerFired(Record, frozen=True):
    name: str


ElectionEvent = (
    ElectionStarted
    | RegisterRead
    | RegisterWrote
    | RegisterUnclear
    | LedgerWanted
    | LeaderTetherEnded
    | DialWanted
    | NodesEnded
    | Pointed
    | Outranked
    | ResignationWanted
    | NodeLeaves
    | OutcomeKnown
    | RegisterForgot
    | ElectionTimerFired
)

# Effects.


class ReadRegister(Record, frozen=True):
    """`RegisterRead` follows, or `RegisterUnclear` when no answer came."""


class WriteRegister(Record, frozen=True):
    """Compare-and-set. `RegisterWrote` follows, or `RegisterUnclear` when no answer came."""

    document: Document
    token: int


class WatchRegister(Record, frozen=True):
    """Have every change of the register told as `RegisterRead`, or no longer.

    `RegisterUnclear` follows when that breaks off.
    """

    on: bool


class ForgetRegister(Record, frozen=True):
    """Have the register forget the job after this long; `RegisterForgot` follows."""

    after_s: float


class Lead(Record, frozen=True):
    """Be the coordinator from now on, beginning with what is written down.

    `holder_possible` is set when an earlier one may still be holding leases; `dead` is the node
    of one of whose end there is proof, and `dead_seat` its seat in the round, if it had one.
    """

    document: Document
    holder_possible: bool
    dead: str = ""
    dead_seat: int | None = None


class Confirm(Record, frozen=True):
    """Tell the coordinator that this version is written down."""

    version: int


class StepDown(Record, frozen=True):
    """Be the coordinator no more: forget its state, close its connections."""

    reason: str


class DialNodes(Record, frozen=True):
    """Dial these nodes, all at once: one of them leads, or may lead by now."""

    nodes: tuple[str, ...]
    endpoints: tuple[Endpoint, ...] = ()
    """Where those can be dialled of whom it is known."""


class NobodyFound(Record, frozen=True):
    """There is nobody to dial, and why; `permanent` if that will not change."""

    reason: str
    permanent: bool = False


class Announce(Record, frozen=True):
    """Something that the user should know."""

    text: str


class LearnOutcome(Record, frozen=True):
    """The job is over already, by what was written under this term."""

    outcome: Outcome
    term: Term


class WakeElection(Record, frozen=True):
    """Come back with `ElectionTimerFired` after this long; replaces one of that name."""

    name: str
    after_s: float


ElectionEffect = (
    ReadRegister
    | WriteRegister
    | WatchRegister
    | ForgetRegister
    | Lead
    | Confirm
    | StepDown
    | DialNodes
    | NobodyFound
    | LearnOutcome
    | Announce
    | WakeElection
)
