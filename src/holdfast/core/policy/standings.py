"""How far each worker is and how fast, for whoever shows it: status, metrics, a live view.

Rules
1. The pace is steps a second over about the last `WINDOW_S`. Where a step takes longer than that,
   it is over the last steps that are known, however long ago the first of them was.
2. A step that takes longer than those before lowers the pace while it lasts: of a worker that
   stands still, the pace falls towards nothing and is never what it was.
3. A step that is below the one before it begins the count anew: a program may count in each epoch
   by itself. Before a second step there is no pace.
"""

from __future__ import annotations

from msgspec import Struct, field

WINDOW_S = 30.0
MARKS_APART_S = 3.0
"""A mark for each look would be many where looks are frequent, and no better."""


class WorkerProgress(Struct, frozen=True):
    """One worker that runs; ages are in seconds, up to the moment of the look."""

    rank: int
    local_rank: int
    pid: int
    step: int | None = None
    """The last that it said; None where it said none."""
    step_age_s: float | None = None
    """How long ago that was."""
    steps_a_second: float | None = None
    """None where no second step is known."""
    phase: str = ""
    """What it is at, where it says so (`holdfast.phase`)."""


class StepMarks(Struct):
    """Where one worker was, and when; the oldest first."""

    marks: list[tuple[float, int]] = field(default_factory=list)


def note(seen: StepMarks, step: int, at: float) -> None:
    """It made this step at that time. What is known already changes nothing."""
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
    """Steps a second (rules 1 and 2); None where that cannot be told."""
    if len(seen.marks) < 2:
        return None
    (began, first), (ended, last) = seen.marks[0], seen.marks[-1]
    span_s, count = max(ended - began, 1e-9), last - first
    overdue_s = max(0.0, now - ended - span_s / count)
    return count / (span_s + overdue_s)
