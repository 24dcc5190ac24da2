"""The hooks by which a feature extends a node's machine.

The kernel (`core.node`) knows no feature: it calls these, in the order of `NodeState.features`.
Each hook does nothing unless a feature overrides it. A feature makes its state of a round anew
when the round starts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from msgspec import Struct

from holdfast.core.node_io import NodeEffect, NodeEvent, NodeStarted
from holdfast.core.protocol.messages import StopRound, ToNode
from holdfast.core.protocol.model import Failure, Record

if TYPE_CHECKING:
    from holdfast.core.node import NodeState, WorkerHere

Effects = list[NodeEffect]


class NodeFeature(Struct):
    """A part of a node beside its kernel, with a state of its own."""

    TAKES: ClassVar[tuple[type[Record] | str, ...]] = ()
    """The events, messages of the coordinator and timers that this feature handles."""

    def take(self, state: NodeState, event: NodeEvent | ToNode, now: float) -> Effects:
        """Handle an event, a message or a timer of its own."""
        raise NotImplementedError

    def started(self, state: NodeState, event: NodeStarted) -> Effects:
        return []

    def connected(self, state: NodeState) -> Effects:
        """The node has just greeted a coordinator."""
        return []

    def delays_joining(self, state: NodeState) -> bool:
        """Whether the node is not to join yet; the feature calls `node.ready` when it may."""
        return False

    def in_greeting(self, state: NodeState) -> dict[str, Any]:
        """Fields of a greeting."""
        return {}

    def in_report(self, state: NodeState, now: float) -> dict[str, Any]:
        """Fields of the `RoundReport` in a greeting."""
        return {}

    def round_started(self, state: NodeState) -> Effects:
        """The workers of a new round are about to be started."""
        return []

    def worker_exited(self, state: NodeState, worker: WorkerHere) -> Effects:
        return []

    def is_excused(self, state: NodeState, failure: Failure) -> bool:
        """Whether a worker died of this feature's doing, and has not failed."""
        return False

    def may_leave_now(self, state: NodeState) -> bool:
        """Whether a node that is asked to leave has nothing to wait for."""
        return True

    def before_stop(self, state: NodeState, message: StopRound) -> Effects:
        """Effects, if the feature stops the workers itself, a little later; else none."""
        return []

    def job_closed(self, state: NodeState) -> Effects:
        """The coordinator has told how the job ended."""
        return []

    def finishing(self, state: NodeState) -> Effects:
        return []
