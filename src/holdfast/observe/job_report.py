"""What became of a job, worked out of its journals: the story, and where its time went.

`holdfast report` shows it as text, JSON or a page; each of these is a view of `JobReport`.

Rules
1. Durations are counted on each node's own clock, which nobody sets; nodes are put beside each
   other as their story is (`observe.merged_story`).
2. What the journals do not tell is said (`unknowns`), not filled in.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct
from msgspec.structs import replace

from holdfast.observe.causes import JournalRead
from holdfast.observe.goodput import Segment, TimeLedger, ledger
from holdfast.observe.history import History, NodeHistory, NodeRun, RoundSpan
from holdfast.observe.journal import ClockPair, ClockRead, Gap, JournalHeader, Step
from holdfast.observe.merged_story import ToldStory, tell
from holdfast.observe.report import headline
from holdfast.observe.story import StoryEvent, started


class NodeReport(Struct, frozen=True):
    """One node whose journal is at hand."""

    node: str
    host: str
    """What it is called in sentences."""
    start: float
    end: float
    runs: tuple[NodeRun, ...]
    is_whole: bool
    """Whether its journal goes on to the node's own end."""


class JobReport(Struct, frozen=True):
    """All that `holdfast report` shows."""

    job: str
    start: float
    end: float
    verdict: str
    """`succeeded`, `failed`, `interrupted`, `not_formed`, or empty where it is not known."""
    outcome: str
    """How it ended, in a sentence; empty where that is not known."""
    restarts: int
    """How many were counted against `--max-restarts`."""
    max_restarts: int
    nodes: tuple[NodeReport, ...]
    events: tuple[StoryEvent, ...]
    rounds: tuple[RoundSpan, ...]
    ledger: TimeLedger
    is_running: bool
    unknowns: tuple[str, ...]
    """What the journals do not tell, in sentences."""


def report(journals: Sequence[JournalRead], running_at: float | None = None) -> JobReport:
    """Work it out. At least one journal; `running_at` is now, where the job still runs."""
    story = tell(journals)
    clocks = {header.node: _clock(header, steps, story) for header, steps in journals}
    lines = sorted(
        (
            (clocks[header.node].time_of(step.at), header.node, step)
            for header, steps in journals
            for step in steps
            if not isinstance(step, Gap)
        ),
        key=lambda line: (line[0], line[1], line[2].seq),
    )
    history = History(journals[0][0].config)
    for at, node, step in lines:
        history.feed(node, at, step)
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


def _end_with_the_last_node(history: History, nodes: int) -> None:
    """Where every node was asked to leave, nobody was left to close the job."""
    everybody = max([nodes, *(one.nodes for one in history.rounds[-1:])])
    if len(history.finished) >= everybody:
        last = list(history.finished.values())[-1]
        history.outcome, history.closed = replace(last, asked="job"), history.end


def within(whole: JobReport, start: float, end: float) -> JobReport:
    """What of it was between two moments."""
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


def segment_at(book: TimeLedger, moment: float) -> Segment | None:
    """What the job did at that moment."""
    return next((one for one in book.segments if one.start <= moment < one.end), None)


def _clock(header: JournalHeader, steps: Sequence[Step], story: ToldStory) -> ClockPair:
    """One pair for the whole journal, so that a clock that was set does not bend durations."""
    moved_s = story.moved_s.get(header.node, 0.0)
    if header.clock is not None:
        return ClockPair(header.clock.at, header.clock.wall + moved_s)
    for step in steps:
        if isinstance(step, ClockRead):
            return ClockPair(step.at, step.wall + moved_s)
    first = next((step.at for step in steps if not isinstance(step, Gap)), 0.0)
    return ClockPair(first, started(header) + moved_s)


def _node(header: JournalHeader, history: History, name: str) -> NodeReport:
    known = history.nodes.get(header.node)
    if known is None:  # A journal without a line.
        begin = header.clock.wall if header.clock is not None else started(header)
        known = NodeHistory(begin, begin)
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
        found.append(
            'no worker reported a step (holdfast.progress): "useful" means that workers ran, '
            "and no step counts as lost"
        )
    if not is_over and not is_running:
        found.append(
            "the journals end in the middle: the job runs elsewhere, or its agents were killed"
        )
    cut = [one.host for one in nodes if not one.is_whole]
    if is_over and cut:
        names = ", ".join(sorted(set(cut))[:8])
        found.append(f"the journal of {names} ends before the job did: its agent was killed there")
    here = len(nodes)
    most = max((one.nodes for one in history.rounds), default=1)
    if here < most:
        found.append(
            f"{here} of {most} nodes' journals are here: what the others did is known as far as "
            "it was told"
        )
    missing = sum(step.missing for _, steps in journals for step in steps if isinstance(step, Gap))
    if missing:
        found.append(f"{missing} lines are gone, because a journal had become too long")
    if any(header.clock is None for header, _ in journals):
        found.append("an old journal has no clocks in it: its times are right to the second")
    for node, by_s in story.moved_s.items():
        where = "behind" if by_s > 0 else "ahead of"
        found.append(
            f"the clock of {story.names[node]} was {abs(by_s):.3f} s {where} the coordinator's: "
            "its times are moved"
        )
    return found
