"""How far each worker is and how fast, for status, metrics and the live view.

Rules
1. The pace is steps a second over about the last `WINDOW_S`. Where a step takes longer than that,
   it is over the last steps that are known, however long ago the first of them was.
2. A step that takes longer than those before lowers the pace while it lasts: the pace of a
   stalled worker falls towards zero and never stays at its old value.
3. A step below the previous one restarts the count: a program may count in each epoch
   by itself. Before a second step there is no pace.
"""

from __future__ import annotations

from msgspec import Struct, field

WINDOW_S = 30.0
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
