"""What the machines of one node ask of each other: the effect of one is the event of another.

from the coordinator to whoever keeps its ledger   Write, Resign, Depose, Retire
from there to the coordinator                      Written
from the node to the election                      Dial, KnowEnded
from coordinator, election and line to the node    Told, CoordinatorReached, CoordinatorLost
from all of them to the user                       Say
"""

from __future__ import annotations

from msgspec import field

from holdfast.core.protocol.document import Ledger
from holdfast.core.protocol.messages import ToNode
from holdfast.core.protocol.model import Endpoint, Record, Term


class Write(Record, frozen=True):
    """Write this down, and say `Written`. A newer version makes an older one needless."""

    version: int
    ledger: Ledger
    successors: tuple[str, ...] = ()
    """Who should take over when this coordinator is lost, in this order."""
    places: dict[str, Endpoint] = field(default_factory=dict)
    """Where those, and its own node, can be dialled."""


class Written(Record, frozen=True):
    """What `Write` asked for is safe: what waited for it may be said."""

    version: int


class Resign(Record, frozen=True):
    """Somebody else should lead, and why; `leaves` if nothing runs on this node any more."""

    reason: str
    leaves: bool = False


class Depose(Record, frozen=True):
    """Somebody leads under a higher term: say nothing more."""

    term: Term


class Retire(Record, frozen=True):
    """The job is over and everybody knows: the coordinator's host may go."""


class Dial(Record, frozen=True):
    """Find the coordinator; `CoordinatorReached` or `CoordinatorLost` follows."""


class KnowEnded(Record, frozen=True):
    """This node's machine has proven that these, which were there before, have ended: one of them
    may have been the coordinator."""

    nodes: tuple[str, ...]


class Told(Record, frozen=True):
    """The coordinator said something, under this term."""

    message: ToNode
    term: Term = Term(1, 1)


class CoordinatorLost(Record, frozen=True):
    """The connection ended, or could not be made. `permanent` where dialling again is no use."""

    reason: str
    permanent: bool = False


class Say(Record, frozen=True):
    """A line for the user."""

    text: str


class HandOverAsked(Record, frozen=True):
    """The node has nothing more to do for the job, and goes; for a little while others may need
    what is here."""
