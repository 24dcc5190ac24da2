"""No worker is touched when only the coordinator is lost, or only its register.

Looked at where one such thing is all that ever went wrong, with leases of their usual length. A
leader whose node has no worker in the round dies, falls silent or leaves. A leader sleeps, and
wakes up before the lease of its own workers is over, whether another one leads by then or not. A
member sleeps for less than it takes to miss it. The register is out of reach for less than a leader
may hold on.
"""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import Struct, field
from tools.simulator.facts import (
    FaultStruck,
    Healed,
    History,
    Recorded,
    RoundEnding,
    Violation,
    WorkerBegan,
    WorkerEnded,
    only,
)
from tools.simulator.plan import Plan

from holdfast.core.policy.config import Leases

NAME = "untouched"
USUAL_LEASE_S = 10.0
DEATHS = ("agent crashes", "node is killed", "host crashes", "drain")
OF_THE_REGISTER = ("register", "deaf to register", "watch", "pushes")
SETTLED_S = 3.0
"""How long the round has run before it is struck: every node knows its coordinator."""
REPORT_S = 0.4
"""Until a node that woke up has found the leader."""
LATER_S = 30.0


class Round(Struct):
    """The newest round: who runs it, and since when nothing has changed."""

    number: int = 0
    since: float = 0.0
    running: set[tuple[str, int]] = field(default_factory=set)


def check(plan: Plan, history: History) -> Iterator[Violation]:
    struck = only(history, FaultStruck)
    if plan.embedded or len(struck) != 1 or plan.config.leases.lease_s < USUAL_LEASE_S:
        return
    fault = struck[0]
    index = history.index(fault)
    round = _round(history[:index])
    settled = round.running and fault.at - round.since > SETTLED_S
    led = [f.document.leader for f in only(history[:index], Recorded)][-1:] == [fault.node]
    if settled and _spares_workers(plan, fault, round, led=led):
        yield from _touched(history[index:], fault, round)


def _round(before: History) -> Round:
    round = Round()
    for fact in before:
        if isinstance(fact, WorkerBegan):
            if fact.round > round.number:
                round = Round(fact.round)
            round.running.add((fact.node, fact.rank))
            round.since = fact.at
        elif isinstance(fact, WorkerEnded | RoundEnding):
            round.running.clear()  # Something is going on.
    return round


def _spares_workers(plan: Plan, fault: FaultStruck, round: Round, *, led: bool) -> bool:
    leases: Leases = plan.config.leases
    lasts_s = fault.until - fault.at
    if fault.kind in DEATHS:
        # Who has to ask whether a machine fell silent may find out too late for some.
        asks = fault.kind == "host crashes" and plan.register.kind in ("plain", "forgetful")
        return all(node != fault.node for node, _ in round.running) and not asks
    if fault.kind == "agent pauses":
        if not led:
            return lasts_s < leases.suspect_s - leases.heartbeat_s
        lease_s = leases.lease_s - leases.stop_reserve_s - leases.heartbeat_s
        return lasts_s < lease_s - REPORT_S
    return fault.kind.startswith(OF_THE_REGISTER) and lasts_s < leases.hold_s


def _touched(after: History, fault: FaultStruck, round: Round) -> Iterator[Violation]:
    for fact in after:
        if isinstance(fact, Healed) or fact.at > fault.at + LATER_S:
            return
        if isinstance(fact, RoundEnding) and fact.kind in ("newcomers", "drain"):
            return
        touched = isinstance(fact, WorkerEnded) and fact.round == round.number
        if isinstance(fact, WorkerEnded) and touched and fact.how != "succeeded":
            text = f"rank {fact.rank} on {fact.node} was {fact.how} although only {fault.kind}"
            yield Violation(NAME, fact.at, text)
            return
