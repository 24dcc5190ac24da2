"""The dashboard of a job's journals: all is known, and nothing changes."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.core import node_io as happened
from holdfast.core.protocol import messages as said
from holdfast.core.protocol.model import Assignment
from holdfast.dashboard import views
from holdfast.dashboard.page_state import PageState
from holdfast.dashboard.wire import JobShown, JobState, NodeShown, OutcomeShown
from holdfast.observe.causes import JournalRead
from holdfast.observe.job_report import JobReport, report
from holdfast.observe.journal import NodeStep


def static_page(journals: Sequence[JournalRead]) -> PageState:
    """All that the page is told of these journals, of one job."""
    told = report(journals)
    state = PageState(job=_job(told, journals))
    state.nodes = [
        NodeShown(one.host, "" if one.is_whole else "its journal ends early", "", 0, None, False)
        for one in told.nodes
    ]
    state.ledger = views.ledger_shown(
        told.ledger.end - told.ledger.start, dict(told.ledger.parts_s.items())
    )
    state.rounds = views.rounds_shown(told.rounds)
    state.incidents = views.incidents_shown(told.ledger.interruptions)
    state.events += told.events
    return state


def _job(told: JobReport, journals: Sequence[JournalRead]) -> JobShown:
    last = _last_assignment(journals)
    outcome = None
    if told.verdict:
        outcome = OutcomeShown(told.verdict, told.outcome)
    state: JobState = "succeeded" if told.verdict == "succeeded" else "failed"
    return JobShown(
        run=told.job,
        state=state if told.verdict else "cut off",
        words=_sentence(told),
        round=last.round if last is not None else 0,
        nodes=last.group_size if last is not None else len(told.nodes),
        ranks=last.world_size if last is not None else 0,
        restarts=told.restarts,
        restarts_most=journals[0][0].config.restarts.max_restarts,
        step=None,
        waiting="",
        outcome=outcome,
        coordinator="",
        served_by="",
        actions=(),
        is_journal=True,
        notes=told.unknowns,
    )


def _sentence(told: JobReport) -> str:
    if not told.outcome:
        return "How the job ended is not in its journals."
    return f"{told.outcome[:1].upper()}{told.outcome[1:]}."


def _last_assignment(journals: Sequence[JournalRead]) -> Assignment | None:
    """Of the last round that any node was told of."""
    found = [
        step.event.message.assignment
        for _, steps in journals
        for step in steps
        if isinstance(step, NodeStep)
        and isinstance(step.event, happened.Told)
        and isinstance(step.event.message, said.RunRound)
    ]
    return max(found, key=lambda one: one.round, default=None)
