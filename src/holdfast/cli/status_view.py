"""A job on one screen: what `holdfast status` prints once and `holdfast top` again and again.

Text from answers alone: nothing is asked, and nothing decided here.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

from msgspec import Struct

from holdfast.core.protocol.bounds import clean, one_line_each
from holdfast.core.protocol.requests import (
    HistoryTold,
    JobTold,
    NodeOverview,
    RankOverview,
    RanksTold,
)
from holdfast.observe.story import StoryEvent

Row = tuple[str, ...]
NODES_SHOWN = 40
STRAGGLER_SHARE = 0.5
"""Who makes less than this share of the middle one's steps is marked, as `--help` says."""


class Overview(Struct, frozen=True):
    """All that a screen shows."""

    job: JobTold
    ranks: Mapping[str, RanksTold]
    """By the name of the node; those that answered."""
    events: Sequence[StoryEvent] = ()
    missing: tuple[str, ...] = ()
    goodput: HistoryTold | None = None


def render(seen: Overview, each_rank: bool = False) -> str:
    """The whole page."""
    lines = [*_head(seen), "", *_nodes(seen)]
    if each_rank:
        lines += ["", *_ranks(seen)]
    if seen.events:
        lines += ["", "what happened last", *(f"  {line(event)}" for event in seen.events)]
    return one_line_each(lines)


def _head(seen: Overview) -> list[str]:
    job = seen.job
    lines = [f"{clean(job.run_id)}: {_stage(job)}"]
    if job.world_size or job.round:
        nodes = _counted(job.node_count, "node")
        ranks = f"{_counted(job.world_size, 'rank')} on " if job.world_size else ""
        lines.append(f"  {ranks}{nodes} ({_range(job)}); the coordinator is on {job.coordinator}")
    if pace := _pace(seen):
        lines.append(f"  {pace}")
    if job.max_restarts or job.restarts:
        lines.append(f"  restarts: {job.restarts} of {job.max_restarts}")
    if seen.goodput is not None and seen.goodput.total_s > 0:
        share = seen.goodput.parts_s.get("useful", 0.0) / seen.goodput.total_s
        lines.append(f"  goodput: {share:.1%} of {duration(seen.goodput.total_s)}")
    if job.waiting:
        lines.append(f"  waiting: {clean(job.waiting)}")
    if job.outcome is not None:
        lines.append(f"  {job.outcome.verdict}: {clean(job.outcome.reason)}")
    if seen.missing:
        lines.append(f"  no answer from {', '.join(seen.missing)}")
    return lines


def _stage(job: JobTold) -> str:
    if not job.round:
        return "waiting for the first round"
    if job.stage == "over":
        return f"over, after round {job.round}"
    if job.stage == "waiting":
        return f"between rounds {job.round} and {job.round + 1}"
    return f"{job.stage}, round {job.round} for {duration(job.round_age_s)}"


def _range(job: JobTold) -> str:
    few = f"{job.min_nodes} to " if job.min_nodes != job.max_nodes else ""
    by = f" by {clean(job.scaled_by)}" if job.scaled_by else ""
    return f"{few}{job.max_nodes} wanted{by}"


def _pace(seen: Overview) -> str:
    workers = [one for told in seen.ranks.values() for one in told.ranks]
    steps = [one.step for one in workers if one.step is not None]
    step = max(steps, default=seen.job.step)
    if step is None:
        return ""
    paces = sorted(one.steps_per_s for one in workers if one.steps_per_s is not None)
    ages = [one.step_age_s for one in workers if one.step_age_s is not None]
    words = [f"step {step:,}"]
    if paces:
        words.append(f"{paces[len(paces) // 2]:.3g} steps a second")
    if ages:
        words.append(f"the last one {duration(min(ages))} ago")
    return ", ".join(words)


def _nodes(seen: Overview) -> list[str]:
    rows: list[tuple[str, ...]] = [
        ("node", "ranks", "is", "step", "steps/s", "cpu", "memory", "heard")
    ]
    for node in seen.job.nodes[:NODES_SHOWN]:
        rows.append(_node_row(node, seen.ranks.get(node.name)))
    more = seen.job.node_count - len(rows) + 1
    table = _table(rows)
    notes = [f"  {node.name}: {clean(node.note)}" for node in seen.job.nodes if node.note]
    if more > 0:
        notes.append(f"  and {_counted(more, 'node')} more")
    return [*table, *notes]


