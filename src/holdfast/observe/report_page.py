"""A job's report as one page that stands alone: no script, nothing that is fetched.

Rules
1. Whatever came out of a journal is escaped: other machines wrote it.
2. Light and dark follow the reader's own setting; colours never tell what words do not.
3. The page is bounded: of very many pieces the picture shows those that can be seen, of a very long
   story the beginning and the end.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from html import escape

from holdfast.observe.goodput import PARTS, Interruption, Part, Segment, TimeLedger
from holdfast.observe.job_report import JobReport, NodeReport
from holdfast.observe.report_text import duration, moment, told_shortly
from holdfast.observe.story import Kind, StoryEvent

WIDTH, LEFT, BAND, LANE = 1000.0, 96.0, 34.0, 15.0
SEEN = 0.25
"""What is narrower than this, of the picture's width of 1000, is not drawn by itself."""
LANES_SHOWN, INCIDENTS_SHOWN, EVENTS_SHOWN = 40, 200, 4000
TICKS = (
    *(0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1, 2, 5, 10, 15, 30),
    *(60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 21600, 43200, 86400, 172800, 604800),
)
COLOURS: dict[Part, tuple[str, str]] = {
    "useful": ("#2f9e62", "#3fb877"),
    "lost steps": ("#d9485f", "#f0637a"),
    "detect": ("#e8590c", "#ff8540"),
    "stop": ("#f0a30a", "#f5b83d"),
    "form": ("#7b5cd6", "#9d85ea"),
    "spawn": ("#2f6fde", "#5b93f5"),
    "import": ("#0b8fa8", "#2fb5cf"),
    "first step": ("#7db3f7", "#9cc7ff"),
    "waiting for nodes": ("#8a8f98", "#8a919c"),
    "pause": ("#b6bac2", "#666d79"),
    "idle after the end": ("#dfe2e7", "#3a404a"),
}
"""For light, and for dark."""
BAD: tuple[Kind, ...] = ("worker_failed", "node_lost", "node_suspected", "hang", "contact_lost")
GOOD: tuple[Kind, ...] = ("recovered", "job_finished", "workers_done")


def render_page(report: JobReport) -> str:
    """The whole page."""
    body = [
        _summary(report),
        "<h2>Timeline</h2>",
        f'<div class="wide">{_timeline(report)}</div>',
        _legend(report.ledger),
        "<h2>Where the time went</h2>",
        _time(report.ledger),
        *_incidents(report.ledger.interruptions, report.ledger.reports_steps),
        "<h2>What happened</h2>",
        _story(report),
        *_unknowns(report.unknowns),
    ]
    title = escape(f"{report.job}: report of the job")
    head = f'<meta charset="utf-8"><title>{title}</title><style>{_style()}</style>'
    viewport = '<meta name="viewport" content="width=device-width, initial-scale=1">'
    return (
        f'<!doctype html>\n<html lang="en"><head>{viewport}{head}</head>\n'
        f"<body><main>{''.join(body)}</main></body></html>\n"
    )


def _summary(report: JobReport) -> str:
    book = report.ledger
    goodput = book.goodput
    nodes = len(report.nodes)
    figures = [
        ("useful", "–" if goodput is None else f"{goodput:.1%}"),
        ("in all", duration(book.end - book.start)),
        ("restarts", str(report.restarts)),
        ("nodes", str(nodes)),
    ]
    shown = "".join(
        f"<div><dt>{escape(name)}</dt><dd>{escape(value)}</dd></div>" for name, value in figures
    )
    span = f"{moment(book.start, date=True)} to {moment(book.end, date=True)}"
    zone = time.strftime("%Z", time.localtime(book.start))
    good = "good" if report.verdict == "succeeded" else "bad" if report.verdict else ""
    how = report.outcome or "How it ended is not known."
    return (
        f"<h1>{escape(report.job)}</h1>"
        f'<p class="outcome {good}">{escape(how)}</p>'
        f'<p class="span">{escape(span)} {escape(zone)}</p><dl class="figures">{shown}</dl>'
    )


# The picture.


