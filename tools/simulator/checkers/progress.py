"""After the faults the job goes on within a bound, and ends the same way everywhere.

A node that the coordinator has welcomed is told how the job ended, whenever it came.
"""

from __future__ import annotations

from collections.abc import Iterator

from tools.simulator.facts import (
    AgentFinished,
    CoreRaised,
    FaultStruck,
    History,
    Late,
    NodeWelcomed,
    Recorded,
    Violation,
    only,
)
from tools.simulator.plan import Plan

NAME = "progress"
UNTOUCHED = ("job stopped", "record slow", "workers finish")
"""Faults that change nothing for who is connected."""


def check(plan: Plan, history: History) -> Iterator[Violation]:
    yield from _ends_alike(history)
    if plan.embedded:
        yield from _welcomed_is_told(history)


def _welcomed_is_told(history: History) -> Iterator[Violation]:
    """Looked at where nothing happened to the node, nor to the coordinator's, since."""
    welcomed: set[str] = set()
    for fact in only(history, AgentFinished, FaultStruck, NodeWelcomed):
        match fact:
            case NodeWelcomed():
                welcomed.add(fact.node)
            case FaultStruck() if fact.kind not in UNTOUCHED:
                welcomed = set() if fact.host == 0 else welcomed - {fact.node}
            case AgentFinished() if fact.node in welcomed and not fact.closed:
                if fact.outcome.verdict == "not_formed":
                    text = f"{fact.node} was welcomed, and never told how the job ended"
                    yield Violation(NAME, fact.at, text)


def _ends_alike(history: History) -> Iterator[Violation]:
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
