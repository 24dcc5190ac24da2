"""At any instant at most one round has workers that execute user code, over all hosts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from holdfast.testing.facts import History, Violation, WorkerBegan, WorkerContinued, WorkerEnded
from holdfast.testing.plan import Plan


def check(plan: Plan, history: History) -> Iterator[Violation]:
    running: Counter[int] = Counter()
    for fact in history:
        if isinstance(fact, WorkerBegan | WorkerContinued):
            others = [round for round, count in running.items() if count and round != fact.round]
            if others:
                text = f"rank {fact.rank} of round {fact.round} runs beside round {others[0]}"
                yield Violation("one_round", fact.at, text)
            running[fact.round] += 1
        elif isinstance(fact, WorkerEnded):
            running[fact.round] -= 1
