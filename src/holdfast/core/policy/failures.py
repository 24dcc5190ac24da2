"""How much a node says about failures without being asked."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec.structs import replace

from holdfast.core.policy.config import JobConfig
from holdfast.core.protocol.bounds import SECONDS_MOST, TEXT_MOST, cut
from holdfast.core.protocol.document import digest, fit
from holdfast.core.protocol.model import ErrorDetail, Failure

TOLD_AT_MOST = 256
"""Failures of one node in one message, even in brief: a frame has to hold them."""
BRIEF_ABOVE = 64
"""In a job of more workers than this, failures are told in brief unless details are asked for."""


def in_brief(failures: Iterable[Failure], config: JobConfig, ranks: int) -> tuple[Failure, ...]:
    """All of it in a small job; the essentials in a large one, where thousands come at once."""
    if ranks <= BRIEF_ABOVE:
        return in_full(failures, config)
    return tuple(digest(failure) for failure in failures)[:TOLD_AT_MOST]


def in_full(failures: Iterable[Failure], config: JobConfig) -> tuple[Failure, ...]:
    """All of it, as far as one message over the network holds it."""
    return tuple(failures) if config.max_nodes == 1 else fit(failures)[:TOLD_AT_MOST]


def within_bounds(error: ErrorDetail) -> ErrorDetail:
    """What a program says of its own end, as others take it (`core.protocol.bounds`).

    Of a traceback the end says most.
    """
    at = error.timestamp
    has_time = at is None or abs(at) <= SECONDS_MOST
    if has_time and len(error.message) <= TEXT_MOST and len(error.traceback) <= TEXT_MOST:
        return error
    return replace(
        error,
        message=cut(error.message, TEXT_MOST),
        traceback=error.traceback[-TEXT_MOST:],
        timestamp=at if has_time else None,
    )
