"""A job's report for a terminal or a mail: the story, where the time went, the incidents.

Rules
1. Readable without colour, at 80 columns where names allow it.
2. The length is bounded unless all is requested: of many events alike in a row the first are shown,
   and of a long story the beginning and the end.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from itertools import groupby

from holdfast.core.protocol.bounds import one_line_each
from holdfast.observe.goodput import PARTS, Interruption, TimeLedger
from holdfast.observe.history import EndedBy
from holdfast.observe.job_report import JobReport
from holdfast.observe.story import Kind, StoryEvent
from holdfast.observe.summary import counted

FIRST_SHOWN, LAST_SHOWN = 30, 50
BAR_WIDTH = 24
ENDINGS: dict[EndedBy, str] = {
    "failure": "failure",
    "loss": "node lost",
    "hang": "hang",
    "drain": "drain",
    "newcomers": "nodes joined",
    "asked": "requested",
    "success": "success",
    "": "stopped",
}
"""The end of a round, in a word or two."""
ALIKE: tuple[Kind, ...] = (
    "node_started", "node_joined", "node_left", "node_lost", "node_suspected", "imported",
    "workers_done", "standby", "contact_lost", "contact_back", "worker_failed",
)  # fmt: skip
"""Events of which the first few are shown where many nodes tell them in a row."""
ALIKE_SHOWN = 3


def render_text(report: JobReport, *, all_events: bool = False) -> str:
    """The whole report, ending in a newline."""
    lines = [*_headline(report), *_window(report), ""]
    lines += ["What happened", *_story(report, all_events), ""]
    lines += ["Where the time went", *render_time(report.ledger)]
    if report.ledger.interruptions:
        lines += ["", "Interruptions", *_interruptions(report.ledger.interruptions, all_events)]
    if report.unknowns:
        lines += ["", "What is not known", *(f"  {each}" for each in report.unknowns)]
    return one_line_each(lines)


def _headline(report: JobReport) -> list[str]:
    hosts = sorted({node.host for node in report.nodes})
    where = f"on {hosts[0]}" if len(report.nodes) == 1 else f"on {len(report.nodes)} nodes"
    took = duration(report.end - report.start)
    how = report.outcome or ("it is running" if report.is_running else "the end is not known")
    again = f", after {counted(report.restarts, 'restart')}" if report.restarts else ""
    when = f"{moment(report.start, date=True)} to {moment(report.end)} ({took}{again})"
    return [f"{report.job} {where}, {when}", how]


def _window(report: JobReport) -> list[str]:
    start, end = report.ledger.start, report.ledger.end
    if (start, end) == (report.start, report.end):
        return []
    return [f"shown: {moment(start)} to {moment(end)}"]


# The story.


def _story(report: JobReport, all_events: bool) -> Iterator[str]:
    several = len(report.nodes) > 1
    told = told_shortly(report.events)
    lines = [_line(event, words, several) for event, words in told]
    if not all_events:
        lines = list(_counted(told, several))
    if not lines:
        yield "  nothing that the journals tell of"
    if all_events or len(lines) <= FIRST_SHOWN + LAST_SHOWN:
        yield from lines
        return
    yield from lines[:FIRST_SHOWN]
    yield f"  … {len(lines) - FIRST_SHOWN - LAST_SHOWN} left out; --all shows them"
    yield from lines[-LAST_SHOWN:]


def told_shortly(events: Sequence[StoryEvent]) -> list[tuple[StoryEvent, str]]:
    """Each event with its text, without repeating the last ones.

    A failure, the end of its round and what was decided of it are told in the same words, since
    each of them may be all that a reader sees. One after the other they are shorter.
    """
    told: list[tuple[StoryEvent, str]] = []
    recovered = {event.round for event in events if event.kind == "recovered"}
    cause = ""
    for event in events:
        words = event.words
        if event.kind == "first_step" and event.round in recovered:
            continue
        if event.kind in ("worker_failed", "node_suspected", "node_lost", "drain"):
            cause = words
        elif event.kind == "save":
            cause = event.reason
        elif event.kind == "round_ended":
            if cause and cause == event.reason:
                words = words.replace(f": {cause}", "", 1)
            cause = event.reason
        elif event.kind == "decision" and cause:
            words = words.removeprefix(f"{cause}; ")
        told.append((event, words))
    return told


def _line(event: StoryEvent, words: str, several: bool) -> str:
    name = event.host if several and event.host and event.host not in words else ""
    where = f"{name}: " if name else ""
    return f"  {moment(event.at)}  {where}{words}"


def _counted(told: Sequence[tuple[StoryEvent, str]], several: bool) -> Iterator[str]:
    """A line for each event, but for many alike in a row."""
    for kind, group in groupby(told, key=lambda one: one[0].kind):
        alike = list(group)
        shown = alike[:ALIKE_SHOWN] if kind in ALIKE else alike
        yield from (_line(event, words, several) for event, words in shown)
        if len(shown) < len(alike):
            yield f"  {moment(alike[-1][0].at)}  … {len(alike) - len(shown)} more like these"


# The time.


def render_time(book: TimeLedger) -> Iterator[str]:
    whole = book.end - book.start
    known = {part: seconds for part, seconds in book.parts_s.items() if seconds > 0}
    shown = sorted(known, key=lambda part: (part != "useful", PARTS.index(part)))
    for part in shown:
        share = known[part] / whole if whole else 0.0
        bar = "█" * round(share * BAR_WIDTH)
        yield f"  {part:<20}{duration(known[part]):>14} {share:>7.1%}  {bar}".rstrip()
    yield f"  {'in all':<20}{duration(whole):>14}"


def _interruptions(shown: Sequence[Interruption], all_of_them: bool) -> Iterator[str]:
    left_out = 0 if all_of_them else max(0, len(shown) - LAST_SHOWN)
    if left_out:
        yield f"  … {left_out} left out; --all shows them"
    for one in shown[left_out:]:
        followed = f"round {one.round} → {one.next_round}" if one.next_round else "no round after"
        kind = ENDINGS[one.ended_by]
        cost = duration(one.total_s)
        yield f"  {moment(one.at)}  {kind}, {followed}, cost {cost}: {one.reason}"
        parts = ", ".join(f"{part} {duration(took)}" for part, took in one.parts_s.items() if took)
        steps = f"; {counted(one.steps_lost, 'step')} made again" if one.steps_lost else ""
        if parts:
            yield f"                {parts}{steps}"


# Words for times.


def moment(at: float, *, date: bool = False) -> str:
    """A time of the day where this runs, to the millisecond."""
    seconds, milliseconds = divmod(round(at * 1000), 1000)
    text = time.strftime("%Y-%m-%d %H:%M:%S" if date else "%H:%M:%S", time.localtime(seconds))
    return f"{text}.{milliseconds:03d}"


def duration(seconds: float) -> str:
    """A length of time as people say it."""
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 60:
        return f"{seconds:.2f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min"
