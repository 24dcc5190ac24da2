"""From what nodes answer to what is said to the page. No rule of the job is repeated here."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.core.protocol.model import Outcome
from holdfast.core.protocol.questions import JobTold, NodeOverview
from holdfast.dashboard.source import Source
from holdfast.dashboard.wire import JobShown, JobState, NodeShown, OutcomeShown


def job_shown(told: JobTold, source: Source) -> JobShown:
    names = {one.node: one.name or one.host for one in told.nodes}
    outcome = told.outcome
    return JobShown(
        run=told.run_id,
        state=_state(told),
        words=sentence(told),
        round=told.round,
        nodes=told.node_count,
        ranks=told.world_size,
        restarts=told.restarts,
        restarts_most=told.max_restarts,
        step=told.step,
        waiting=told.waiting if outcome is None else "",
        outcome=_outcome_shown(outcome),
        coordinator=names.get(told.coordinator, told.coordinator),
        served_by=names.get(source.node, source.node),
        actions=source.actions if outcome is None else (),
        is_journal=False,
    )


def _outcome_shown(outcome: Outcome | None) -> OutcomeShown | None:
    if outcome is None:
        return None
    return OutcomeShown(outcome.verdict, outcome.reason, outcome.exit_status)


def _state(told: JobTold) -> JobState:
    if told.outcome is not None:
        return "succeeded" if told.outcome.verdict == "succeeded" else "failed"
    return "failed" if told.stage == "over" else told.stage


def sentence(told: JobTold) -> str:
    """How it is, for a headline."""
    if told.outcome is not None:
        return f"The job {_VERDICTS[told.outcome.verdict]}."
    workers = "1 worker" if told.world_size == 1 else f"{told.world_size:,} workers"
    nodes = "1 node" if told.node_count == 1 else f"{told.node_count:,} nodes"
    match told.stage:
        case "running":
            return f"Round {told.round} runs: {workers} on {nodes}."
        case "stopping":
            return f"Round {told.round} is being ended."
        case "waiting" if told.round:
            return f"Round {told.round} is over; the next one is not formed yet."
        case "waiting":
            return "The first round is not formed yet."
        case _:
            return "The job is over."


_VERDICTS = {
    "succeeded": "has succeeded",
    "failed": "has failed",
    "interrupted": "was interrupted",
    "not_formed": "never began",
}


def nodes_shown(told: JobTold, nodes: Sequence[NodeOverview]) -> list[NodeShown]:
    return [
        NodeShown(
            name=one.name or one.host,
            state=one.condition,
            words=one.note,
            slots=one.workers,
            first_rank=one.first_rank,
            coordinator=one.node == told.coordinator,
        )
        for one in nodes
    ]