def _timeline(report: JobReport) -> str:
    book = report.ledger
    lanes = report.nodes[:LANES_SHOWN] if len(report.nodes) > 1 else ()
    height = 22 + BAND + 8 + (LANE + 3) * len(lanes) + (16 if len(report.nodes) > len(lanes) else 0)
    scale = _Scale(book)
    parts = [
        *_axis(scale, height),
        *(_piece(scale, one) for one in _visible(book.segments, scale)),
        *_round_names(book.segments, scale),
        *_signs(book.interruptions, scale),
    ]
    for number, node in enumerate(lanes):
        parts += _lane(node, scale, 22 + BAND + 8 + (LANE + 3) * number)
    if lanes and len(report.nodes) > len(lanes):
        text = f"and {len(report.nodes) - len(lanes)} more nodes"
        parts.append(f'<text class="name" x="0" y="{height - 4:.0f}">{text}</text>')
    parts.append(f'<text class="name" x="0" y="{22 + BAND / 2 + 4:.0f}">the job</text>')
    described = escape(f"Timeline of {report.job}, {duration(book.end - book.start)}")
    return (
        f'<svg viewBox="0 0 {WIDTH:.0f} {height + 6:.0f}" role="img" aria-label="{described}">'
        f"{''.join(parts)}</svg>"
    )


class _Scale:
    """From seconds to the picture."""

    def __init__(self, book: TimeLedger) -> None:
        self.start = book.start
        self.seconds = max(book.end - book.start, 1e-3)

    def x(self, at: float) -> float:
        share = (at - self.start) / self.seconds
        return LEFT + min(max(share, 0.0), 1.0) * (WIDTH - LEFT)


def _visible(segments: Sequence[Segment], scale: _Scale) -> Iterator[Segment]:
    for one in segments:
        if scale.x(one.end) - scale.x(one.start) >= SEEN:
            yield one


def _piece(scale: _Scale, one: Segment) -> str:
    left, right = scale.x(one.start), scale.x(one.end)
    said = f"{one.part}, {duration(one.seconds)}, round {one.round}, from {moment(one.start)}"
    return (
        f'<rect class="{_class(one.part)}" x="{left:.2f}" y="22" '
        f'width="{right - left:.2f}" height="{BAND:.0f}"><title>{escape(said)}</title></rect>'
    )


def _round_names(segments: Sequence[Segment], scale: _Scale) -> Iterator[str]:
    spans: dict[int, tuple[float, float]] = {}
    for one in segments:
        if one.part in ("useful", "lost steps"):
            start, end = spans.get(one.round, (one.start, one.end))
            spans[one.round] = (min(start, one.start), max(end, one.end))
    for number, (start, end) in spans.items():
        if scale.x(end) - scale.x(start) > 24:
            middle = (scale.x(start) + scale.x(end)) / 2
            text = f"round {number}" if scale.x(end) - scale.x(start) > 64 else str(number)
            yield f'<text class="in" x="{middle:.1f}" y="{22 + BAND / 2 + 4:.0f}">{text}</text>'


def _signs(incidents: Sequence[Interruption], scale: _Scale) -> Iterator[str]:
    for number, one in enumerate(incidents[:INCIDENTS_SHOWN], 1):
        x = scale.x(one.at)
        said = escape(f"incident {number}, {moment(one.at)}: {one.reason}")
        shape = f"M{x:.1f} 22 l-4 -7 h8 z"
        yield f'<path class="sign" d="{shape}"><title>{said}</title></path>'


def _lane(node: NodeReport, scale: _Scale, top: float) -> Iterator[str]:
    left, right = scale.x(node.start), scale.x(node.end)
    name = escape(node.host[:14])
    yield f'<text class="name" x="0" y="{top + LANE - 4:.0f}">{name}</text>'
    yield (
        f'<rect class="there" x="{left:.2f}" y="{top + LANE / 2 - 1:.1f}" '
        f'width="{max(right - left, 0.5):.2f}" height="2"/>'
    )
    for run in node.runs:
        x, width = scale.x(run.start), scale.x(run.end) - scale.x(run.start)
        said = escape(f"{node.host}: workers of round {run.round}, {duration(run.end - run.start)}")
        yield (
            f'<rect class="ran" x="{x:.2f}" y="{top:.1f}" width="{max(width, 0.4):.2f}" '
            f'height="{LANE:.0f}" rx="2"><title>{said}</title></rect>'
        )


