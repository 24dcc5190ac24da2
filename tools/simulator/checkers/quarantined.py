"""A host is kept out for what happened there alone, and whoever takes over knows of it.

What is written down says who is kept out and for how long. Nobody is before enough went wrong on
that host; no node of it is in a round that was written down meanwhile; and it comes back sooner
only if it is in the next round all the same, because the job needs it, or if the like happened
elsewhere. No round is ended for newcomers that then get no seat, since their host is kept out, and
no job is given up for want of nodes that are kept out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from msgspec import Struct, field
from tools.simulator.checkers.memory import TELL_OF_MEMORY, CoordinatorMemory
from tools.simulator.facts import (
    AgentDied,
    Delivered,
    FaultStruck,
    History,
    NodeDeclaredGone,
    Recorded,
    RoundEnding,
    Violation,
    WorkerEnded,
    only,
)
from tools.simulator.plan import Plan

from holdfast.core.protocol.document import Document, HostKept, roll
from holdfast.core.protocol.messages import RunRound
from holdfast.core.protocol.naming import host_of

NAME = "quarantined"
SLACK_S = 0.5
"""For what differs between two clocks, and between deciding and writing."""


class _Stay(Struct):
    kept: HostKept
    began_at: float
    until: float
    round: int
    """The last one that was formed when it began."""


class _Story(Struct):
    stays: dict[int, _Stay] = field(default_factory=dict)
    troubles: Counter[int] = field(default_factory=Counter)
    """What went wrong on each host."""
    failed: dict[int, float] = field(default_factory=dict)
    """When a worker last failed by itself on each host."""
    died: dict[int, float] = field(default_factory=dict)
    """When an agent last died on each: it may have been given a seat and not heard of it."""
    out: dict[int, set[int]] = field(default_factory=dict)
    """Who was kept out when each round was written down."""
    grows: tuple[int, int] | None = None
    """The number and size of a round that was ended for newcomers, if nothing happened since."""
    size: int = 0
    """Of the last round that was written down."""


def number_of(node: str) -> int:
    return roll((host_of(node),))


def hosts_out(document: Document) -> set[int]:
    return {kept.host for kept in document.ledger.hosts if kept.left_s > 0}


def check(plan: Plan, history: History) -> Iterator[Violation]:
    seated = {
        (fact.message.assignment.round, number_of(fact.node))
        for fact in only(history, Delivered)
        if isinstance(fact.message, RunRound)
    }
    story, memory = _Story(), CoordinatorMemory(plan)
    of_nodes = (AgentDied, Delivered, NodeDeclaredGone, RoundEnding, WorkerEnded)
    for fact in only(history, *TELL_OF_MEMORY, *of_nodes):
        if memory.was_lost(fact):
            story = _Story(troubles=story.troubles)
        match fact:
            case Recorded():
                yield from _recorded(plan, story, fact, seated)
            case RoundEnding():
                story.grows = (fact.round, story.size) if fact.kind == "newcomers" else None
            case FaultStruck():
                story.grows = None
            case WorkerEnded() if fact.how == "failed":
                story.troubles[number_of(fact.node)] += 1
                story.failed[number_of(fact.node)] = fact.at
            case AgentDied() | NodeDeclaredGone():
                story.troubles[number_of(fact.node)] += 1
                story.died[number_of(fact.node)] = fact.at
            case Delivered() if isinstance(fact.message, RunRound):
                number = fact.message.assignment.round
                if number_of(fact.node) in story.out.get(number, ()):
                    text = f"{fact.node} is kept out, and was told to run round {number}"
                    yield Violation(NAME, fact.at, text)


def _recorded(
    plan: Plan, story: _Story, fact: Recorded, seated: set[tuple[int, int]]
) -> Iterator[Violation]:
    ledger, out = fact.document.ledger, hosts_out(fact.document)
    if ledger.size:
        story.out.setdefault(ledger.round, out)
        if story.grows is not None and ledger.round > story.grows[0]:
            if ledger.size <= story.grows[1] and out:
                text = f"round {story.grows[0]} was ended for newcomers who got no seat"
                yield Violation(NAME, fact.at, text)
            story.grows = None
        story.size = ledger.size
    for number, stay in list(story.stays.items()):
        if number in out:
            continue
        del story.stays[number]
        needed = any((r, number) in seated for r in range(stay.round + 1, ledger.round + 1))
        died = story.died.get(number, -1.0) >= stay.began_at
        needed |= died and any(kept.host == number for kept in ledger.hosts)
        given_up = ledger.outcome is not None and ledger.outcome.verdict == "not_formed"
        if given_up and not (needed or died):
            yield Violation(NAME, fact.at, "the job was given up while a host was kept out")
        elsewhere = any(n != number and at >= stay.began_at for n, at in story.failed.items())
        excused = needed or elsewhere or ledger.outcome or ledger.closing
        if fact.sent_at < stay.until - SLACK_S and not excused:
            text = f"a host was to be kept out until {stay.until:.1f} s, and nobody knows of it"
            yield Violation(NAME, fact.at, text)
    for kept in ledger.hosts:
        known = story.stays.get(kept.host)
        if kept.host not in out or (known is not None and known.kept == kept):
            continue
        if known is None and story.troubles[kept.host] < plan.config.quarantine.after:
            text = f"a host is kept out on which {story.troubles[kept.host]} things went wrong"
            yield Violation(NAME, fact.at, text)
        until = fact.sent_at + kept.left_s * 0.97
        began_at = known.began_at if known is not None else fact.sent_at
        story.stays[kept.host] = _Stay(kept, began_at, until, ledger.round)
