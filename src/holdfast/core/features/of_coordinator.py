"""The features of a coordinator, in the order in which each hook calls them."""

from __future__ import annotations

from holdfast.core.coordinator_hooks import CoordinatorFeature
from holdfast.core.features.commands import Commands
from holdfast.core.features.exits import Exits
from holdfast.core.features.failure_details import FailureDetails
from holdfast.core.features.hangs import Hangs
from holdfast.core.features.saving import Saving
from holdfast.core.policy.config import JobConfig


def features_of(config: JobConfig) -> tuple[CoordinatorFeature, ...]:
    features: tuple[CoordinatorFeature, ...] = (
        FailureDetails(),
        Exits(),
        Saving(),
        Hangs(),
        Commands(),
    )
    if config.max_nodes == 1:
        return features  # There is no other host, and nothing of quarantine is loaded.
    from holdfast.core.features.liveness_locks import LivenessLocks
    from holdfast.core.features.quarantine import HostQuarantine

    return (LivenessLocks(), *features, HostQuarantine())