def _axis(scale: _Scale, height: float) -> Iterator[str]:
    step = next((one for one in TICKS if scale.seconds / one <= 8), TICKS[-1])
    at = -(-scale.start // step) * step if step < 86400 else scale.start
    while at <= scale.start + scale.seconds:
        x = scale.x(at)
        text = moment(at) if step < 1 else moment(at)[:8] if step < 60 else moment(at)[:5]
        yield f'<path class="tick" d="M{x:.1f} 14 V{height:.0f}"/>'
        if x < WIDTH - 30:
            yield f'<text class="time" x="{x + 3:.1f}" y="10">{text}</text>'
        at += step


def _legend(book: TimeLedger) -> str:
    shown = [part for part in COLOURS if book.parts_s.get(part, 0.0) > 0]
    items = "".join(f'<li><i class="{_class(part)}"></i>{part}</li>' for part in shown)
    return f'<ul class="legend">{items}</ul>'


# The tables.


def _time(book: TimeLedger) -> str:
    whole = book.end - book.start
    rows = []
    known = sorted(book.parts_s, key=lambda part: (part != "useful", PARTS.index(part)))
    for part in known:
        took = book.parts_s[part]
        if took > 0:
            share = took / whole if whole else 0.0
            bar = f'<i class="bar {_class(part)}" style="width:{share * 100:.2f}%"></i>'
            rows.append(
                f"<tr><th>{part}</th><td>{duration(took)}</td><td>{share:.1%}</td>"
                f'<td class="bars">{bar}</td></tr>'
            )
    rows.append(f"<tr><th>in all</th><td>{duration(whole)}</td><td></td><td></td></tr>")
    return f'<table class="time">{"".join(rows)}</table>'


def _incidents(incidents: Sequence[Interruption], reports_steps: bool) -> Iterator[str]:
    if not incidents:
        return
    yield "<h2>Incidents</h2>"
    longest = max(one.total_s for one in incidents) or 1.0
    rows = []
    for number, one in enumerate(incidents[:INCIDENTS_SHOWN], 1):
        bars = "".join(
            f'<i class="bar {_class(part)}" style="width:{took / longest * 100:.2f}%" '
            f'title="{part} {duration(took)}"></i>'
            for part, took in one.parts_s.items()
        )
        words = ", ".join(f"{part} {duration(t)}" for part, t in one.parts_s.items() if t)
        followed = f"{one.round} → {one.next_round}" if one.next_round else f"{one.round} → end"
        lost = "" if one.steps_lost is None else str(one.steps_lost)
        rows.append(
            f"<tr><td>{number}</td><td>{moment(one.at)}</td><td>{followed}</td>"
            f"<td>{duration(one.total_s)}</td>"
            + (f"<td>{lost}</td>" if reports_steps else "")
            + f'<td class="why"><div>{escape(one.reason)}</div>'
            f'<div class="stack">{bars}</div><small>{words}</small></td></tr>'
        )
    steps = "<th>steps again</th>" if reports_steps else ""
    head = f"<tr><th></th><th>known at</th><th>round</th><th>cost</th>{steps}<th>why</th></tr>"
    yield f'<div class="wide"><table class="incidents">{head}{"".join(rows)}</table></div>'
    if len(incidents) > INCIDENTS_SHOWN:
        yield f"<p>… and {len(incidents) - INCIDENTS_SHOWN} more</p>"


def _story(report: JobReport) -> str:
    several = len(report.nodes) > 1
    told = told_shortly(report.events)
    half = EVENTS_SHOWN // 2
    left_out = max(0, len(told) - EVENTS_SHOWN)
    shown = told if not left_out else [*told[:half], *told[-half:]]
    rows = [_row(event, words, several) for event, words in shown]
    if left_out:
        rows.insert(half, f'<tr><td></td><td colspan="2">… {left_out} left out</td></tr>')
    return f'<table class="story">{"".join(rows)}</table>'


def _row(event: StoryEvent, words: str, several: bool) -> str:
    mood = "bad" if event.kind in BAD else "good" if event.kind in GOOD else ""
    where = f"<td>{escape(event.host)}</td>" if several else ""
    return f'<tr><td>{moment(event.at)}</td>{where}<td class="{mood}">{escape(words)}</td></tr>'


def _unknowns(unknowns: Sequence[str]) -> Iterator[str]:
    if unknowns:
        items = "".join(f"<li>{escape(each)}</li>" for each in unknowns)
        yield f"<h2>What is not known</h2><ul>{items}</ul>"


def _class(part: Part) -> str:
    return "p-" + part.replace(" ", "-")


def _style() -> str:
    light = "".join(f"--{_class(part)}:{colour};" for part, (colour, _) in COLOURS.items())
    dark = "".join(f"--{_class(part)}:{colour};" for part, (_, colour) in COLOURS.items())
    fills = "".join(
        f".{_class(part)}{{fill:var(--{_class(part)});background:var(--{_class(part)})}}"
        for part in COLOURS
    )
    return (
        f":root{{color-scheme:light dark;{LIGHT}{light}}}"
        f"@media (prefers-color-scheme:dark){{:root{{{DARK}{dark}}}}}{fills}{SHEET}"
    )


LIGHT = "--ink:#1c2128;--soft:#5d6672;--line:#dde1e6;--page:#ffffff;--bad:#b3261e;--good:#1c7a48;"
DARK = "--ink:#e6e9ee;--soft:#9aa3b0;--line:#333a44;--page:#14181d;--bad:#ff8a7a;--good:#5fd394;"
SHEET = """
*{box-sizing:border-box}
body{margin:0;background:var(--page);color:var(--ink);
font:15px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,sans-serif}
main{max-width:1100px;margin:0 auto;padding:28px 20px 60px}
h1{font-size:22px;margin:0 0 6px;overflow-wrap:anywhere}
h2{font-size:16px;margin:32px 0 10px}
.outcome{margin:0;overflow-wrap:anywhere}.bad{color:var(--bad)}.good{color:var(--good)}
.span{margin:2px 0 14px;color:var(--soft)}
.figures{display:flex;flex-wrap:wrap;gap:12px 36px;margin:0}
.figures dt{color:var(--soft);font-size:13px}.figures dd{margin:0;font-size:22px}
.wide{overflow-x:auto}
svg{display:block;width:100%;min-width:680px;height:auto;font-size:11px}
svg text{fill:var(--soft)}svg .in{fill:#fff;text-anchor:middle;pointer-events:none}
svg .tick{stroke:var(--line);stroke-width:1;fill:none}
svg .sign{fill:var(--bad)}svg .there{fill:var(--line)}svg .ran{fill:var(--p-spawn);opacity:.55}
.legend{display:flex;flex-wrap:wrap;gap:4px 18px;padding:0;margin:10px 0 0;list-style:none;
font-size:13px;color:var(--soft)}
.legend i{display:inline-block;width:11px;height:11px;border-radius:2px;margin-right:6px}
table{border-collapse:collapse;font-variant-numeric:tabular-nums}
th{font-weight:500;text-align:left}
td,th{padding:3px 14px 3px 0;vertical-align:top}
table.time{width:100%}table.time td{text-align:right;white-space:nowrap}
table.time .bars{width:55%;text-align:left}
.bar{display:inline-block;height:12px;min-width:1px;border-radius:2px}
table.incidents{width:100%}table.incidents th{color:var(--soft);font-size:13px}
table.incidents td{border-top:1px solid var(--line);padding-top:7px;white-space:nowrap}
table.incidents .why{white-space:normal;min-width:280px;width:60%;overflow-wrap:anywhere}
.stack{display:flex;gap:0;margin:5px 0 2px}.stack .bar{border-radius:0}
small{color:var(--soft)}
table.story td:first-child{color:var(--soft);white-space:nowrap}
table.story td{overflow-wrap:anywhere}
"""
