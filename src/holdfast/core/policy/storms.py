"""The faults of a chaos run: which, when and on what target (`holdfast chaos`).

Rules
1. Each kind of fault comes at its own mean interval, at random moments: a job must not be able to
   count on it. The same seed gives the same faults.
2. The target is drawn when the fault is due, among those that are there then.
3. Nothing is drawn after the end, and the first comes no sooner than one mean interval halved:
   a job that has not begun shows nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeVar

from msgspec import Struct

from holdfast.core.protocol.requests import Harm

T = TypeVar("T")


class Dice(Protocol):
    """A source of randomness, which is the caller's: the core has none of its own."""

    def uniform(self, a: float, b: float, /) -> float: ...
    def choice(self, seq: Sequence[T], /) -> T: ...


class HarmRate(Struct, frozen=True):
    """One kind of fault, and how often it comes on average."""

    what: Harm
    every_s: float
    seconds: float = 0.0
    """Its duration, if it has one."""


class Stroke(Struct, frozen=True):
    """A fault and its time."""

    at_s: float
    rate: HarmRate


def storm(rates: Sequence[HarmRate], length_s: float, dice: Dice) -> list[Stroke]:
    """All faults of a run, in order."""
    strokes: list[Stroke] = []
    for rate in rates:
        at_s = dice.uniform(0.5, 1.5) * rate.every_s
        while at_s < length_s:
            strokes.append(Stroke(at_s, rate))
            at_s += dice.uniform(0.5, 1.5) * rate.every_s
    return sorted(strokes, key=lambda stroke: stroke.at_s)
