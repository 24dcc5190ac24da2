"""How much a node says about failures without being asked."""

from __future__ import annotations

from collections.abc import Iterable

from holdfast.core.agent_state import AgentState
from holdfast.core.document import digest, fit
from holdfast.core.model import Failure

BRIEF_ABOVE = 64
"""In a job of more workers than this, failures are told in brief unless details are asked for."""


def in_brief(state: AgentState, failures: Iterable[Failure]) -> tuple[Failure, ...]:
    """All of it in a small job; the essentials in a large one, where thousands come at once."""
    if state.assignment is None or state.assignment.world_size <= BRIEF_ABOVE:
        return in_full(state, failures)
    return tuple(digest(failure) for failure in failures)


def in_full(state: AgentState, failures: Iterable[Failure]) -> tuple[Failure, ...]:
    """All of it, as far as one message over the network holds it."""
    return tuple(failures) if state.config.max_nodes == 1 else fit(failures)
