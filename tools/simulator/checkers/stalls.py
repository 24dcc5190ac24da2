"""Nobody is told of a hang while a node moves; a true one is told in time, and ended if wanted.

A job is said to hang only if every node with workers of the round stands still, or has gone on so
lately that nobody can have heard of it. A round that stands still as a whole, with nothing else
wrong, is told of on all of its nodes within a bound, whoever is the coordinator by then; where that
is wanted, one worker is ended for it and the round ends. No node ends two workers for one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from msgspec import Struct, field
from tools.simulator.facts import (
    EndedForHang,
    Fact,
    FaultStruck,
    HangDecided,
    HangHeard,
    Healed,
    History,
    NodeResumed,
    NodeStalled,
    RoundEnding,
    Violation,
    WorkerBegan,
    WorkerContinued,
    WorkerEnded,
)
from tools.simulator.plan import Plan
from tools.simulator.stalls import NOTICED_S

NAME = "stalls"
STILL = ("job stands still", "node stands still", "node moves unheard", "hang is unheard")
SLACK_S = 2.0


class RoundState(Struct):
    """One round, as it is at some time."""

    running: Counter[str] = field(default_factory=Counter)
    """How many workers each node has in it."""
    still: set[str] = field(default_factory=set)
    moved_at: dict[str, float] = field(default_factory=dict)
    heard: set[str] = field(default_factory=set)
    all_still_since: float | None = None
    is_ending: bool = False

    def members(self) -> set[str]:
        return {node for node, count in self.running.items() if count > 0}

    def note(self, fact: Fact) -> None:
        match fact:
            case WorkerBegan() | WorkerContinued():
                self.running[fact.node] += 1
            case WorkerEnded():
                self.running[fact.node] -= 1
            case NodeStalled():
                self.still.add(fact.node)
            case NodeResumed():
                self.still.discard(fact.node)
                self.heard.discard(fact.node)
                self.moved_at[fact.node] = fact.at
            case HangHeard():
                self.heard.add(fact.node)
            case RoundEnding():
                self.is_ending = True
        all_still = bool(self.members()) and self.members() <= self.still and not self.is_ending
        if not all_still:
            self.all_still_since = None
        elif self.all_still_since is None:
            self.all_still_since = fact.at


def check(plan: Plan, history: History) -> Iterator[Violation]:
    if not any(fault.kind in STILL for fault in plan.faults):
        return
    rounds: dict[int, RoundState] = {}
    ended: Counter[tuple[str, int]] = Counter()
    calm_from = 0.0
    for fact in history:
        if isinstance(fact, FaultStruck) and fact.kind not in STILL:
            calm_from = max(calm_from, fact.until)
        elif isinstance(fact, Healed):
            calm_from = max(calm_from, fact.at)
        for number, state in rounds.items():
            yield from _overdue(plan, number, state, fact.at, calm_from)
        if isinstance(fact, HangDecided) and fact.round in rounds:
            yield from _too_soon(plan, rounds[fact.round], fact)
        elif isinstance(fact, EndedForHang):
            ended[fact.node, fact.round] += 1
            if ended[fact.node, fact.round] > 1:
                yield Violation(NAME, fact.at, f"{fact.node} ended a second worker for one hang")
        number = getattr(fact, "round", 0)
        if number:
            rounds.setdefault(number, RoundState()).note(fact)


def _too_soon(plan: Plan, state: RoundState, fact: HangDecided) -> Iterator[Violation]:
    """A node that moves has said so, unless it cannot be heard: then it is suspected in time."""
    leases = plan.config.leases
    unheard_s = leases.suspect_s * (1 + leases.drift) + SLACK_S
    for node in sorted(state.members() - state.still):
        moved_at = state.moved_at.get(node)
        if moved_at is None or fact.at - moved_at > unheard_s:
            text = f"round {fact.round} was said to hang while {node} moved"
            yield Violation(NAME, fact.at, text)
            return


def _overdue(
    plan: Plan, number: int, state: RoundState, now: float, calm_from: float
) -> Iterator[Violation]:
    since = state.all_still_since
    leases = plan.config.leases
    bound_s = NOTICED_S + leases.gone_after_s + leases.takeover_s + SLACK_S
    if since is None or now < max(since, calm_from) + bound_s:
        return
    untold = sorted(state.members() - state.heard)
    if untold:
        text = f"round {number} stood still for {now - since:.1f} s, and {untold[0]} was not told"
        yield Violation(NAME, now, text)
    elif plan.config.oversight.hang == "restart":
        text = f"round {number} stood still for {now - since:.1f} s, and nobody was ended for it"
        yield Violation(NAME, now, text)
    state.all_still_since = now  # Once is enough.
