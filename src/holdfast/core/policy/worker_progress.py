"""How far each worker is and how fast, for status, metrics and the live view; and stragglers:
workers slower than the rest, reported, and never ended for it.

Rules
1. The pace is steps a second over about the last `WINDOW_S`. Where a step takes longer than that,
   it is over the last steps that are known, however long ago the first of them was.
2. A step that takes longer than those before lowers the pace while it lasts: the pace of a
   stalled worker falls towards zero and never stays at its old value.
3. A step below the previous one restarts the count: a program may count in each epoch
   by itself. Before a second step there is no pace.
4. A straggler makes less than half the steps of the median, for as long as the user says, and makes
   some: a worker that makes none may hang, which is another matter. With fewer than three paces
   there is no median. Where all wait for each other in every step, all are as fast as the slowest.
5. A straggler is reported once in a round.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from msgspec import Struct, field

from holdfast.core.policy import sentences

WINDOW_S = 30.0
SLOWER_BY = 2.0
MAKES_NONE = 3.0
"""A worker makes no steps if there was none in one part in so many of the time to be slow."""
MARKS_APART_S = 3.0
"""One mark for each check would be many where checks are frequent, and no better."""


class WorkerProgress(Struct, frozen=True):
    """One running worker; ages are in seconds, up to the moment of the check."""

    rank: int
    local_rank: int
    pid: int
    step: int | None = None
    """The last step that it reported; None if none."""
    step_age_s: float | None = None
    """Seconds since it reported that step."""
    steps_a_second: float | None = None
    """None until a second step is known."""
    phase: str = ""
    """Its phase, where reported (`holdfast.phase`)."""


class StepMarks(Struct):
    """One worker's steps and their times; the oldest first."""

    marks: list[tuple[float, int]] = field(default_factory=list)


def note(seen: StepMarks, step: int, at: float) -> None:
    """Note a step. A known one changes nothing."""
    marks = seen.marks
    if marks and step < marks[-1][1]:
        marks.clear()
    if marks and step == marks[-1][1]:
        return
    if len(marks) > 1 and at - marks[-2][0] < MARKS_APART_S:
        marks[-1] = (at, step)
    else:
        marks.append((at, step))
    while len(marks) > 2 and marks[1][0] <= at - WINDOW_S:
        del marks[0]


def pace(seen: StepMarks, now: float) -> float | None:
    """Steps a second (rules 1 and 2); None if not known."""
    if len(seen.marks) < 2:
        return None
    (began, first), (ended, last) = seen.marks[0], seen.marks[-1]
    span_s, count = max(ended - began, 1e-9), last - first
    overdue_s = max(0.0, now - ended - span_s / count)
    return count / (span_s + overdue_s)


class StragglerWatch(Struct):
    """The workers of one round, by rank."""

    after_s: float
    """How long a worker has to be slow."""
    slow_since: dict[int, float] = field(default_factory=dict)
    told: set[int] = field(default_factory=set)


def stragglers(watch: StragglerWatch, workers: Iterable[WorkerProgress], now: float) -> list[str]:
    """Take in one check of all running workers; return the reports on new stragglers."""
    recent_s = watch.after_s / MAKES_NONE
    paces = {
        one.rank: one.steps_a_second
        for one in workers
        if one.steps_a_second is not None and (one.step_age_s or 0.0) <= recent_s
    }
    since = {rank: watch.slow_since.get(rank, now) for rank in slow_ones(paces)}
    watch.slow_since = since
    found = [rank for rank in sorted(since) if now - since[rank] >= watch.after_s]
    new = [rank for rank in found if rank not in watch.told]
    watch.told.update(new)
    return [sentences.straggler(rank, paces[rank], _middle(paces), watch.after_s) for rank in new]


def slow_ones(paces: Mapping[int, float]) -> set[int]:
    """Workers whose pace is less than half the median (rule 4)."""
    if len(paces) < 3:
        return set()
    middle = _middle(paces)
    return {rank for rank, pace in paces.items() if pace * SLOWER_BY < middle}


def _middle(paces: Mapping[int, float]) -> float:
    return sorted(paces.values())[(len(paces) - 1) // 2]
