"""The promises of the protocol, one file each, checked against what really happened."""

from __future__ import annotations

from tools.simulator.checkers import (
    budget,
    closing,
    dense_ranks,
    healthy_nodes,
    leases,
    limits,
    one_round,
    one_speaker,
    only_forward,
    progress,
    promptness,
    quarantined,
    saving,
    seats,
    stalls,
    succession,
    untouched,
    written_first,
)
from tools.simulator.facts import History, Violation
from tools.simulator.plan import Plan

CHECKERS = (
    one_round,
    one_speaker,
    dense_ranks,
    limits,
    only_forward,
    closing,
    budget,
    leases,
    written_first,
    healthy_nodes,
    seats,
    progress,
    promptness,
    succession,
    untouched,
    saving,
    quarantined,
    stalls,
)
SHOWN = 10


def check(plan: Plan, history: History) -> list[Violation]:
    """Every promise that was not kept, in the order of the checkers; at most ten."""
    found: list[Violation] = []
    for checker in CHECKERS:
        for violation in checker.check(plan, history):
            found.append(violation)
            if len(found) >= SHOWN:
                return found
    return found
