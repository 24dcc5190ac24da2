"""Waits are paid where they belong: the last call once, and newcomers in batches.

After a failure with nothing else wrong, the next round follows without waiting for latecomers;
no round is ended for newcomers before it has lasted its least time and they have waited for
others; and a job that cannot be formed ends when its time is over, whoever arrives meanwhile.
A round ends as soon as a worker fails or a member is suspected; but not for the loss of one that
had finished.
All that were killed and are started again where they were go on at once: no lease is waited for.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from tools.simulator.facts import (
    AgentBegan,
    FaultStruck,
    History,
    Recorded,
    RoundEnding,
    Violation,
    WorkerBegan,
    WorkerEnded,
    only,
)
from tools.simulator.plan import WAYS_TO_DIE, Plan, loses_locks

NAME = "promptness"
SLACK_S = 0.35
KILLED = "all are killed"
IN_ORDER = frozenset(
    {"worker fails", "restart wanted", "scaled", "saving wanted", "workers finish"}
)
"""What happens to a job that nothing else happens to: its failures are heard of at once."""
FOUND_S = 3.0
"""Until nodes that are started together have found the one of them that leads."""
TOLERANCE_S = 1e-6


def check(plan: Plan, history: History) -> Iterator[Violation]:
    yield from _last_call(plan, history)
    yield from _newcomers(plan, history)
    yield from _shortage(plan, history)
    yield from _silence(plan, history)
    yield from _failures(plan, history)
    yield from _again(plan, history)
    if plan.embedded:
        yield from _finished(history)


def _last_call(plan: Plan, history: History) -> Iterator[Violation]:
    """Looked at where a first, lone failure is all that ever went wrong."""
    struck = only(history, FaultStruck)
    if not struck or struck[0].kind != "worker fails":
        return
    until = struck[1].at if len(struck) > 1 else plan.heal_at
    ended = 0.0
    rounds: set[int] = set()
    for fact in history:
        if fact.at > until:
            return
        if isinstance(fact, WorkerEnded):
            ended = fact.at
        elif isinstance(fact, WorkerBegan) and fact.round not in rounds:
            rounds.add(fact.round)
            waited = fact.at - ended
            if len(rounds) > 1 and waited >= plan.config.timeouts.last_call_s - SLACK_S:
                text = f"round {fact.round} began {waited:.1f} s after the last one had ended"
                yield Violation(NAME, fact.at, text)


def _newcomers(plan: Plan, history: History) -> Iterator[Violation]:
    times = plan.config.timeouts
    for fact in only(history, RoundEnding):
        if fact.kind != "newcomers":
            continue
        waited = fact.newcomer_waited_s
        if fact.lasted_s < times.min_round_s - TOLERANCE_S:
            text = f"round {fact.round} was ended for newcomers after {fact.lasted_s:.2f} s"
            yield Violation(NAME, fact.at, text)
        least_s = 0.0 if fact.newcomers_fill_it else times.scale_up_delay_s
        if waited is not None and waited < least_s - TOLERANCE_S:
            text = f"round {fact.round} was ended for a newcomer of {waited:.2f} s ago"
            yield Violation(NAME, fact.at, text)


def _shortage(plan: Plan, history: History) -> Iterator[Violation]:
    if plan.enough_nodes or plan.faults or not history:
        return
    began = min(fact.at for fact in only(history, AgentBegan))
    latest = began + plan.config.timeouts.join_s * 1.02 + 6.0
    for fact in only(history, Recorded):
        if fact.document.ledger.outcome is not None:
            if fact.at > latest:
                text = f"the job was given up {fact.at - began:.1f} s after it began to wait"
                yield Violation(NAME, fact.at, text)
            return


def _silence(plan: Plan, history: History) -> Iterator[Violation]:
    """Looked at where a host that falls silent is all that ever went wrong."""
    struck = only(history, FaultStruck)
    alone = len(struck) == 1 and struck[0].kind == "host crashes"
    if not alone or not plan.embedded or struck[0].host == 0:
        return
    crashed = struck[0]
    limit = crashed.at + 1.02 * plan.config.leases.suspect_s + SLACK_S
    running: Counter[str] = Counter()
    for fact in history:
        if isinstance(fact, RoundEnding) and fact.at >= crashed.at and running[crashed.node]:
            if fact.at > limit:
                text = f"round {fact.round} ended {fact.at - crashed.at:.1f} s after a silence"
                yield Violation(NAME, fact.at, text)
            return
        if isinstance(fact, WorkerBegan):
            running[fact.node] += 1
        elif isinstance(fact, WorkerEnded) and fact.at < crashed.at:
            running[fact.node] -= 1


def _failures(plan: Plan, history: History) -> Iterator[Violation]:
    """Looked at where nothing else goes wrong; also while workers save."""
    if plan.strike is not None or any(fault.kind not in IN_ORDER for fault in plan.faults):
        return
    failed: dict[int, float] = {}
    for fact in only(history, WorkerEnded, RoundEnding):
        match fact:
            case WorkerEnded() if fact.how == "failed":
                failed.setdefault(fact.round, fact.at)
            case RoundEnding() if fact.at > failed.get(fact.round, fact.at) + SLACK_S:
                late_s = fact.at - failed[fact.round]
                text = f"round {fact.round} ended {late_s:.1f} s after a worker had failed"
                yield Violation(NAME, fact.at, text)


def _again(plan: Plan, history: History) -> Iterator[Violation]:
    """Looked at where all were killed once, with all that they had, and nothing else went wrong."""
    struck = only(history, FaultStruck)
    planned = [fault for fault in plan.faults if fault.kind == KILLED]
    if len(struck) != 1 or len(planned) != 1 or struck[0].kind != KILLED or not plan.enough_nodes:
        return
    known = not any(loses_locks(planned[0], host) for host in range(len(plan.hosts)))
    if not known or WAYS_TO_DIE[planned[0].other % len(WAYS_TO_DIE)] not in ("nodes", "power"):
        return
    after = [fact for fact in history if fact.at > struck[0].at]
    before = [f for f in only(history, WorkerBegan) if f.at <= struck[0].at]
    starts = [f.at for f in only(after, AgentBegan)]
    if not before or not starts:
        return
    leases, times = plan.config.leases, plan.config.timeouts
    # Who is not told of changes asks for them; a node that cannot preload gives up on that.
    within_s = (leases.term_s / 3 + times.preload_s) * (1 + leases.drift) + FOUND_S
    began = (f.at for f in only(after, WorkerBegan))
    took_s = next(began, float("inf")) - max(starts)
    if took_s > within_s:
        text = f"the next round began {took_s:.1f} s after all had been started again"
        yield Violation(NAME, max(starts), text)


def _finished(history: History) -> Iterator[Violation]:
    """A round does not end for a loss where only nodes that had finished were touched."""
    left: dict[int, Counter[str]] = {}
    touched: set[str] = set()
    struck_until: dict[str, float] = {}
    for fact in only(history, FaultStruck, RoundEnding, WorkerBegan, WorkerEnded):
        match fact:
            case WorkerBegan() if fact.at < struck_until.get(fact.node, 0.0):
                return  # Its node cannot tell of its end before it is itself again.
            case WorkerBegan():
                left.setdefault(fact.round, Counter())[fact.node] += 1
            case WorkerEnded() if fact.how == "succeeded":
                left[fact.round][fact.node] -= 1
            case WorkerEnded() if fact.how != "stopped":
                touched.add(fact.node)
            case FaultStruck() if fact.kind != "workers finish":
                touched.add(fact.node)
                struck_until[fact.node] = fact.until
                unfinished = left and left[max(left)][fact.node]
                if fact.host == 0 or unfinished:
                    return  # What only it, or the coordinator, knew may be lost with it.
            case RoundEnding() if fact.kind == "loss":
                members = left.get(fact.round, Counter())
                finished = [node for node, count in members.items() if not count]
                if finished and touched and touched <= set(finished):
                    text = f"round {fact.round} ended for the loss of nodes that had finished"
                    yield Violation(NAME, fact.at, text)
