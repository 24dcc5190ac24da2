"""What the coordinator's core is told (events) and what it asks for (effects).

Those that another machine of the node takes, or asks for, are in `core.border`.
"""

from __future__ import annotations

from typing import Literal

from holdfast.core.border import Depose as Depose
from holdfast.core.border import HandOverAsked as HandOverAsked
from holdfast.core.border import Resign as Resign
from holdfast.core.border import Retire as Retire
from holdfast.core.border import Write as Write
from holdfast.core.border import Written as Written
from holdfast.core.membership import NodeGone, NodeHeardAgain, NodeSuspected
from holdfast.core.protocol.document import NodeLimits
from holdfast.core.protocol.messages import FromNode, ToNode
from holdfast.core.protocol.model import Record, Term

Topic = Literal["", "restart", "re-form", "waiting"]
"""What an explanation is about: a round that follows at a charge or free of it, or a wait."""

OperatorWish = Literal["restart", "stop", "scale", "save"]


class Heard(Record, frozen=True):
    """A node said something."""

    node: str
    message: FromNode


class LoopDelayed(Record, frozen=True):
    """The coordinator itself stood still for this long: a check that was due came late."""

    late_s: float


class OperatorAsked(Record, frozen=True):
    """Somebody wants something of the whole job (`core.features.commands`)."""

    wish: OperatorWish
    by: str
    """Who, in words."""
    limits: NodeLimits | None = None
    """Between how many nodes the job is to have, to scale it."""
    within_s: float = 0.0
    """How long workers have to agree and to save."""


class CoordinatorTimerFired(Record, frozen=True):
    """A timer that was asked for with `WakeCoordinator` has run out."""

    name: str


class Tell(Record, frozen=True):
    """Send this to a node, under the coordinator's term; lost if it has no connection."""

    node: str
    message: ToNode


class Revoke(Record, frozen=True):
    """Answer no more heartbeats of this node."""

    node: str


class Reinstate(Record, frozen=True):
    """Answer this node again: it did stop its workers after all."""

    node: str


class Disconnect(Record, frozen=True):
    """Close whatever connection this node has: it counts as gone, and may come as a newcomer."""

    node: str


class Refuse(Record, frozen=True):
    """Hang up on a node that said what nobody honest says, and count that by its `kind`."""

    node: str
    kind: str
    reason: str


class Raise(Record, frozen=True):
    """Speak under this term from now on: nodes remember an earlier life of the job."""

    term: Term


class WakeCoordinator(Record, frozen=True):
    """Come back with `CoordinatorTimerFired` after this long; replaces one of that name."""

    name: str
    after_s: float


class Explain(Record, frozen=True):
    """A decision or a wait, in the words that the user reads."""

    text: str
    about: str = ""
    """The node with whose name the text begins, if it does: on itself it is "this node"."""
    topic: Topic = ""
    pause_s: float = 0.0
    """How long the next round waits at least."""
    within_s: float = 0.0
    """How long a wait can last at most, where that is known."""


CoordinatorEvent = (
    Heard
    | Written
    | NodeSuspected
    | NodeHeardAgain
    | NodeGone
    | LoopDelayed
    | HandOverAsked
    | OperatorAsked
    | CoordinatorTimerFired
)
CoordinatorEffect = (
    Tell
    | Write
    | Revoke
    | Reinstate
    | Disconnect
    | Refuse
    | Raise
    | Depose
    | Resign
    | Retire
    | WakeCoordinator
    | Explain
)
