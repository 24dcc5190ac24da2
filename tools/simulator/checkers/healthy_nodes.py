"""A node to which nothing has happened is never declared gone by a leader of its day.

What happens to the leader's own process (it slept, it was busy) is no excuse: all readable input
is handled first, and its own stalls extend every deadline. But one that sleeps again soon after it
woke up may be asleep whenever a node that has hung up dials it, however long it was awake in all. A
leader that could not reach its
register is excused: it may answer nobody, so nodes hang up and look for another. And whatever
happens, no node is taken for a liar: all of them are honest here.
"""

from __future__ import annotations

from collections.abc import Iterator

from tools.simulator.facts import (
    AgentDied,
    AgentFinished,
    FaultStruck,
    History,
    LeaseRenewed,
    NodeDeclaredGone,
    NodeRefused,
    Violation,
    only,
)
from tools.simulator.lying import LIAR
from tools.simulator.plan import HARMLESS, Plan

NAME = "healthy_nodes"
NEARLY = 0.8
"""Of how long a node may be silent: clocks differ, and a sleep may begin later than drawn."""


def check(plan: Plan, history: History) -> Iterator[Violation]:
    struck: set[int] = set()
    silenced_until = float("-inf")
    sleeps: dict[int, list[FaultStruck]] = {}
    renewed: dict[str, float] = {}
    dead: set[str] = {LIAR}
    of_nodes = (AgentDied, AgentFinished, LeaseRenewed, NodeDeclaredGone, NodeRefused)
    for fact in only(history, FaultStruck, *of_nodes):
        match fact:
            case LeaseRenewed():
                renewed[fact.node] = fact.at
            case FaultStruck():
                own = fact.kind not in HARMLESS
                slept = fact.kind in ("agent pauses", "host pauses", "leader pauses mid-word")
                if fact.kind.startswith("register"):
                    silenced_until = max(silenced_until, fact.until)
                if own:
                    struck.add(fact.host)
                elif slept:
                    struck.add(-1 - fact.host)
                    sleeps.setdefault(fact.host, []).append(fact)
            case AgentDied() | AgentFinished():
                dead.add(fact.node)
            case NodeRefused():
                yield Violation(NAME, fact.at, f"{fact.node} was refused: {fact.reason}")
            case NodeDeclaredGone() if fact.in_term and fact.node not in dead:
                host = int(fact.node.removeprefix("host").partition("-")[0])
                excused = host in struck or -1 - host in struck or fact.by_host in struck
                excused |= fact.at <= silenced_until + plan.config.leases.gone_after_s
                asleep = sleeps.get(fact.by_host, [])
                excused |= _slept_twice(plan, asleep, renewed.get(fact.node, 0.0), fact.at)
                if not excused:
                    text = f"{fact.node} was declared gone although nothing had happened to it"
                    yield Violation(NAME, fact.at, text)


def _slept_twice(plan: Plan, sleeps: list[FaultStruck], heard_at: float, at: float) -> bool:
    """Whether it was awake for long enough since it last heard the node, but not at a stretch."""
    missed = [sleep for sleep in sleeps if sleep.until > heard_at]
    if len(missed) < 2:
        return False
    awake_s, awake_at = 0.0, heard_at
    for sleep in missed:
        awake_s += max(sleep.at - awake_at, 0.0)
        awake_at = max(awake_at, sleep.until)
    return awake_s + at - awake_at >= NEARLY * plan.config.leases.gone_after_s
