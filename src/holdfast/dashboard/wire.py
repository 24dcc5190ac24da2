"""The messages to the page. `frontend/src/model.ts` is the mirror of this file.

Times are seconds since 1970 on the clock of the host that serves the page.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import msgspec
from msgspec import Struct

from holdfast.observe.history import NodeRun
from holdfast.transport.http_model import event

JobState = Literal[
    "waiting", "running", "late", "stopping", "succeeded", "failed", "stopped", "cut off"
]
"""Late: it runs, and no worker has made a step for long. Cut off: a journal that ends early."""

WORKER_STATES = (
    "absent", "starting", "running", "slow", "still", "stopping", "failed", "finished", "late",
)  # fmt: skip
"""Sent as their numbers."""


class OutcomeShown(Struct, frozen=True):
    verdict: str
    reason: str


class DashboardShown(Struct, frozen=True):
    """The same page of another node, for when its own agent is gone, with its key."""

    node: str
    url: str
    key: str


class LedgerPart(Struct, frozen=True):
    name: str
    words: str
    seconds: float


class LedgerShown(Struct, frozen=True):
    """Where the time went. The first part is the useful one."""

    start: float
    total_s: float
    parts: tuple[LedgerPart, ...]


class LaneShown(Struct, frozen=True):
    """One node: when it was there, and when workers of which round ran on it."""

    node: str
    start: float
    end: float | None
    """None while it is there."""
    runs: Sequence[NodeRun]


class JobShown(Struct, frozen=True):
    """The job as a whole."""

    run: str
    state: JobState
    words: str
    round: int
    nodes: int
    ranks: int
    restarts: int
    restarts_most: int
    step: int | None
    waiting: str
    outcome: OutcomeShown | None
    coordinator: str
    served_by: str
    actions: tuple[str, ...]
    is_journal: bool
    notes: tuple[str, ...] = ()
    """Facts that are missing, in sentences."""
    stepped_at: float | None = None
    """When a worker made its last step."""
    saving: str = ""
    """The progress of a requested save."""
    least_nodes: int = 1
    most_nodes: int = 1


class NodeShown(Struct, frozen=True):
    name: str
    state: str
    words: str
    slots: int
    first_rank: int | None
    coordinator: bool


class IncidentShown(Struct):
    number: int
    at: float
    round: int
    kind: str
    """failure, loss or hang."""
    words: str
    decision: str = ""
    ranks: list[int] = []
    recovered_s: float | None = None
    phases: list[LedgerPart] = []


class LogLineShown(Struct, frozen=True):
    at: float
    rank: int
    stream: str
    text: str


class StackGroupShown(Struct, frozen=True):
    """Workers at the same place in their code."""

    ranks: list[int]
    title: str
    text: str


_encode = msgspec.json.Encoder().encode


def message(kind: str, data: Any) -> bytes:
    """One message to the page."""
    return event(_encode(data).decode(), kind)
