"""Round numbers and terms only grow, and nothing of an older one takes effect."""

from __future__ import annotations

from collections.abc import Iterator

from tools.simulator.checkers.memory import TELL_OF_MEMORY, CoordinatorMemory
from tools.simulator.facts import Delivered, History, Recorded, Violation, WorkerBegan, only
from tools.simulator.plan import Plan

from holdfast.core.protocol.messages import RunRound
from holdfast.core.protocol.model import Term

NAME = "only_forward"
MANY = 1000
"""More rounds than a run has: whoever counts on from there was lied to."""


def check(plan: Plan, history: History) -> Iterator[Violation]:
    yield from _rounds(plan, history)
    yield from _records(plan, history)
    yield from _obedience(history)


def _rounds(plan: Plan, history: History) -> Iterator[Violation]:
    highest: dict[int, int] = {}
    ran: dict[tuple[str, int], int] = {}
    memory = CoordinatorMemory(plan)
    for fact in only(history, *TELL_OF_MEMORY, WorkerBegan):
        if memory.was_lost(fact):
            assert isinstance(fact, Recorded)
            highest[fact.document.instance] = fact.document.ledger.round
        if not isinstance(fact, WorkerBegan):
            continue
        last = highest.get(fact.instance, 0)
        if fact.round < last:
            text = f"a worker of round {fact.round} starts after one of round {last}"
            yield Violation(NAME, fact.at, text)
        highest[fact.instance] = max(last, fact.round)
        key = (fact.node, fact.rank)
        if ran.get(key) == fact.round:
            text = f"rank {fact.rank} of round {fact.round} starts twice on {fact.node}"
            yield Violation(NAME, fact.at, text)
        ran[key] = fact.round


def _records(plan: Plan, history: History) -> Iterator[Violation]:
    last, last_round, counter, leader = Term(), 0, 0, ""
    memory = CoordinatorMemory(plan)
    for fact in only(history, *TELL_OF_MEMORY):
        lost = memory.was_lost(fact)
        if not isinstance(fact, Recorded):
            continue
        document, term = fact.document, fact.document.term
        yield from _beside_known(fact)
        if lost:
            last, last_round, counter, leader = Term(), 0, 0, ""
        if term < last or document.ledger.round < last_round:
            text = (
                f"term {term}, round {document.ledger.round} was written after "
                f"term {last}, round {last_round}"
            )
            yield Violation(NAME, fact.at, text)
        if document.ledger.round > last_round + MANY:
            text = f"round {document.ledger.round} was written after round {last_round}"
            yield Violation(NAME, fact.at, text)
        if document.counter <= counter:
            yield Violation(NAME, fact.at, f"the counter {document.counter} was written again")
        taken = document.leader not in ("", leader)
        if taken and leader and term <= last and not plan.embedded:
            text = f"{document.leader} follows {leader} under the same term {last}"
            yield Violation(NAME, fact.at, text)
        leader = document.leader or leader
        last, last_round = term, document.ledger.round
        counter = document.counter


def _beside_known(fact: Recorded) -> Iterator[Violation]:
    """Nobody goes back behind what it has been shown itself, whatever a register forgets."""
    document, known = fact.document, fact.known
    if known is None:
        return
    term, before = document.term, known.term
    back = term < before or document.ledger.round < known.ledger.round
    same = term == before and known.leader not in ("", fact.node)
    if back or same or document.ledger.charges < known.ledger.charges:
        text = (
            f"{fact.node} wrote term {term}, round {document.ledger.round} after it "
            f"had been shown term {before} of {known.leader}, round {known.ledger.round}"
        )
        yield Violation(NAME, fact.at, text)


def _obedience(history: History) -> Iterator[Violation]:
    highest: dict[str, Term] = {}
    rounds: dict[str, int] = {}
    for fact in only(history, Delivered):
        before = highest.get(fact.node, Term())
        if fact.obeyed and fact.term < before:
            said = type(fact.message).__name__
            text = f"{fact.node} obeys {said} of term {fact.term} after {before}"
            yield Violation(NAME, fact.at, text)
        highest[fact.node] = max(before, fact.term)
        if fact.obeyed and isinstance(fact.message, RunRound):
            number = fact.message.assignment.round
            if number < rounds.get(fact.node, 0):
                yield Violation(NAME, fact.at, f"{fact.node} goes back to round {number}")
            rounds[fact.node] = number