def _node_row(node: NodeOverview, told: RanksTold | None) -> Row:
    ranks = told.ranks if told is not None else ()
    steps = [one.step for one in ranks if one.step is not None]
    paces = sorted(one.steps_per_s for one in ranks if one.steps_per_s is not None)
    cpus = [one.cpu for one in ranks if one.cpu is not None]
    memory = [one.memory_bytes for one in ranks if one.memory_bytes is not None]
    return (
        node.name,
        _span([one.rank for one in ranks]) or _seats(node),
        node.condition,
        f"{max(steps):,}" if steps else "",
        f"{paces[len(paces) // 2]:.3g}" if paces else "",
        f"{sum(cpus):.1f}" if cpus else "",
        size(sum(memory)) if memory else "",
        duration(node.heard_s) if node.heard_s else "",
    )


def _seats(node: NodeOverview) -> str:
    if node.first_rank is None:
        return ""
    return _span(list(range(node.first_rank, node.first_rank + node.workers)))


def _span(ranks: list[int]) -> str:
    if not ranks:
        return ""
    first, last = min(ranks), max(ranks)
    return str(first) if first == last else f"{first}-{last}"


def _ranks(seen: Overview) -> list[str]:
    """Every worker, the slowest first."""
    workers = [(node, one) for node, told in seen.ranks.items() for one in told.ranks]
    paces = sorted(one.steps_per_s for _, one in workers if one.steps_per_s is not None)
    middle = paces[len(paces) // 2] if paces else None
    workers.sort(key=lambda found: (found[1].steps_per_s or 0.0, found[1].rank))
    rows: list[tuple[str, ...]] = [
        ("rank", "node", "pid", "is", "step", "steps/s", "last", "phase", "cpu", "memory")
    ]
    rows += [_rank_row(node, one, middle) for node, one in workers]
    devices = [f"  {node}: {line}" for node, told in seen.ranks.items()
               for line in told.accelerators]  # fmt: skip
    return [*_table(rows), *devices]


def _rank_row(node: str, one: RankOverview, middle: float | None) -> Row:
    is_slow = (
        middle is not None
        and one.steps_per_s is not None
        and one.steps_per_s < STRAGGLER_SHARE * middle
    )
    return (
        f"{one.rank}{' slow' if is_slow else ''}",
        node,
        str(one.pid),
        one.state,
        "" if one.step is None else f"{one.step:,}",
        "" if one.steps_per_s is None else f"{one.steps_per_s:.3g}",
        "" if one.step_age_s is None else duration(one.step_age_s),
        clean(one.phase),
        "" if one.cpu is None else f"{one.cpu:.1f}",
        "" if one.memory_bytes is None else size(one.memory_bytes),
    )


def line(event: StoryEvent) -> str:
    """One event on one line, with the time of day here."""
    return f"{time.strftime('%H:%M:%S', time.localtime(event.at))}  {clean(event.words)}"


def _table(rows: Sequence[Row]) -> list[str]:
    widths = [max(len(row[k]) for row in rows) for k in range(len(rows[0]))]
    shown = [k for k, _ in enumerate(widths) if any(row[k] for row in rows[1:]) or k == 0]
    return ["  " + "  ".join(row[k].ljust(widths[k]) for k in shown).rstrip() for row in rows]


def _counted(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def duration(seconds: float) -> str:
    """ "0.4 s", "3 min 12 s", "2 h 5 min": two parts are enough."""
    if seconds < 10.0:
        return f"{seconds:.1f} s"
    if seconds < 60.0:
        return f"{seconds:.0f} s"
    if seconds < 3600.0:
        return f"{int(seconds) // 60} min {int(seconds) % 60} s"
    return f"{int(seconds) // 3600} h {int(seconds) % 3600 // 60} min"


def size(count: int) -> str:
    """ "31 MB", "1.2 GB"."""
    if count < 1_000_000_000:
        return f"{count / 1_000_000:.0f} MB"
    return f"{count / 1_000_000_000:.1f} GB"
