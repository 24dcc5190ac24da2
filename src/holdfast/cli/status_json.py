"""The output of `holdfast status --json`: all names (docs/reference/status-json.md)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
from msgspec import Struct

from holdfast.cli.jobs import ListedJob
from holdfast.cli.status_view import Overview
from holdfast.core.protocol.requests import HistoryTold
from holdfast.observe.goodput import Interruption
from holdfast.observe.story import StoryEvent
from holdfast.observe.summary import is_overdue


class WorkerStatus(Struct, frozen=True):
    """One worker."""

    rank: int
    local_rank: int
    node: str
    """The name of its node."""
    pid: int
    state: str
    """`running`, `stopped`, `stuck in the kernel`, `held by a debugger`, `ended`, or `finished`."""
    step: int | None
    """The last that it reported (`holdfast.progress`)."""
    step_age_s: float | None
    """How long ago it reported that."""
    steps_per_s: float | None
    """Over about the last half minute."""
    is_overdue: bool
    """Whether that is longer ago than a few usual steps of the job."""
    phase: str
    """Its phase, where reported (`holdfast.phase`)."""
    cpu: float | None
    """Processors that it and its children use; unknown in the first answer."""
    memory_bytes: int | None
    """Resident, of it and its children."""


class NodeStatus(Struct, frozen=True):
    """One node."""

    name: str
    """By which verbs know it: `holdfast drain JOB NAME`."""
    id: str
    """By which journals and metrics know it."""
    host: str
    condition: str
    """`in the round`, `finished`, `standing by`, `ready`, `getting ready`, `leaving`, `silent`."""
    group_rank: int | None
    """Its position in the round; none if it has no seat."""
    first_rank: int | None
    workers: int
    """How many it has room for, or runs."""
    heard_s: float
    """How long ago the coordinator last heard of it; 0 in a job of one node."""
    note: str
    """Why it leaves, or is silent."""
    load: float | None
    """Of the machine over a minute, for each of its processors."""
    memory_free_bytes: int | None
    accelerators: tuple[str, ...]


class InterruptionStatus(Struct, frozen=True):
    """A round that ended before its work was done."""

    at: float
    """When it was known, in seconds since 1970."""
    round: int
    next_round: int
    """0 where none has followed."""
    ended_by: str
    """`failure`, `loss`, `hang`, `drain`, `newcomers` or `asked`."""
    is_incident: bool
    """Whether it was unwanted: a failure, a loss or a hang."""
    reason: str
    ranks: tuple[int, ...]
    """Workers that failed by themselves."""
    cost_s: float
    """The time lost by it."""
    steps_lost: int | None
    """Steps made again after it; unknown if no worker reports steps."""


class JobStatus(Struct, frozen=True):
    """The whole job."""

    job: str
    stage: str
    """`waiting`, `running`, `stopping` or `over`."""
    verdict: str
    """How it ended: `succeeded`, `failed`, `interrupted`, `not_formed`, `killed`; empty before."""
    reason: str
    """Why it ended so."""
    exit_status: int | None
    waiting: str
    """The reason for a wait, if any."""
    round: int
    """0 before the first one."""
    round_age_s: float
    ranks: int
    """Of the present round; 0 between rounds."""
    node_count: int
    """Of all nodes, those that stand by too."""
    min_nodes: int
    max_nodes: int
    coordinator: str
    """The name of the node that coordinates."""
    restarts: int
    """How many were counted against `--max-restarts`."""
    max_restarts: int
    step: int | None
    """The furthest that any worker reported."""
    step_age_s: float | None
    steps_per_s: float | None
    """How fast that step grows, while steps are made."""
    goodput: float | None
    """The useful share of the time, from 0 to 1."""
    total_s: float
    """How long the job has lasted."""
    parts_s: dict[str, float]
    """Where that time went, by the parts of the report."""
    interruptions: tuple[InterruptionStatus, ...]
    nodes: tuple[NodeStatus, ...]
    workers: tuple[WorkerStatus, ...]
    missing: tuple[str, ...]
    """Nodes that did not answer."""
    events: tuple[StoryEvent, ...]
    """The last ones, the newest last, as `holdfast events --json` has them."""


def of_running(seen: Overview) -> JobStatus:
    """As a job that runs answers."""
    job, history, outcome = seen.job, seen.history or HistoryTold(0.0, {}), seen.job.outcome
    useful = history.parts_s.get("useful", 0.0)
    return JobStatus(
        job=job.run_id,
        stage=job.stage,
        verdict=outcome.verdict if outcome is not None else "",
        reason=outcome.reason if outcome is not None else "",
        exit_status=outcome.exit_status if outcome is not None else None,
        waiting=job.waiting,
        round=job.round,
        round_age_s=job.round_age_s,
        ranks=job.world_size,
        node_count=job.node_count,
        min_nodes=job.min_nodes,
        max_nodes=job.max_nodes,
        coordinator=job.coordinator,
        restarts=job.restarts,
        max_restarts=job.max_restarts,
        step=max((one.step for _, one in seen.workers() if one.step is not None), default=job.step),
        step_age_s=history.step_age_s,
        steps_per_s=history.steps_per_s,
        goodput=useful / history.total_s if history.total_s else None,
        total_s=history.total_s,
        parts_s=history.parts_s,
        interruptions=tuple(_interruptions(history)),
        nodes=tuple(_nodes(seen)),
        workers=tuple(
            WorkerStatus(
                node=node,
                is_overdue=is_overdue(one.step_age_s, history.steps_per_s),
                **_fields(one),
            )
            for node, one in seen.workers()
        ),
        missing=seen.missing,
        events=tuple(seen.events),
    )


def of_ended(job: ListedJob) -> JobStatus:
    """As its record on this machine has it."""
    return JobStatus(
        job=job.name, stage="over", verdict=job.state.replace(" ", "_"), reason=job.reason,
        exit_status=job.exit_status, waiting="", round=0, round_age_s=0.0, ranks=job.ranks,
        node_count=job.nodes, min_nodes=0, max_nodes=0, coordinator="", restarts=job.restarts,
        max_restarts=0, step=None, step_age_s=None, steps_per_s=None, goodput=job.goodput,
        total_s=job.seconds, parts_s={}, interruptions=(), nodes=(), workers=(), missing=(),
        events=(),
    )  # fmt: skip


def _nodes(seen: Overview) -> Iterator[NodeStatus]:
    for node in seen.job.nodes:
        told = seen.ranks.get(node.name)
        fields = _fields(node)
        yield NodeStatus(
            id=fields.pop("node"),
            load=told.load if told is not None else None,
            memory_free_bytes=told.memory_free_bytes if told is not None else None,
            accelerators=told.accelerators if told is not None else (),
            **fields,
        )


def _interruptions(history: HistoryTold) -> Iterator[InterruptionStatus]:
    for packed in history.interruptions:
        one = msgspec.msgpack.decode(packed, type=Interruption)
        yield InterruptionStatus(
            one.at, one.round, one.next_round, one.ended_by, one.is_incident, one.reason,
            one.ranks, one.total_s, one.steps_lost,
        )  # fmt: skip


def _fields(one: Struct) -> dict[str, Any]:
    return {name: getattr(one, name) for name in one.__struct_fields__}
