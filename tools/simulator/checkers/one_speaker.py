"""A coordinator says nothing after its term, and nobody takes its place before that is over.

No two speak under one term. A leader that resigned, or all of whose processes are gone, may be
followed at once. It does not follow itself; and within its term nobody gives up a place that
nobody else has taken.
"""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import Struct, field
from tools.simulator.checkers.memory import TELL_OF_MEMORY, CoordinatorMemory
from tools.simulator.facts import (
    AgentDied,
    Fact,
    FirstWord,
    History,
    Recorded,
    Spoke,
    SteppedDown,
    Violation,
    only,
)
from tools.simulator.plan import Plan

from holdfast.core.protocol.model import Term

NAME = "one_speaker"
TOLERANCE_S = 0.001


def check(plan: Plan, history: History) -> Iterator[Violation]:
    if plan.embedded:
        return
    speakers = Speakers(plan, CoordinatorMemory(plan))
    of_leaders = (AgentDied, FirstWord, Spoke, SteppedDown)
    for fact in only(history, *TELL_OF_MEMORY, *of_leaders):
        for text in speakers.take(fact):
            yield Violation(NAME, fact.at, text)


class Speakers(Struct):
    """Who has led, as far as a run has got."""

    plan: Plan
    memory: CoordinatorMemory
    last: Recorded | None = None
    dead: set[str] = field(default_factory=lambda: {""})
    stepped_down: set[str] = field(default_factory=set)
    spoke: dict[Term, str] = field(default_factory=dict)
    renewed_at: dict[str, float] = field(default_factory=dict)
    """When each sent the last document that got into the register."""

    def take(self, fact: Fact) -> Iterator[str]:
        """What is wrong with one more fact."""
        lost = self.memory.was_lost(fact)
        match fact:
            case AgentDied():
                self.dead.add(fact.node)
            case FirstWord():
                yield from self._spoke(fact)
            case Spoke():
                yield f"the coordinator on host {fact.host} {fact.text}"
            case SteppedDown():
                self.stepped_down.add(fact.node)
                yield from self._stepped_down(fact)
            case Recorded():
                if self.last is not None:
                    yield from self._followed(self.last, fact, lost)
                self.last, self.renewed_at[fact.node] = fact, fact.sent_at

    def _spoke(self, fact: FirstWord) -> Iterator[str]:
        first = self.spoke.setdefault(fact.term, fact.node)
        # What nobody remembers may come again, but not beside the one before.
        over = first in self.dead or first in self.stepped_down or self._is_over(first, fact.at)
        if first != fact.node and not (over and self.memory.was_emptied):
            yield f"{fact.node} speaks under term {fact.term}, as {first} has"

    def _is_over(self, node: str, now: float) -> bool:
        """Whether its term is, though it may sleep and not know it."""
        leases = self.plan.config.leases
        return now > self.renewed_at.get(node, now) + leases.term_s * (1 + leases.drift)

    def _stepped_down(self, fact: SteppedDown) -> Iterator[str]:
        if self.last is None or self.last.document.leader != fact.node or fact.resigned:
            return
        # Only what a register forgot can be higher than what it says.
        excused = fact.deposed and self.memory.was_emptied
        if fact.in_term and not excused:
            yield f"{fact.node} gave up its place, which nobody had taken"

    def _followed(self, last: Recorded, fact: Recorded, lost: bool) -> Iterator[str]:
        if _again(self.plan, last, fact):
            yield f"{fact.document.leader} resigned and took its place again"
        if last.document.leader in self.dead or (lost and _is_another_instance(last, fact)):
            return
        leases = self.plan.config.leases
        after_s = fact.at - last.sent_at
        early = after_s < leases.term_s * (1 - leases.drift) - TOLERANCE_S
        if early and fact.document.term != last.document.term:
            yield f"{fact.document.leader} took over {after_s:.2f} s after a renewal"


def _is_another_instance(last: Recorded, now: Recorded) -> bool:
    """Whether the register was empty for somebody who had never seen in it who led last."""
    unseen = now.known is None or now.known.instance < last.document.instance
    return unseen and now.document.instance != last.document.instance


def _again(plan: Plan, last: Recorded, now: Recorded) -> bool:
    """Whether a leader that has just resigned leads once more, before others had a chance."""
    soon = now.at - last.at < plan.config.leases.takeover_s
    resigned = last.document.leader == "" and now.document.leader != ""
    return resigned and soon and now.document.leader == last.node
