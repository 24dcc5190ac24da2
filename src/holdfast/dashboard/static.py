"""The dashboard of a job's report: all is known, and nothing changes."""

from __future__ import annotations

from holdfast.dashboard import views
from holdfast.dashboard.pages import PageState
from holdfast.dashboard.wire import JobShown, NodeShown, OutcomeShown
from holdfast.observe.job_report import JobReport


def static_page(told: JobReport) -> PageState:
    """All that the page is told of it."""
    book = told.ledger
    return PageState(
        job=_job(told),
        nodes=[
            NodeShown(
                one.host, "" if one.is_whole else "its journal ends early", "", 0, None, False
            )
            for one in told.nodes
        ],
        ledger=views.ledger_shown(book.start, book.end - book.start, dict(book.parts_s.items())),
        segments=views.segments_shown(book.segments),
        lanes=[views.lane_shown(one.host, one.start, one.end, one.runs) for one in told.nodes],
        incidents=views.incidents_shown(book.interruptions),
        events=list(told.events),
    )


def _job(told: JobReport) -> JobShown:
    reason = told.outcome.partition(": ")[2]
    last = told.rounds[-1] if told.rounds else None
    return JobShown(
        run=told.job,
        state=views.STATES[told.verdict] if told.verdict else "cut off",
        words=_sentence(told, reason),
        round=last.number if last is not None else 0,
        nodes=last.nodes if last is not None else len(told.nodes),
        ranks=last.ranks if last is not None else 0,
        restarts=told.restarts,
        restarts_most=told.max_restarts,
        step=None,
        waiting="",
        outcome=OutcomeShown(told.verdict, reason) if told.verdict else None,
        coordinator="",
        served_by="",
        actions=(),
        is_journal=True,
        notes=told.unknowns,
    )


def _sentence(told: JobReport, reason: str) -> str:
    if told.is_running:
        return "It is running; this is its journal so far."
    if not told.verdict:
        return "How the job ended is not in its journals."
    return views.ending(told.verdict, reason)
