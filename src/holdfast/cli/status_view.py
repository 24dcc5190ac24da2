"""A job on one screen: what `holdfast status` prints, and the tables of `holdfast top`.

Text from answers alone: nothing is asked, and nothing decided here.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

from msgspec import Struct

from holdfast.cli import sentences
from holdfast.core.protocol.bounds import clean, one_line_each
from holdfast.core.protocol.requests import (
    HistoryTold,
    JobTold,
    NodeOverview,
    RankOverview,
    RanksTold,
)
from holdfast.observe.report_text import told_shortly
from holdfast.observe.story import StoryEvent
from holdfast.observe.summary import counted, is_overdue, length, rate

WIDE = 1000
"""Where nothing has to fit."""
NODES_SHOWN = 40
FINISHED = "finished"
STRAGGLER_SHARE = 0.5
"""A worker below this share of the median pace is marked, as `--help` says."""
ALARM = "!"
"""The prefix of a line that needs attention; in colour it is amber."""


class Column(Struct, frozen=True):
    """One column of a table; without room, the one with the highest number is left out first."""

    name: str
    spare: int = 0


NODE_COLUMNS = tuple(
    Column(*each)
    for each in (("node",), ("ranks",), ("is",), ("step",), ("steps/s", 1), ("last", 2),
                 ("cpu", 4), ("memory", 5), ("heard", 3))
)  # fmt: skip
RANK_COLUMNS = tuple(
    Column(*each)
    for each in (("rank",), ("node", 1), ("pid", 6), ("is",), ("step",), ("steps/s", 2), ("last",),
                 ("phase", 3), ("cpu", 4), ("memory", 5))
)  # fmt: skip


class TableRow(Struct, frozen=True):
    """One line of a table."""

    cells: tuple[str, ...]
    is_alarm: bool = False


class Overview(Struct, frozen=True):
    """The content of a screen."""

    job: JobTold
    ranks: Mapping[str, RanksTold]
    """By the name of the node; those that answered."""
    events: Sequence[StoryEvent] = ()
    missing: tuple[str, ...] = ()
    history: HistoryTold | None = None

    @property
    def usual_rate(self) -> float | None:
        """Steps a second while steps were made."""
        return self.history.steps_per_s if self.history is not None else None

    def workers(self) -> list[tuple[str, RankOverview]]:
        """All of them with their nodes, by rank."""
        found = [(node, one) for node, told in self.ranks.items() for one in told.ranks]
        return sorted(found, key=lambda each: each[1].rank)

    def overdue(self) -> list[RankOverview]:
        """The workers that have made no step for longer than usual."""
        return [one for _, one in self.workers() if is_overdue(one.step_age_s, self.usual_rate)]


def render(seen: Overview, width: int = WIDE) -> str:
    """The text of `holdfast status`."""
    lines = [*head(seen), "", *_nodes(seen, width)]
    if seen.events:
        told = told_shortly(seen.events)
        lines += ["", "what happened last", *(f"  {line(event, words)}" for event, words in told)]
    return one_line_each(lines)


def painted(page: str) -> str:
    """The same in colour, for a terminal: lines that begin with an alarm are amber."""
    lines = page.splitlines(keepends=True)
    return "".join(
        f"\x1b[33m{one.rstrip()}\x1b[0m\n" if one.lstrip().startswith(ALARM) else one
        for one in lines
    )


def head(seen: Overview) -> list[str]:
    """The job's status, in a few lines."""
    job = seen.job
    lines = [f"{clean(job.run_id)}: {_stage(job)}"]
    if job.world_size or job.round:
        lines.append(f"  {_size(job)}; the coordinator is on {job.coordinator}")
    if pace := _pace(seen):
        lines.append(f"  {pace}")
    if job.stage == "running" and (overdue := seen.overdue()):
        running = sum(one.state != FINISHED for _, one in seen.workers())
        since = length(min(one.step_age_s or 0.0 for one in overdue))
        lines.append(f"{ALARM} {sentences.no_step([o.rank for o in overdue], running, since)}")
    if job.max_restarts or job.restarts:
        lines.append(f"  restarts: {job.restarts} of {job.max_restarts}")
    if seen.history is not None and seen.history.total_s > 0:
        share = seen.history.parts_s.get("useful", 0.0) / seen.history.total_s
        lines.append(f"  goodput: {share:.1%} of {length(seen.history.total_s)}")
    if job.waiting:
        lines.append(f"  waiting: {clean(job.waiting)}")
    if job.outcome is not None:
        lines.append(f"  {job.outcome.verdict}: {clean(job.outcome.reason)}")
    if seen.missing:
        lines.append(f"{ALARM} {sentences.no_answer(seen.missing)}")
    return lines


def _size(job: JobTold) -> str:
    """ "8 ranks on 2 nodes (2 to 4 wanted), 1 node stands by" """
    seated = sum(node.group_rank is not None for node in job.nodes)
    others = job.node_count - seated
    ranks = f"{counted(job.world_size, 'rank')} on " if job.world_size else ""
    nodes = counted(seated if job.world_size and seated else job.node_count, "node")
    more = ""
    if job.world_size and seated and others:
        more = f", {counted(others, 'more node')}"
    return f"{ranks}{nodes} ({_range(job)}){more}"


