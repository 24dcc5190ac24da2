"""All workers of a round that save before a node leaves do so at one and the same step."""

from __future__ import annotations

from collections.abc import Iterator

from holdfast.testing.facts import History, Violation, WorkerSaved
from holdfast.testing.plan import Plan


def check(plan: Plan, history: History) -> Iterator[Violation]:
    first: dict[tuple[int, int], WorkerSaved] = {}
    for fact in history:
        if not isinstance(fact, WorkerSaved):
            continue
        other = first.setdefault((fact.instance, fact.round), fact)
        if fact.step != other.step:
            ranks = f"rank {fact.rank} at step {fact.step}, rank {other.rank} at step {other.step}"
            yield Violation("saving", fact.at, f"round {fact.round} was saved by {ranks}")
