"""Before a node leaves a round all of its workers save, at one step, if they ask and there is time.

Whenever all are asked to, nobody leaving, they save at one step, too, and nobody who waited is let
go on once another has saved: it would be missing there.

Whether there was time is only judged where nothing else went wrong: whoever is asked twice, or
loses its coordinator, waits for nobody.
"""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import Struct, field

from holdfast.testing.facts import (
    History,
    NodeDrained,
    RoundEnding,
    SteppedDown,
    Violation,
    WorkerBegan,
    WorkerEnded,
    WorkerListened,
    WorkerReleased,
    WorkerSaved,
    only,
)
from holdfast.testing.plan import FaultKind, Plan

NAME = "saving"
ORDERLY: frozenset[FaultKind] = frozenset({"drain", "everybody is asked"})
BARELY_S = 0.5
"""Whoever begins to listen so shortly before somebody is asked may not be known to."""


class RoundSaved(Struct):
    """One round, as far as it matters for saving."""

    first: dict[int, WorkerSaved] = field(default_factory=dict)
    """By the number of what was to be saved."""
    listens: dict[int, float] = field(default_factory=dict)
    """By rank of those that run and have not saved: since when."""
    asked_at: float | None = None
    nodes: set[str] = field(default_factory=set)
    ranks: set[int] = field(default_factory=set)


def check(plan: Plan, history: History) -> Iterator[Violation]:
    rounds: dict[int, RoundSaved] = {}
    is_orderly = all(fault.kind in ORDERLY for fault in plan.faults) and plan.strike is None
    asked: set[str] = set()
    of_workers = (WorkerBegan, WorkerEnded, WorkerListened, WorkerReleased, WorkerSaved)
    for fact in only(history, *of_workers, NodeDrained, RoundEnding, SteppedDown):
        match fact:
            case WorkerBegan():
                known = rounds.setdefault(fact.round, RoundSaved())
                if fact.rank in known.ranks:  # It is of another life of the job.
                    known = rounds[fact.round] = RoundSaved()
                known.nodes.add(fact.node)
                known.ranks.add(fact.rank)
            case WorkerListened():
                rounds[fact.round].listens[fact.rank] = fact.at
            case WorkerSaved():
                rounds[fact.round].listens.pop(fact.rank, None)
                yield from _one_step(rounds[fact.round], fact)
            case WorkerReleased():
                yield from _left_behind(rounds[fact.round], fact)
            case WorkerEnded():
                rounds[fact.round].listens.pop(fact.rank, None)
            case NodeDrained():
                is_orderly &= fact.node not in asked
                asked.add(fact.node)
                for known in rounds.values():
                    if fact.node in known.nodes and known.asked_at is None:
                        known.asked_at = fact.at
            case SteppedDown():
                is_orderly = False
            case RoundEnding(kind="drain") if is_orderly and fact.round in rounds:
                yield from _too_soon(plan, rounds[fact.round], fact)


def _one_step(known: RoundSaved, fact: WorkerSaved) -> Iterator[Violation]:
    other = known.first.get(fact.number)
    if other is None or other.instance != fact.instance:
        known.first[fact.number] = fact
    elif fact.step != other.step:
        ranks = f"rank {fact.rank} at step {fact.step}, rank {other.rank} at step {other.step}"
        yield Violation(NAME, fact.at, f"round {fact.round} was saved by {ranks}")


def _left_behind(known: RoundSaved, fact: WorkerReleased) -> Iterator[Violation]:
    other = known.first.get(fact.number)
    if other is not None and other.instance == fact.instance:
        text = f"rank {fact.rank} goes on, and rank {other.rank} has saved in round {fact.round}"
        yield Violation(NAME, fact.at, text)


def _too_soon(plan: Plan, known: RoundSaved, fact: RoundEnding) -> Iterator[Violation]:
    asked_at = known.asked_at
    if asked_at is None or fact.at >= asked_at + plan.config.timeouts.save_s / 1.05:
        return
    unsaved = [rank for rank, since in known.listens.items() if since < asked_at - BARELY_S]
    if unsaved:
        text = f"round {fact.round} was ended for a drain before rank {unsaved[0]} had saved"
        yield Violation(NAME, fact.at, text)
