"""A node's reports of its workers' failures, in full or in brief."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec.structs import replace

from holdfast.core.policy.config import JobConfig
from holdfast.core.protocol.bounds import SECONDS_MOST, cut
from holdfast.core.protocol.document import TEXT_TOLD, digest, fit
from holdfast.core.protocol.messages import FrameGroup
from holdfast.core.protocol.model import Assignment, ErrorDetail, Failure

TOLD_AT_MOST = 256
"""Failures of one node in one message, even in brief: a frame has to hold them."""
BRIEF_ABOVE = 64
"""In a job of more workers than this, failures are told in brief unless details are asked for."""
ERROR_MOST = TEXT_TOLD // 4
"""Characters of a message, and of a traceback: one failure always fits into a message in full."""
KEPT_ALIVE_MOST_S = 3600.0
"""How much earlier than its end an exception is assumed at most: wall clocks may be set."""


Failures = Mapping[int, Failure]
"""Of a node's round, by local rank."""


def in_brief(told: Failures, config: JobConfig, round: Assignment) -> tuple[Failure, ...]:
    """All of it in a small job; the essentials in a large one, where thousands come at once."""
    if round.world_size <= BRIEF_ABOVE:
        return in_full(told, config)
    return tuple(digest(failure) for failure in told.values())[:TOLD_AT_MOST]


def in_full(told: Failures, config: JobConfig) -> tuple[Failure, ...]:
    """All of it, as far as one message over the network holds it."""
    known = told.values()
    return tuple(known) if config.max_nodes == 1 else fit(known)[:TOLD_AT_MOST]


def within_bounds(error: ErrorDetail) -> ErrorDetail:
    """A program's own message about its end, within the bounds (`core.protocol.bounds`).

    The end of a traceback is the most useful part.
    """
    at = error.timestamp
    has_time = at is None or abs(at) <= SECONDS_MOST
    if has_time and len(error.message) <= ERROR_MOST and len(error.traceback) <= ERROR_MOST:
        return error
    return replace(
        error,
        message=cut(error.message, ERROR_MOST),
        traceback=error.traceback[-ERROR_MOST:],
        timestamp=at if has_time else None,
    )


def raised_s(error: ErrorDetail, ended_at: float) -> float:
    """How long before its end a worker had raised, both by the clock of its own host."""
    raised_at = error.timestamp
    if raised_at is None or not ended_at:
        return 0.0
    unsure_s = 1.0 if raised_at == int(raised_at) else 0.0  # Some report whole seconds.
    return min(max(0.0, ended_at - raised_at - unsure_s), KEPT_ALIVE_MOST_S)


def in_words(told: FrameGroup | None) -> tuple[str, bool]:
    """A worker's location, in words, and whether it waited for other ranks there."""
    if told is None:
        return "", False
    from holdfast.core.policy.stacks import told_location  # Few jobs ever need it.

    location = told_location(told)
    return cut(location.shortly()), location.in_collective
