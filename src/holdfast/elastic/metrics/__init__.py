"""Metrics of agents and of user code, each group to a handler of the user's choice.

The group `torchelastic` holds what the agent itself puts. See `api` for the rules.
"""

from __future__ import annotations

from holdfast.elastic.metrics import api
from holdfast.elastic.metrics.api import *  # noqa: F403 - the names of `api`, and one more
from holdfast.elastic.metrics.api import MetricsConfig

__all__ = ["initialize_metrics"]
__all__ += api.__all__


def initialize_metrics(cfg: MetricsConfig | None = None) -> None:
    """Called by an agent before its first metric: does nothing, and is there to be replaced."""
