"""A node with all of its features."""

from __future__ import annotations

from holdfast.core.features.exits import NodeExits
from holdfast.core.features.failure_details import NodeFailureDetails
from holdfast.core.features.hangs import NodeHangs
from holdfast.core.features.liveness_locks import NodeLivenessLock
from holdfast.core.features.saving import NodeSaving
from holdfast.core.features.warm_start import NodeWarmStart
from holdfast.core.node import NodeState
from holdfast.core.policy.config import JobConfig


def new_node(config: JobConfig, node: str, host: str) -> NodeState:
    features = (
        NodeLivenessLock(),
        NodeFailureDetails(),
        NodeHangs(),
        NodeExits(),
        NodeSaving(),
        NodeWarmStart(),
    )
    return NodeState(config, node, host, features=features)
