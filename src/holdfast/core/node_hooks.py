"""What a feature may add to a node's machine, hook by hook.

The kernel (`core.node`) knows no feature: it calls these, in the order of `NodeState.features`.
Each hook does nothing unless a feature overrides it. What a feature knows of a round it makes anew
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
    """The events, messages of the coordinator and timers that are its own."""

    def take(self, state: NodeState, event: NodeEvent | ToNode, now: float) -> Effects:
        """An event, a message or a timer of its own has come."""
        raise NotImplementedError

    def started(self, state: NodeState, event: NodeStarted) -> Effects:
        return []

    def connected(self, state: NodeState) -> Effects:
        """The node has just greeted a coordinator."""
        return []

    def in_greeting(self, state: NodeState, now: float) -> dict[str, Any]:
        """Fields of the `RoundReport` in a greeting."""
        return {}

    def round_started(self, state: NodeState) -> Effects:
        return []

    def worker_exited(self, state: NodeState, worker: WorkerHere) -> Effects:
        return []

    def is_excused(self, state: NodeState, failure: Failure) -> bool:
        """Whether a worker died of what this feature did to it, and has not failed."""
        return False

    def may_leave_now(self, state: NodeState) -> bool:
        """Whether a node that is asked to leave has nothing to wait for."""
        return True

    def before_stop(self, state: NodeState, message: StopRound) -> Effects:
        """Effects, where the feature stops the workers itself, a little later; else none."""
        return []

    def finishing(self, state: NodeState) -> Effects:
        return []
