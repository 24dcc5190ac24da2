"""At any instant at most one round has workers that execute user code, over all hosts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from tools.simulator.checkers.memory import TELL_OF_MEMORY, CoordinatorMemory
from tools.simulator.facts import (
    History,
    Violation,
    WorkerBegan,
    WorkerContinued,
    WorkerEnded,
    only,
)
from tools.simulator.plan import Plan


def check(plan: Plan, history: History) -> Iterator[Violation]:
    running: Counter[tuple[int, int]] = Counter()
    memory = CoordinatorMemory(plan)
    for fact in only(history, *TELL_OF_MEMORY, WorkerBegan, WorkerContinued, WorkerEnded):
        memory.was_lost(fact)
        if isinstance(fact, WorkerBegan | WorkerContinued):
            this = (fact.instance, fact.round)
            for other, count in running.items():
                if count and other != this and not _excused(memory, other, this):
                    text = f"rank {fact.rank} of round {fact.round} runs beside round {other[1]}"
                    yield Violation("one_round", fact.at, text)
                    break
            running[this] += 1
        elif isinstance(fact, WorkerEnded):
            running[fact.instance, fact.round] -= 1


def _excused(memory: CoordinatorMemory, one: tuple[int, int], other: tuple[int, int]) -> bool:
    """Whoever finds an empty register and never saw another thing cannot know of the older job."""
    return memory.was_emptied and one[0] != other[0]
