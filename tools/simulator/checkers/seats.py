"""A survivor keeps its seat, survivors keep their order, and rank 0 is one that has state."""

from __future__ import annotations

from collections.abc import Iterator

from tools.simulator.checkers.memory import TELL_OF_MEMORY, CoordinatorMemory
from tools.simulator.checkers.quarantined import hosts_out, number_of
from tools.simulator.facts import (
    AgentDied,
    AgentFinished,
    Delivered,
    FaultStruck,
    History,
    NodeDrained,
    Recorded,
    Violation,
    WorkerBegan,
    only,
)
from tools.simulator.plan import Plan

from holdfast.core.protocol.messages import RunRound
from holdfast.core.protocol.model import Assignment

NAME = "seats"
KEEPS_SEAT = frozenset(
    {"worker fails", "worker never retries", "slow start", "slow stop", "zygote lost"}
)
"""What may happen to a host without its node losing its seat."""


def check(plan: Plan, history: History) -> Iterator[Violation]:
    members: dict[int, dict[int, str]] = {}
    sizes: dict[int, int] = {}
    ran: dict[int, set[str]] = {}
    excused: set[str] = set()
    struck: set[int] = set()
    quarantined: set[int] = set()
    memory = CoordinatorMemory(plan)
    of_nodes = (AgentDied, AgentFinished, Delivered, NodeDrained, WorkerBegan)
    for fact in only(history, *TELL_OF_MEMORY, *of_nodes):
        if memory.was_lost(fact):
            members, sizes, ran = {}, {}, {}
        match fact:
            case Recorded():
                quarantined = hosts_out(fact.document)
            case FaultStruck() if fact.kind not in KEEPS_SEAT and fact.kind != "workers finish":
                struck.add(fact.host)
            case AgentDied() | AgentFinished() | NodeDrained():
                excused.add(fact.node)
            case WorkerBegan():
                ran.setdefault(fact.round, set()).add(fact.node)
            case Delivered() if isinstance(fact.message, RunRound):
                told: Assignment = fact.message.assignment
                sizes[told.round] = told.group_size
                round = members.setdefault(told.round, {})
                if told.group_rank in round:
                    continue
                round[told.group_rank] = fact.node
                if len(round) == told.group_size:
                    former = _last_whole(members, sizes, ran, told.round)
                    before = members.get(former, {})
                    whole = former and len(before) == sizes.get(former)
                    new = [round[place] for place in sorted(round)]
                    old = [before[place] for place in sorted(before)]
                    held = ran.get(former, set())
                    stateless = new[0] not in set().union(*ran.values())
                    if stateless:
                        yield from _state(fact.at, told.round, new, [n for n in old if n in held])
                    if whole and former == told.round - 1 and not struck:
                        out = {node for node in old if number_of(node) in quarantined}
                        yield from _kept(fact.at, told.round, new, old, excused | out)


def _last_whole(
    members: dict[int, dict[int, str]], sizes: dict[int, int], ran: dict[int, set[str]], before: int
) -> int:
    """The last round in which all members ran: nobody gets anywhere in another.

    Workers may begin after all was forgotten of the round that they are of.
    """
    known = (n for n in ran if n in members and n < before)
    return max((n for n in known if len(ran[n]) == len(members[n]) == sizes[n]), default=0)


def _state(at: float, number: int, new: list[str], old: list[str]) -> Iterator[Violation]:
    survivors = [node for node in old if node in new]
    if survivors and new[0] not in survivors:
        text = f"rank 0 of round {number} is {new[0]}, which has no state; {survivors[0]} has"
        yield Violation(NAME, at, text)


def _kept(
    at: float, number: int, new: list[str], old: list[str], excused: set[str]
) -> Iterator[Violation]:
    for node in old:
        if node not in new and node not in excused:
            text = f"{node} is alive and lost its seat in round {number}"
            yield Violation(NAME, at, text)
    survivors = [node for node in old if node in new]
    if new[: len(survivors)] != survivors:
        text = f"survivors {survivors} of round {number - 1} sit as {new}"
        yield Violation(NAME, at, text)
