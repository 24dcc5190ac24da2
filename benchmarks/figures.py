"""What was measured, and how it is judged.

A figure holds every sample of every contender; medians, ratios and verdicts are derived from
them when asked for, and never stored without the samples they come from.
"""

from __future__ import annotations

import statistics
from typing import Literal

from msgspec import Struct, field

HOLDFAST = "holdfast"
TORCHRUN = "torchrun"

Judgement = Literal["ratio at least", "at most", "below", "at least"]


class Target(Struct, frozen=True):
    """What Holdfast has to reach: times better than torchrun, or a value of its own."""

    judgement: Judgement
    value: float
    ratio: float | None = None
    """Times better than torchrun, where that is asked for beside the value."""

    def is_reached(self, figure: Figure) -> bool:
        if self.ratio is not None and (figure.ratio() or 0.0) < self.ratio:
            return False
        found = figure.ratio() if self.judgement == "ratio at least" else figure.median(HOLDFAST)
        if found is None:
            return False
        if self.judgement == "at most":
            return found <= self.value
        return found < self.value if self.judgement == "below" else found >= self.value

    def describe(self, unit: str) -> str:
        sign = {"ratio at least": "≥", "at most": "≤", "below": "<", "at least": "≥"}
        after = "×" if self.judgement == "ratio at least" else f" {unit}".rstrip()
        beside = "" if self.ratio is None else f", ≥ {self.ratio:g}×"
        return f"{sign[self.judgement]} {self.value:g}{after}{beside}"


class Figure(Struct):
    """One thing that was measured, for each contender as often as was asked for."""

    measure: str
    """The letter of the measure that it belongs to, or `floor`."""
    name: str
    """Short, stable: by it figures are found in the stored results."""
    title: str
    unit: str = "s"
    more_is_better: bool = False
    counts_runs: bool = False
    """The samples are 1 for a run of which the title is true, and 0 for the others."""
    target: Target | None = None
    samples: dict[str, list[float]] = field(default_factory=dict)
    failures: dict[str, list[str]] = field(default_factory=dict)
    """Why runs gave no sample."""

    def add(self, contender: str, value: float) -> None:
        self.samples.setdefault(contender, []).append(value)

    def add_failure(self, contender: str, reason: str) -> None:
        self.failures.setdefault(contender, []).append(reason)

    def median(self, contender: str) -> float | None:
        values = self.samples.get(contender)
        if not values:
            return None
        return sum(values) if self.counts_runs else statistics.median(values)

    def ratio(self) -> float | None:
        """How many times better Holdfast is; below 1 it is worse."""
        ours, theirs = self.median(HOLDFAST), self.median(TORCHRUN)
        if self.counts_runs or not ours or not theirs:
            return None
        return ours / theirs if self.more_is_better else theirs / ours

    def verdict(self) -> str:
        """`reached`, `not reached`, or nothing where there is no target."""
        if self.target is None or HOLDFAST not in {*self.samples, *self.failures}:
            return ""
        return "reached" if self.target.is_reached(self) else "not reached"

    def show(self, contender: str) -> str:
        """The median with its unit, and how many runs it is short of."""
        value = self.median(contender)
        failed = len(self.failures.get(contender, ()))
        if value is None:
            return f"{failed} failed" if failed else "–"
        if self.counts_runs:
            return f"{value:.0f} of {len(self.samples[contender])}"
        short = f" ({failed} failed)" if failed else ""
        return f"{format_value(value)} {self.unit}".rstrip() + short


def format_value(value: float) -> str:
    """Three digits that count, and no more than are known."""
    if value == 0 or abs(value) >= 100:
        return f"{value:.0f}"
    return f"{value:.3g}" if abs(value) < 10 else f"{value:.1f}"
