"""A node with all of its features."""

from __future__ import annotations

from holdfast.core.features.exits import Exits
from holdfast.core.features.hangs.node import Hangs
from holdfast.core.features.saving.node import Saving
from holdfast.core.features.warm_start import WarmStart
from holdfast.core.node import NodeState
from holdfast.core.policy.config import JobConfig


def new_node(config: JobConfig, node: str, host: str) -> NodeState:
    features = (Hangs(), Exits(), Saving(), WarmStart())
    return NodeState(config, node, host, features=features)
