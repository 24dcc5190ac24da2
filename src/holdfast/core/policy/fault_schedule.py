"""The faults that are injected into a job (`holdfast chaos`): which, when and where.

Rules
1. Each kind of fault comes at its own mean interval, at random moments: a job must not be able to
   count on it. The same seed gives the same plan.
2. Its target is drawn when its time has come, among those that are there then.
3. Nothing is drawn after the end, and the first comes no sooner than one mean interval halved:
   a job that has not begun shows nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeVar

from msgspec import Struct

from holdfast.core.protocol.requests import FaultKind

T = TypeVar("T")


class Dice(Protocol):
    """A source of randomness, which is the caller's: the core has none of its own."""

    def uniform(self, a: float, b: float, /) -> float: ...
    def choice(self, seq: Sequence[T], /) -> T: ...


class FaultRate(Struct, frozen=True):
    """One kind of fault, and how often it comes on average."""

    what: FaultKind
    every_s: float
    seconds: float = 0.0
    """Its duration, if it has one."""


class PlannedFault(Struct, frozen=True):
    """A fault and its time."""

    at_s: float
    rate: FaultRate


def plan_faults(rates: Sequence[FaultRate], length_s: float, dice: Dice) -> list[PlannedFault]:
    """All faults of a plan, in order."""
    planned: list[PlannedFault] = []
    for rate in rates:
        at_s = dice.uniform(0.5, 1.5) * rate.every_s
        while at_s < length_s:
            planned.append(PlannedFault(at_s, rate))
            at_s += dice.uniform(0.5, 1.5) * rate.every_s
    return sorted(planned, key=lambda one: one.at_s)
