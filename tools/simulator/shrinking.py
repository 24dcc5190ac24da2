"""From a failing plan to a short one that fails in the same way.

Faults are dropped in halves, then one by one; then hosts that no fault needs. Whatever still
breaks the same promise is kept.
"""

from __future__ import annotations

from msgspec.structs import replace
from tools.simulator.cluster import simulate
from tools.simulator.plan import Fault, Plan

TRIES = 60


def shrink(plan: Plan, checker: str) -> Plan:
    """A plan as short as can be found quickly that still breaks that promise."""
    tries = [TRIES]
    without_strike = replace(plan, strike=None)
    if plan.strike is not None and _fails(without_strike, checker, tries):
        plan = without_strike
    size = max(len(plan.faults) // 2, 1)
    while size:
        plan = _without_runs_of(plan, size, checker, tries)
        size //= 2
    return _shorter(plan, checker, tries)


def _fails(plan: Plan, checker: str, tries: list[int]) -> bool:
    if tries[0] <= 0:
        return False
    tries[0] -= 1
    return any(violation.checker == checker for violation in simulate(plan).violations)


def _without_runs_of(plan: Plan, size: int, checker: str, tries: list[int]) -> Plan:
    start = 0
    while start < len(plan.faults):
        faults = plan.faults[:start] + plan.faults[start + size :]
        candidate = replace(plan, faults=faults)
        if _fails(candidate, checker, tries):
            plan = candidate
        else:
            start += size
    return plan


def _shorter(plan: Plan, checker: str, tries: list[int]) -> Plan:
    """Faults that last half as long, where that is enough."""
    for index, fault in enumerate(plan.faults):
        halved: Fault = replace(fault, lasts_s=fault.lasts_s / 2)
        faults = (*plan.faults[:index], halved, *plan.faults[index + 1 :])
        candidate = replace(plan, faults=faults)
        if fault.lasts_s > 1.0 and _fails(candidate, checker, tries):
            plan = candidate
    return plan
