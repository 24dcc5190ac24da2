"""A node to which nothing has happened is never declared gone by a leader of its day.

What happens to the leader's own process (it slept, it was busy) is no excuse: all readable input
is handled first, and its own stalls extend every deadline. But one that sleeps again soon after it
woke up may be asleep whenever a node that has hung up dials it. A leader that could not reach its
register is excused: it may answer nobody, so nodes hang up and look for another. And whatever
happens, no node is taken for a liar: all of them are honest here.
"""

from __future__ import annotations

from collections.abc import Iterator

from holdfast.testing.facts import (
    AgentDied,
    AgentFinished,
    FaultStruck,
    History,
    NodeDeclaredGone,
    NodeRefused,
    Violation,
)
from holdfast.testing.lying import LIAR
from holdfast.testing.plan import HARMLESS, Plan

NAME = "healthy_nodes"


def check(plan: Plan, history: History) -> Iterator[Violation]:
    struck: set[int] = set()
    silenced_until = float("-inf")
    sleeps: dict[int, list[FaultStruck]] = {}
    dead: set[str] = {LIAR}
    for fact in history:
        match fact:
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
            case NodeDeclaredGone() if fact.in_tenure and fact.node not in dead:
                host = int(fact.node.removeprefix("host").partition("-")[0])
                excused = host in struck or -1 - host in struck or fact.by_host in struck
                excused |= fact.at <= silenced_until + plan.config.leases.gone_after_s
                excused |= _slept_twice(plan, sleeps.get(fact.by_host, []), fact.at)
                if not excused:
                    text = f"{fact.node} was declared gone although nothing had happened to it"
                    yield Violation(NAME, fact.at, text)


def _slept_twice(plan: Plan, sleeps: list[FaultStruck], at: float) -> bool:
    """Whether it slept again before everybody had had the time to come back."""
    if len(sleeps) < 2:
        return False
    enough_s = plan.config.leases.gone_after_s
    before, last = sleeps[-2:]
    return last.at < before.until + enough_s and at < last.until + enough_s
