"""What the state machines of one node tell each other: an effect of one is an event of another.

from the coordinator to the keeper of its ledger   Write, Resign, Depose, Retire
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
    """Write this down, then answer `Written`. A newer version replaces an older one."""

    version: int
    ledger: Ledger
    successors: tuple[str, ...] = ()
    """The successors if this coordinator is lost, in order."""
    addresses: dict[str, Endpoint] = field(default_factory=dict)
    """The addresses of the successors and of the coordinator's own node."""


class Written(Record, frozen=True):
    """The version that `Write` named is stored: messages that waited for it may be sent."""

    version: int


class Resign(Record, frozen=True):
    """Hand over leadership, for this reason; `leaves` if nothing runs on this node any more."""

    reason: str
    leaves: bool = False


class Depose(Record, frozen=True):
    """Another node leads under a higher term: send nothing more."""

    term: Term


class Retire(Record, frozen=True):
    """The job is over and all nodes know: the coordinator's host may exit."""


class Dial(Record, frozen=True):
    """Find the coordinator; `CoordinatorReached` or `CoordinatorLost` follows."""


class KnowEnded(Record, frozen=True):
    """This machine has proven that these nodes, which ran here before, have ended: one of them
    may have been the coordinator."""

    nodes: tuple[str, ...]


class Told(Record, frozen=True):
    """A message from the coordinator, under this term."""

    message: ToNode
    term: Term = Term(1, 1)


class CoordinatorLost(Record, frozen=True):
    """The connection ended or failed. `permanent` if dialling again cannot help."""

    reason: str
    permanent: bool = False


class Say(Record, frozen=True):
    """A line for the user."""

    text: str


class HandOverAsked(Record, frozen=True):
    """The node has no more work for the job and leaves; others may need its coordinator or its
    outcome for a little while."""