def _stage(job: JobTold) -> str:
    if not job.round:
        return "waiting for the first round"
    if job.stage == "over":
        return f"over, after round {job.round}"
    if job.stage == "waiting":
        return f"between rounds {job.round} and {job.round + 1}"
    return f"{job.stage}, round {job.round} for {length(job.round_age_s)}"


def _range(job: JobTold) -> str:
    few = f"{job.min_nodes} to " if job.min_nodes != job.max_nodes else ""
    by = f" by {clean(job.scaled_by)}" if job.scaled_by else ""
    return f"{few}{job.max_nodes} wanted{by}"


def _pace(seen: Overview) -> str:
    workers = [one for _, one in seen.workers()]
    step = max((one.step for one in workers if one.step is not None), default=seen.job.step)
    if step is None:
        return ""
    paces = sorted(one.steps_per_s for one in workers if one.steps_per_s is not None)
    ages = [one.step_age_s for one in workers if one.step_age_s is not None]
    words = [f"step {step:,}"]
    if paces:
        words.append(f"{rate(paces[len(paces) // 2])} steps/s")
    if ages:
        words.append(f"the last one {length(min(ages))} ago")
    return ", ".join(words)


def _nodes(seen: Overview, width: int) -> list[str]:
    shown = seen.job.nodes[:NODES_SHOWN]
    table = render_table(NODE_COLUMNS, [_node_row(node, seen) for node in shown], width)
    notes = [f"  {node.name}: {clean(node.note)}" for node in seen.job.nodes if node.note]
    if more := seen.job.node_count - len(shown):
        notes.append(f"  and {counted(more, 'more node')}")
    return [*table, *notes]


def _node_row(node: NodeOverview, seen: Overview) -> TableRow:
    told = seen.ranks.get(node.name)
    ranks = told.ranks if told is not None else ()
    steps = [one.step for one in ranks if one.step is not None]
    paces = sorted(one.steps_per_s for one in ranks if one.steps_per_s is not None)
    ages = [one.step_age_s for one in ranks if one.step_age_s is not None]
    cpus = [one.cpu for one in ranks if one.cpu is not None]
    memory = [one.memory_bytes for one in ranks if one.memory_bytes is not None]
    cells = (
        node.name,
        _seats(node) or _span([one.rank for one in ranks]),
        node.condition,
        f"{max(steps):,}" if steps else "",
        rate(paces[len(paces) // 2]) if paces else "",
        f"{length(max(ages))} ago" if ages else "",
        f"{sum(cpus):.1f}" if cpus else "",
        size(sum(memory)) if memory else "",
        f"{length(node.heard_s)} ago" if node.heard_s else "",
    )
    is_late = seen.job.stage == "running" and is_overdue(max(ages, default=None), seen.usual_rate)
    return TableRow(cells, is_late or node.condition == "silent")


def _seats(node: NodeOverview) -> str:
    if node.first_rank is None:
        return ""
    return _span(list(range(node.first_rank, node.first_rank + node.workers)))


def _span(ranks: list[int]) -> str:
    if not ranks:
        return ""
    first, last = min(ranks), max(ranks)
    return str(first) if first == last else f"{first}-{last}"


def rank_row(node: str, one: RankOverview, seen: Overview, middle: float | None) -> TableRow:
    """The cells of a worker; `middle` is the median pace."""
    pace = one.steps_per_s
    is_slow = middle is not None and pace is not None and pace < STRAGGLER_SHARE * middle
    is_late = seen.job.stage == "running" and is_overdue(one.step_age_s, seen.usual_rate)
    cells = (
        f"{one.rank}{' slow' if is_slow else ''}",
        node,
        str(one.pid),
        one.state,
        "" if one.step is None else f"{one.step:,}",
        "" if pace is None else rate(pace),
        "" if one.step_age_s is None else f"{length(one.step_age_s)} ago",
        clean(one.phase),
        "" if one.cpu is None else f"{one.cpu:.1f}",
        "" if one.memory_bytes is None else size(one.memory_bytes),
    )
    return TableRow(cells, is_late or is_slow)


def line(event: StoryEvent, words: str = "") -> str:
    """One event on one line, with the time of day here."""
    return f"{time.strftime('%H:%M:%S', time.localtime(event.at))}  {clean(words or event.words)}"


def render_table(columns: Sequence[Column], rows: Sequence[TableRow], width: int) -> list[str]:
    """A heading and the rows; empty columns are left out, and where it is too wide, the least
    important ones."""
    cells = [
        tuple(column.name for column in columns),
        *(tuple(map(clean, row.cells)) for row in rows),
    ]
    widths = [max(len(each[k]) for each in cells) for k in range(len(columns))]
    shown = [k for k in range(len(columns)) if k == 0 or any(each[k] for each in cells[1:])]
    for k in sorted(shown, key=lambda k: -columns[k].spare):
        if sum(widths[each] + 2 for each in shown) <= width or not columns[k].spare:
            break
        shown.remove(k)
    marks = [" ", *(ALARM if row.is_alarm else " " for row in rows)]
    return [
        f"{mark} " + "  ".join(each[k].ljust(widths[k]) for k in shown).rstrip()
        for mark, each in zip(marks, cells, strict=True)
    ]


def size(count: int) -> str:
    """ "31 MB", "1.2 GB"."""
    if count < 1_000_000_000:
        return f"{count / 1_000_000:.0f} MB"
    return f"{count / 1_000_000_000:.1f} GB"
