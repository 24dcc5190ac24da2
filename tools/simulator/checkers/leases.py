"""No worker runs without a live lease, by its own host's clock, and none outlives its agent.

Both with the kill margin: that long SIGKILL may take. And no worker starts on a host before the
processes of the round before are reaped: what they held is not free.
"""

from __future__ import annotations

from collections.abc import Iterator

from tools.simulator.facts import (
    AgentDied,
    History,
    LeaseRenewed,
    StartedBeforeReaped,
    Violation,
    WorkerBegan,
    WorkerContinued,
    WorkerEnded,
    only,
)
from tools.simulator.plan import Plan

NAME = "leases"
TOLERANCE_S = 1e-6


def check(plan: Plan, history: History) -> Iterator[Violation]:
    margin_s = plan.config.leases.kill_margin_s * 0.95
    until: dict[str, float] = {}
    died: dict[str, float] = {}
    running: dict[tuple[str, int], int] = {}
    of_workers = (StartedBeforeReaped, WorkerBegan, WorkerContinued, WorkerEnded)
    for fact in only(history, LeaseRenewed, AgentDied, *of_workers):
        match fact:
            case LeaseRenewed():
                until[fact.node] = max(until.get(fact.node, 0.0), fact.until)
            case StartedBeforeReaped():
                text = f"round {fact.round} starts on {fact.node} before the old one is reaped"
                yield Violation(NAME, fact.at, text)
            case AgentDied():
                died[fact.node] = fact.at
            case WorkerBegan() | WorkerContinued():
                running[fact.node, fact.rank] = fact.round
                if fact.at > until.get(fact.node, 0.0) + TOLERANCE_S:
                    text = f"rank {fact.rank} starts on {fact.node} without a lease"
                    yield Violation(NAME, fact.at, text)
            case WorkerEnded():
                running.pop((fact.node, fact.rank), None)
                yield from _outlived(fact, until.get(fact.node, 0.0), died, margin_s)
    end = history[-1].at if history else 0.0
    for (node, rank), round in running.items():
        if end > until.get(node, 0.0) + margin_s:
            yield Violation(NAME, end, f"rank {rank} of round {round} still runs on {node}")


def _outlived(
    fact: WorkerEnded, until: float, died: dict[str, float], margin_s: float
) -> Iterator[Violation]:
    if fact.at > until + margin_s + TOLERANCE_S:
        text = f"rank {fact.rank} ran on {fact.node} {fact.at - until:.2f} s beyond the lease"
        yield Violation(NAME, fact.at, text)
    # Nobody is left to kill an orphan: only what holds the node's note knows of it.
    outlived = fact.node in died and fact.how != "orphaned"
    if outlived and fact.at > died[fact.node] + margin_s + TOLERANCE_S:
        text = f"rank {fact.rank} outlived the agent {fact.node}"
        yield Violation(NAME, fact.at, text)
