"""The report on a job, from its journals: the story, and where its time went.

`holdfast report` shows it as text, JSON or a page; each of these is a view of `JobReport`.

Rules
1. Durations are counted on each node's own clock from its journal's first line, so that a clock
   that is set meanwhile bends none; clocks that were wrong are moved as in `merged_story`.
2. Facts that are missing in the journals are named (`unknowns`), not filled in.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from holdfast.observe import sentences
from holdfast.observe.causes import JournalRead
from holdfast.observe.goodput import Segment, TimeLedger, ledger
from holdfast.observe.history import History, NodeHistory, NodeRun, RoundSpan
from holdfast.observe.journal import ClockPair, Gap, JournalHeader
from holdfast.observe.merged_story import ToldStory, tell
from holdfast.observe.report import headline
from holdfast.observe.story import StoryEvent


class NodeReport(Struct, frozen=True):
    """One node whose journal is given."""

    node: str
    host: str
    """Its name in sentences."""
    start: float
    end: float
    runs: tuple[NodeRun, ...]
    is_whole: bool
    """Whether its journal goes on to the node's own end."""


class JobReport(Struct, frozen=True):
    """The content of `holdfast report`."""

    job: str
    start: float
    end: float
    verdict: str
    """`succeeded`, `failed`, `interrupted`, `not_formed`, or empty if not known."""
    outcome: str
    """How it ended, in a sentence; empty if not known."""
    restarts: int
    """Restarts counted against `--max-restarts`."""
    max_restarts: int
    nodes: tuple[NodeReport, ...]
    events: tuple[StoryEvent, ...]
    rounds: tuple[RoundSpan, ...]
    ledger: TimeLedger
    is_running: bool
    unknowns: tuple[str, ...]
    """Facts that are missing in the journals, in sentences."""


def report(journals: Sequence[JournalRead], running_at: float | None = None) -> JobReport:
    """Make the report. At least one journal; `running_at` is now, if the job still runs."""
    story = tell(journals)
    history = _history(journals, story.moved_s)
    nodes = tuple(_node(header, history, story.names[header.node]) for header, _ in journals)
    if history.outcome is None:
        _end_with_the_last_node(history, len(journals))
    is_running = history.closed is None and running_at is not None
    book = ledger(history, running_at if is_running else None)
    outcome = history.outcome
    return JobReport(
        journals[0][0].job,
        book.start,
        book.end,
        outcome.verdict if outcome is not None else "",
        headline(outcome) if outcome is not None else "",
        history.restarts,
        journals[0][0].config.restarts.max_restarts,
        nodes,
        story.events,
        history.spans(),
        book,
        is_running,
        tuple(_unknowns(journals, story, history, nodes, is_running)),
    )


def _history(journals: Sequence[JournalRead], moved_s: Mapping[str, float]) -> History:
    """Of all nodes, in the order of time (rule 1)."""
    lines = []
    for header, steps in journals:
        by_s = moved_s.get(header.node, 0.0)
        clock = ClockPair(header.clock.at, header.clock.wall + by_s)
        lines += [
            (clock.time_of(step.at), header.node, step)
            for step in steps
            if not isinstance(step, Gap)
        ]
    history = History(journals[0][0].config)
    for at, node, step in sorted(lines, key=lambda line: (line[0], line[1], line[2].seq)):
        history.feed(node, at, step)
    return history


def _end_with_the_last_node(history: History, nodes: int) -> None:
    """If every node was asked to leave, none was left to close the job."""
    everybody = max([nodes, *(one.nodes for one in history.rounds[-1:])])
    if len(history.finished) >= everybody:
        last = list(history.finished.values())[-1]
        history.outcome, history.closed = replace(last, asked="job"), history.end


def within(whole: JobReport, start: float, end: float) -> JobReport:
    """The part of it between two moments."""
    book = whole.ledger
    start, end = max(start, book.start), min(end, book.end)
    segments = tuple(
        Segment(one.part, max(one.start, start), min(one.end, end), one.round)
        for one in book.segments
        if one.end > start and one.start < end
    )
    parts = {
        part: sum((one.seconds for one in segments if one.part == part), 0.0)
        for part in book.parts_s
    }
    shown = tuple(one for one in book.interruptions if start <= one.at <= end)
    part = TimeLedger(start, end, parts, segments, shown, book.reports_steps, book.is_over)
    events = tuple(event for event in whole.events if start <= event.at <= end)
    return replace(whole, events=events, ledger=part)


def _node(header: JournalHeader, history: History, name: str) -> NodeReport:
    known = history.nodes.get(header.node)
    if known is None:  # A journal without a line.
        known = NodeHistory(header.clock.wall, header.clock.wall)
    runs = tuple(NodeRun(one.round, one.start, min(one.end, known.end)) for one in known.runs)
    return NodeReport(header.node, name, known.start, known.end, runs, known.has_finished)


def _unknowns(
    journals: Sequence[JournalRead],
    story: ToldStory,
    history: History,
    nodes: Sequence[NodeReport],
    is_running: bool,
) -> list[str]:
    found = []
    is_over = history.closed is not None
    if not history.reports_steps:
        found.append(sentences.NO_STEPS)
    if not is_over and not is_running:
        found.append(sentences.CUT_OFF)
    cut = [one.host for one in nodes if not one.is_whole]
    if is_over and cut:
        found.append(sentences.cut_journals(cut))
    here = len(nodes)
    most = max((one.nodes for one in history.rounds), default=1)
    if here < most:
        found.append(sentences.missing_journals(here, most))
    missing = sum(step.missing for _, steps in journals for step in steps if isinstance(step, Gap))
    if missing:
        found.append(sentences.missing_lines(missing))
    for node, by_s in story.moved_s.items():
        found.append(sentences.moved_clock(story.names[node], by_s))
    return found
