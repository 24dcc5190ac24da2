"""All details of failures: tracebacks and last lines, from a few nodes only.

Rules
1. A node reports its failures in brief: ten thousand tracebacks at once would drown heartbeats.
2. The coordinator asks the first `DESCRIBED_NODES` nodes of a round for all that they know.
"""

from __future__ import annotations

from typing import ClassVar

from holdfast.core.coordinator_hooks import CoordinatorFeature
from holdfast.core.coordinator_hooks import Effects as CoordinatorEffects
from holdfast.core.coordinator_io import Tell
from holdfast.core.node import NodeState
from holdfast.core.node_hooks import Effects, NodeFeature
from holdfast.core.node_io import NodeEvent, Report
from holdfast.core.policy import failures
from holdfast.core.protocol.messages import DescribeFailures, FailuresDescribed, FromNode, ToNode
from holdfast.core.protocol.model import Failure
from holdfast.core.rounds import Round, note_failures

TYPE_CHECKING = False  # As in `typing`, without its import.
if TYPE_CHECKING:
    from holdfast.core.coordinator import CoordinatorState

DESCRIBED_NODES = 3


class FailureDetails(CoordinatorFeature):
    """Asks nodes for the details of their failures."""

    messages = (FailuresDescribed,)

    def workers_failed(
        self, current: Round, node: str, told: tuple[Failure, ...]
    ) -> CoordinatorEffects:
        known_in_full = not any(failure.brief for failure in told)
        if known_in_full or current.described >= DESCRIBED_NODES:
            return []
        current.described += 1
        return [Tell(node, DescribeFailures(current.number))]

    def heard(
        self, state: CoordinatorState, node: str, message: FromNode, now: float
    ) -> CoordinatorEffects:
        assert isinstance(message, FailuresDescribed), "it has no other"
        current = state.group.told_round(message.round, node)
        if current is not None:
            note_failures(current, message.failures, None)
        return []


class NodeFailureDetails(NodeFeature):
    """Answers the coordinator with the details of this node's failures."""

    TAKES: ClassVar = (DescribeFailures,)

    def take(self, state: NodeState, event: NodeEvent | ToNode, now: float) -> Effects:
        assert isinstance(event, DescribeFailures), "it has no other"
        if state.round is None or state.last_round != event.round:
            return []
        described = failures.in_full(state.round.failures, state.config)
        return [Report(FailuresDescribed(event.round, described))]
