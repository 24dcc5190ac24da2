"""A coordinator says nothing after its tenure, and nobody takes its place before that is over.

A leader that resigned, or all of whose processes are gone, may be followed at once. It does not
follow itself; and nobody gives up a place that nobody else has taken.
"""

from __future__ import annotations

from collections.abc import Iterator

from holdfast.testing.facts import AgentDied, History, Recorded, Spoke, SteppedDown, Violation
from holdfast.testing.plan import Plan

NAME = "one_speaker"
LATENCY_S = 0.06
"""How long a write may have been on its way."""


def check(plan: Plan, history: History) -> Iterator[Violation]:
    if plan.embedded:
        return
    tenure_s = plan.config.leases.tenure_s * (1 - plan.config.leases.drift) - LATENCY_S
    last: Recorded | None = None
    dead = {""}
    for fact in history:
        match fact:
            case AgentDied():
                dead.add(fact.node)
            case Spoke():
                yield Violation(NAME, fact.at, f"the coordinator on host {fact.host} {fact.text}")
            case SteppedDown() if not fact.resigned and last is not None:
                if last.document.leader == fact.node:
                    text = f"{fact.node} gave up its place, which nobody had taken"
                    yield Violation(NAME, fact.at, text)
            case Recorded():
                if last is not None and _again(plan, last, fact):
                    text = f"{fact.document.leader} resigned and took its place again"
                    yield Violation(NAME, fact.at, text)
                if last is not None and last.document.leader not in dead:
                    early = fact.at - last.at < tenure_s
                    if early and fact.document.epoch > last.document.epoch:
                        after = fact.at - last.at
                        text = f"{fact.document.leader} took over {after:.2f} s after a renewal"
                        yield Violation(NAME, fact.at, text)
                last = fact


def _again(plan: Plan, last: Recorded, now: Recorded) -> bool:
    """Whether a leader that has just resigned leads once more, before others had a chance."""
    soon = now.at - last.at < plan.config.leases.takeover_s
    resigned = last.document.leader == "" and now.document.leader != ""
    return resigned and soon and now.document.leader == last.document.nonce.rpartition("/")[0]
