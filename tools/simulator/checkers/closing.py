"""A job ends for a reason: never because one node failed, left or was lost.

It succeeds when every worker of a round has; it fails when the budget is spent, or a failure
says that a retry is no use, or round after round got nowhere, or no further round was wanted; it
is not formed when there were too few nodes for as long as it was to wait; it is interrupted when
somebody stops it.

Once it is written down that no further round is wanted, none forms.
"""

from __future__ import annotations

from collections.abc import Iterator

from tools.simulator.checkers.memory import TELL_OF_MEMORY, CoordinatorMemory
from tools.simulator.facts import (
    Delivered,
    FaultStruck,
    History,
    Recorded,
    Violation,
    WorkerBegan,
    WorkerEnded,
    only,
)
from tools.simulator.plan import Plan

from holdfast.core.protocol.messages import RunRound

NAME = "closing"
ENDS_FOR_GOOD = ("worker never retries", "closing asked", "released")


def check(plan: Plan, history: History) -> Iterator[Violation]:
    outcome = last = None
    memory = CoordinatorMemory(plan)
    for fact in only(history, *TELL_OF_MEMORY):
        if memory.was_lost(fact):
            outcome = last = None
        if not isinstance(fact, Recorded):
            continue
        ledger = fact.document.ledger
        if last is not None and (fact.document.instance, ledger.round) > last:
            yield Violation(NAME, fact.at, f"round {ledger.round} formed after the last one")
        if ledger.closing is not None:
            last = last or (fact.document.instance, ledger.round)
        found = ledger.outcome
        if outcome is not None and (found is None or found.verdict != outcome.verdict):
            yield Violation(NAME, fact.at, f"the job ended twice: {outcome.verdict}, then {found}")
        if found is not None and outcome is None:
            before = history[: history.index(fact) + 1]
            for text in _unfounded(plan, before, fact):
                yield Violation(NAME, fact.at, f"{text} ({found.reason})")
        outcome = found or outcome


def _unfounded(plan: Plan, history: History, fact: Recorded) -> Iterator[str]:
    ledger = fact.document.ledger
    assert ledger.outcome is not None
    match ledger.outcome.verdict:
        case "succeeded":
            yield from _success(history)
        case "failed":
            yield from _failure(plan, history, ledger.charges)
        case "not_formed":
            yield from _not_formed(plan, history)
        case "interrupted":
            if not any(fault.kind == "job stopped" for fault in only(history, FaultStruck)):
                yield "a job of many nodes was closed because one was interrupted"


def _success(history: History) -> Iterator[str]:
    """All workers of the last round have succeeded; there is one of each instance of the job."""
    last = {f.instance: f.round for f in only(history, WorkerBegan)} or {1: 0}
    said = ""
    for instance, round in last.items():
        ended = {
            (f.node, f.rank)
            for f in only(history, WorkerEnded)
            if (f.instance, f.round, f.how) == (instance, round, "succeeded")
        }
        sizes = {
            f.message.assignment.world_size
            for f in only(history, Delivered)
            if isinstance(f.message, RunRound)
            and (f.term.instance, f.message.assignment.round) == (instance, round)
            and f.obeyed
        }
        if len(ended) >= min(sizes, default=1):
            return
        said = f"only {len(ended)} of {sizes} workers of round {round} had succeeded"
    yield said


def _failure(plan: Plan, history: History, charges: int) -> Iterator[str]:
    policy = plan.config.restarts
    if any(fault.kind in ENDS_FOR_GOOD for fault in only(history, FaultStruck)):
        return
    if charges > policy.max_restarts:
        return
    rounds = max(f.document.ledger.round for f in only(history, Recorded))
    if policy.fruitless_rounds_limit and rounds >= policy.fruitless_rounds_limit:
        return
    yield f"the job failed after {charges} of {policy.max_restarts} restarts"


def _not_formed(plan: Plan, history: History) -> Iterator[str]:
    """For as long as the job was to wait, no round of it was running."""
    times = plan.config.timeouts
    running = 0
    idle_since = min((f.at for f in history), default=0.0)
    for fact in history:
        if isinstance(fact, WorkerBegan):
            running += 1
        elif isinstance(fact, WorkerEnded):
            running -= 1
            idle_since = fact.at
    waited = history[-1].at - idle_since
    if running or waited < times.join_s * 0.98:
        yield f"the job was given up as not formed {waited:.1f} s after it last ran"
    if len(plan.hosts) >= plan.config.min_nodes and not plan.faults:
        yield "the job was given up as not formed although there were enough nodes"
