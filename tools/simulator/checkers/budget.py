"""The restart budget is never exceeded, failures are charged, and membership changes are free.

A round is charged at most once, and only if a worker of it failed. It is not charged when the
only failures are those of peers of a node that died, or whose lease had ended. A round in which a
worker failed while nothing else went wrong anywhere is charged before the next round begins.
"""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import Struct, field
from tools.simulator.checkers.memory import TELL_OF_MEMORY, CoordinatorMemory
from tools.simulator.facts import (
    AgentDied,
    FaultStruck,
    History,
    LeaseEnded,
    Recorded,
    RoundEnding,
    Violation,
    WorkerBegan,
    WorkerContinued,
    WorkerEnded,
    only,
)
from tools.simulator.plan import Plan

NAME = "budget"
QUIET_S = 12.0


class RoundStory(Struct):
    """What happened in one round, as far as it matters for its charge."""

    running: dict[str, int] = field(default_factory=dict)
    failed_at: float | None = None
    victim: bool = False
    died: str = ""
    """A node that died while its workers ran."""
    without_lease: str = ""
    """A node that stopped its workers because nobody had renewed its lease."""
    suspended: bool = False
    was_ending: bool = False
    """It was being stopped for another reason when a worker failed."""
    ending: bool = False


def check(plan: Plan, history: History) -> Iterator[Violation]:
    stories: dict[int, RoundStory] = {}
    charges = latest = most = 0
    memory = CoordinatorMemory(plan)
    of_workers = (WorkerBegan, WorkerContinued, WorkerEnded)
    of_endings = (AgentDied, LeaseEnded, RoundEnding)
    for fact in only(history, *TELL_OF_MEMORY, *of_workers, *of_endings):
        lost = memory.was_lost(fact)
        match fact:
            case Recorded():
                now = fact.document.ledger.charges
                if lost and memory.was_emptied:
                    charges = min(charges, now)
                if not memory.was_emptied or now > most:  # Else it is only known again.
                    yield from _charged(plan, stories.get(latest), fact, now - charges)
                most = max(most, now)
                charges = now if now >= charges or plan.keeps_record else charges
            case WorkerBegan():
                story = stories.setdefault(fact.round, RoundStory())
                story.running[fact.node] = story.running.get(fact.node, 0) + 1
                latest = max(latest, fact.round)
            case WorkerContinued():
                story = stories[fact.round]
                story.running[fact.node] = story.running.get(fact.node, 0) + 1
            case WorkerEnded():
                _ended(stories[fact.round], fact)
            case AgentDied() if latest:
                if stories[latest].running.get(fact.node):
                    stories[latest].died = fact.node
            case LeaseEnded() if fact.round in stories and not stories[fact.round].ending:
                stories[fact.round].without_lease = fact.node
            case RoundEnding() if fact.round in stories:
                stories[fact.round].ending = True
    if not memory.was_emptied:
        yield from _uncharged(plan, history, stories)


def _ended(story: RoundStory, fact: WorkerEnded) -> None:
    story.running[fact.node] = story.running.get(fact.node, 1) - 1
    if fact.how == "failed" and story.failed_at is None:
        story.failed_at, story.was_ending = fact.at, story.ending
    story.victim |= fact.how == "victim"
    story.suspended |= fact.how == "suspended"


def _charged(
    plan: Plan, story: RoundStory | None, fact: Recorded, more: int
) -> Iterator[Violation]:
    if more < 0 and plan.keeps_record:
        yield Violation(NAME, fact.at, "charges were forgotten")
    if more <= 0 or (plan.embedded and not plan.keeps_record):
        return
    if more > 1:
        yield Violation(NAME, fact.at, f"one round was charged {more} times")
    if fact.document.ledger.charges > plan.config.restarts.max_restarts + 1:
        yield Violation(NAME, fact.at, "the job went on beyond its budget")
    # One that failed on a host that was paused is seen to have failed when that goes on.
    failed = story is not None and (story.failed_at is not None or story.suspended)
    if story is None or not (failed or story.victim):
        yield Violation(NAME, fact.at, "a round was charged in which no worker failed")
    elif not failed and story.died:
        text = f"the budget was charged for the peers of {story.died}, which died"
        yield Violation(NAME, fact.at, text)
    elif not failed and story.without_lease:
        text = f"the budget was charged for the peers of {story.without_lease}, without a lease"
        yield Violation(NAME, fact.at, text)


def _uncharged(plan: Plan, history: History, stories: dict[int, RoundStory]) -> Iterator[Violation]:
    """Failures while all was well otherwise, counted against what was written at the next round."""
    if plan.embedded and not plan.keeps_record:
        return
    faults = only(history, FaultStruck)
    struck = [fault.at for fault in faults if fault.kind != "slow start"]
    lasting = [fault.until for fault in faults]
    alone = []
    for number, story in stories.items():
        at = story.failed_at
        if at is None or story.died or story.suspended or story.was_ending or story.without_lease:
            continue
        near = [other for other in struck if at - QUIET_S < other < at + QUIET_S]
        if len(near) <= 1 and not any(
            at - 1e-6 < until and until != at for until in _later(lasting, at)
        ):
            alone.append(number)
    for fact in only(history, Recorded):
        due = sum(1 for number in alone if number < fact.document.ledger.round)
        if fact.document.ledger.charges < due and fact.document.ledger.size:
            text = f"{due} failed rounds, {fact.document.ledger.charges} charges"
            yield Violation(NAME, fact.at, text)
            return


def _later(lasting: list[float], at: float) -> list[float]:
    """Ends of faults that were still at work then, the failure itself aside."""
    return sorted(until for until in lasting if until > at)[1:]
