"""Events and effects of the coordinator's core.

Those shared with another machine of the node are in `core.border`.
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
"""The subject of an explanation: a round that follows at a charge or free of it, or a wait."""

OperatorCommand = Literal["restart", "stop", "scale", "save"]


class Heard(Record, frozen=True):
    """A message from a node."""

    node: str
    message: FromNode


class LoopDelayed(Record, frozen=True):
    """The coordinator itself stalled for this long: a check that was due came late."""

    late_s: float


class OperatorAsked(Record, frozen=True):
    """A command for the whole job (`core.features.commands`)."""

    command: OperatorCommand
    by: str
    """The operator, in words."""
    limits: NodeLimits | None = None
    """The least and the greatest number of nodes, for `scale`."""
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
    """Answer this node again: it has stopped its workers after all."""

    node: str


class Disconnect(Record, frozen=True):
    """Close this node's connection, if any: it counts as gone, and may return as a newcomer."""

    node: str


class Refuse(Record, frozen=True):
    """Hang up on a node that sent a message no honest node sends, and count it by `kind`."""

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
    """The node with whose name the text begins, if any: on itself it is "this node"."""
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
