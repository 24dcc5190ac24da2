"""After the faults the job goes on within a bound, and ends the same way everywhere."""

from __future__ import annotations

from collections.abc import Iterator

from tools.simulator.facts import (
    AgentFinished,
    CoreRaised,
    History,
    Late,
    Recorded,
    Violation,
    only,
)
from tools.simulator.plan import Plan

NAME = "progress"


def check(plan: Plan, history: History) -> Iterator[Violation]:
    outcome = None
    for fact in only(history, AgentFinished, CoreRaised, Late, Recorded):
        match fact:
            case Late():
                yield Violation(NAME, fact.at, fact.what)
            case CoreRaised():
                yield Violation("core", fact.at, f"the core raised {fact.error}")
            case Recorded():
                outcome = fact.document.ledger.outcome or outcome
            case AgentFinished() if outcome is not None and not fact.closed:
                own = fact.outcome.verdict in ("interrupted", "not_formed")
                spawner = "spawner" in fact.outcome.reason
                if not own and not spawner:
                    text = f"{fact.node} ended with {fact.outcome.verdict}, not {outcome.verdict}"
                    yield Violation(NAME, fact.at, text)
