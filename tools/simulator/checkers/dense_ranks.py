"""Ranks are dense, unique, contiguous per node and right per role; sizes agree everywhere."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from tools.simulator.checkers.memory import TELL_OF_MEMORY, CoordinatorMemory
from tools.simulator.facts import Delivered, History, Violation, only
from tools.simulator.plan import Plan

from holdfast.core.protocol.messages import RunRound
from holdfast.core.protocol.model import Assignment

Seats = dict[int, tuple[str, Assignment]]


def check(plan: Plan, history: History) -> Iterator[Violation]:
    rounds: dict[tuple[int, int], Seats] = {}
    memory = CoordinatorMemory(plan)
    for fact in only(history, *TELL_OF_MEMORY, Delivered):
        if memory.was_lost(fact):
            rounds = {}
        if not isinstance(fact, Delivered) or not isinstance(fact.message, RunRound):
            continue
        assignment = fact.message.assignment
        seats = rounds.setdefault((fact.term.instance, assignment.round), {})
        for text in _wrong(plan, seats, fact.node, assignment):
            yield Violation("dense_ranks", fact.at, f"round {assignment.round}: {text}")
        seats[assignment.group_rank] = fact.node, assignment
        if len(seats) == assignment.group_size:
            for text in _wrong_together(plan, seats):
                yield Violation("dense_ranks", fact.at, f"round {assignment.round}: {text}")


def _role(plan: Plan, node: str) -> str:
    return plan.hosts[int(node.removeprefix("host").partition("-")[0])].role


def _slots(plan: Plan, node: str) -> int:
    return plan.hosts[int(node.removeprefix("host").partition("-")[0])].slots


def _wrong(plan: Plan, seats: Seats, node: str, new: Assignment) -> Iterator[str]:
    """What is wrong with one node's part, beside those that are known."""
    ranks = [worker.rank for worker in new.workers]
    if ranks != list(range(ranks[0], ranks[0] + len(ranks))):
        yield f"the ranks of {node} are not contiguous: {ranks}"
    if len(ranks) != _slots(plan, node):
        yield f"{node} has {_slots(plan, node)} slots and got {len(ranks)} ranks"
    if ranks[-1] >= new.world_size or new.group_rank >= new.group_size:
        yield f"{node} lies outside of its world"
    for other, known in seats.values():
        if other != node and known.group_rank == new.group_rank:
            yield f"{node} and {other} have the same place"
        if other == node and known != new:
            yield f"{node} was told two different things"
        sizes = (known.world_size, known.group_size, known.master, known.restart_count)
        if sizes != (new.world_size, new.group_size, new.master, new.restart_count):
            yield f"{node} and {other} were told different worlds"
            return


def _wrong_together(plan: Plan, seats: Seats) -> Iterator[str]:
    """What is wrong with a round of which every part is known."""
    ranks = [worker.rank for place in sorted(seats) for worker in seats[place][1].workers]
    world = seats[0][1].world_size
    if ranks != list(range(world)):
        yield f"the ranks are not dense: {ranks[:20]} of {world}"
    role_ranks: dict[str, list[int]] = {}
    sizes: Counter[str] = Counter()
    for place in sorted(seats):
        node, assignment = seats[place]
        role = _role(plan, node)
        role_ranks.setdefault(role, []).extend(w.role_rank for w in assignment.workers)
        sizes[role] = assignment.role_world_size
    for role, held in role_ranks.items():
        if held != list(range(sizes[role])):
            yield f"the ranks of role {role} are not dense: {held[:20]} of {sizes[role]}"
