"""Stuck workers: held by the kernel, for a device that does not answer, or by a signal.

Such a worker is no hang of the program's, and answers no request. So it is reported, with what
it waits for; and where a limit was given, it is not waited for any longer.

Rules
1. A worker is held while every check finds it in the same state (D: it waits in the kernel and
   cannot be woken; T: it was stopped by a signal), and it has not run in between.
2. A stretch without checks (a machine that slept) counts as two checks at the most.
3. A worker that is held for `told_after_s` is reported, once for each time.
4. A worker that is stuck in the kernel for `limit_s` counts as failed: not even SIGKILL ends it.
   A stopped worker may be continued by whatever stopped it: it is only reported.
5. A worker held by a debugger is not reported.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from msgspec import Struct, field

LATE_CHECKS = 2.0
How = Literal["stuck", "stopped"]
HOLDS: dict[str, How] = {"D": "stuck", "T": "stopped"}


class StuckLimits(Struct, frozen=True):
    """The limits. 0 is none."""

    told_after_s: float
    limit_s: float
    interval_s: float


class StuckSample(Struct, frozen=True):
    """One worker at one check."""

    local_rank: int
    state: str
    switches: int
    """How often it has given up the processor: it has run if that has grown."""


class Hold(Struct):
    """When a worker's hold began."""

    how: How
    switches: int
    held_s: float = 0.0
    told: bool = False
    ended: bool = False


class StuckFinding(Struct, frozen=True):
    """A worker that is held for too long."""

    local_rank: int
    how: How
    held_s: float
    ends: bool
    """Whether it counts as failed for it (rule 4)."""


class StuckWatch(Struct):
    """The held workers of one node in one round."""

    terms: StuckLimits
    holds: dict[int, Hold] = field(default_factory=dict)
    checked_at: float | None = None


def check(watch: StuckWatch, seen: Iterable[StuckSample], now: float) -> list[StuckFinding]:
    """Take in one check of all running workers; return the report."""
    elapsed_s = 0.0 if watch.checked_at is None else max(0.0, now - watch.checked_at)
    counted_s = min(elapsed_s, LATE_CHECKS * watch.terms.interval_s)
    watch.checked_at = now
    before, watch.holds = watch.holds, {}
    found = []
    for one in seen:
        how = HOLDS.get(one.state)
        if how is None:
            continue
        hold = before.get(one.local_rank)
        if hold is None or (hold.how, hold.switches) != (how, one.switches):
            hold = Hold(how, one.switches)
        else:
            hold.held_s += counted_s
        watch.holds[one.local_rank] = hold
        finding = _judge(watch.terms, one.local_rank, hold)
        if finding is not None:
            found.append(finding)
    return found


def _judge(terms: StuckLimits, local_rank: int, hold: Hold) -> StuckFinding | None:
    ends = hold.how == "stuck" and 0 < terms.limit_s <= hold.held_s
    is_new = (ends and not hold.ended) or (hold.held_s >= terms.told_after_s and not hold.told)
    if not is_new:
        return None
    hold.told, hold.ended = True, ends
    return StuckFinding(local_rank, hold.how, hold.held_s, ends)
