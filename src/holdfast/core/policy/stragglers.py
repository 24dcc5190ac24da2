"""Stragglers: workers slower than the rest, reported, and never ended for it.

Rules
1. A pace is steps a second between two checks that lie a window apart. A worker without a step in
   it, or not seen for all of it, has no pace: that may be a hang, and is no matter of pace.
2. A straggler makes less than half the steps of the median, in `WINDOWS` windows in a
   row. Where all wait for each other in every step, all have the pace of the slowest and there is
   no straggler: a group is as fast as its slowest, and its paces do not show which that is.
3. With fewer than three paces there is no median, and no worker is accused.
4. A straggler is reported once in a round.
"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct, field

WINDOWS = 3
FACTOR = 2.0


class PaceWatch(Struct):
    """The workers of one round, by rank."""

    after_s: float
    """How long a worker has to be slow: that many windows of equal length."""
    marks: dict[int, int] = field(default_factory=dict)
    """Each worker's step when the present window began."""
    began_at: float | None = None
    paces: dict[int, float] = field(default_factory=dict)
    """Steps a second, in the last window that has ended."""
    slow: dict[int, int] = field(default_factory=dict)
    """How many windows in a row each has been slow."""
    told: set[int] = field(default_factory=set)

    @property
    def window_s(self) -> float:
        return self.after_s / WINDOWS


def note(watch: PaceWatch, steps: Mapping[int, int], now: float) -> list[str]:
    """Take in each worker's step; return the report on stragglers, if any."""
    if watch.began_at is None or now - watch.began_at < watch.window_s:
        if watch.began_at is None:
            _begin(watch, steps, now)
        return []
    elapsed_s = now - watch.began_at
    made = {rank: step - watch.marks[rank] for rank, step in steps.items() if rank in watch.marks}
    watch.paces = {rank: count / elapsed_s for rank, count in made.items() if count > 0}
    _begin(watch, steps, now)
    return _stragglers(watch)


def _begin(watch: PaceWatch, steps: Mapping[int, int], now: float) -> None:
    watch.began_at = now
    watch.marks = dict(steps)


def slow_ones(paces: Mapping[int, float]) -> set[int]:
    """Workers whose pace is less than half the median, now (rules 2 and 3)."""
    if len(paces) < 3:
        return set()
    middle = _middle(paces)
    return {rank for rank, pace in paces.items() if pace * FACTOR < middle}


def _middle(paces: Mapping[int, float]) -> float:
    return sorted(paces.values())[(len(paces) - 1) // 2]


def _stragglers(watch: PaceWatch) -> list[str]:
    slow = slow_ones(watch.paces)
    if not slow:
        watch.slow = {}
        return []
    middle = _middle(watch.paces)
    watch.slow = {rank: watch.slow.get(rank, 0) + 1 for rank in slow}
    found = [r for r, windows in watch.slow.items() if windows >= WINDOWS and r not in watch.told]
    watch.told.update(found)
    others = f"where others make {_pace(middle)}, for {watch.after_s:.0f} s"
    return [
        f"rank {rank} is a straggler: {_pace(watch.paces[rank])}, {others}"
        for rank in sorted(found)
    ]


def _pace(steps_a_second: float) -> str:
    if steps_a_second >= 1.0:
        return f"{steps_a_second:.1f} steps a second"
    return f"a step in {1 / steps_a_second:.1f} s"
