"""Before a round ends in order all of its workers save, at one step, if they ask and there is time.

A round ends in order for newcomers, because somebody asked for it, or so that a node can leave: no
worker that asks has anything left to save then. Whenever all save they do so at one step, also if
the round goes on, and nobody who waited is let go on once another has saved: it would be missing
there. A node that has to leave does not stop a worker that saves while there is time; and a restart
that waits for this is not forgotten.

Whether a node left too soon is only judged where nothing else went wrong: whoever is asked twice,
or loses its coordinator, waits for nobody.
"""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import Struct, field
from tools.simulator.facts import (
    CheckpointWritten,
    Delivered,
    FaultStruck,
    History,
    LeaseRenewed,
    NodeDrained,
    Recorded,
    RoundEnding,
    SaveAsked,
    SteppedDown,
    Violation,
    WorkerBegan,
    WorkerEnded,
    WorkerListened,
    WorkerReleased,
    WorkerSaved,
    only,
)
from tools.simulator.plan import FaultKind, Plan

from holdfast.core.protocol.messages import CloseJob, RunRound, StopRound

NAME = "saving"
ORDERLY: frozenset[FaultKind] = frozenset({"drain", "everybody is asked"})
TAKEN_OVER: frozenset[FaultKind] = frozenset({"restart wanted", "restart taken over"})
DRIFT = 1.05
BARELY_S = 0.5
"""Whoever begins to listen so shortly before somebody is asked may not be known to."""
IN_TIME_S = 0.05
"""So shortly before its end a time may count as over: clocks differ."""


class RoundSaved(Struct):
    """One round, as far as it matters for saving."""

    first: dict[int, WorkerSaved] = field(default_factory=dict)
    """By the number of what was to be saved."""
    asked: dict[int, float] = field(default_factory=dict)
    """By that number: since when."""
    last: dict[int, SaveAsked] = field(default_factory=dict)
    """By the host of the coordinator: the last of them."""
    listens: dict[int, float] = field(default_factory=dict)
    """By rank of those that run: since when."""
    written: dict[int, float] = field(default_factory=dict)
    """By rank: when it had last saved."""
    drained_at: float | None = None
    nodes: set[str] = field(default_factory=set)
    ranks: set[int] = field(default_factory=set)

    def unsaved(self, asked_at: float) -> list[int]:
        """Those who listened by then, and have not saved since."""
        return [
            rank
            for rank, since in self.listens.items()
            if since < asked_at - BARELY_S and self.written.get(rank, 0.0) < asked_at
        ]


def check(plan: Plan, history: History) -> Iterator[Violation]:
    yield from _stopped_while_saving(plan, history)
    yield from _not_restarted(plan, history)
    rounds: dict[int, RoundSaved] = {}
    is_orderly = all(fault.kind in ORDERLY for fault in plan.faults) and plan.strike is None
    struck = () if plan.strike is None else (plan.strike.fault,)
    sleeps_at_work = any("pauses" in fault.kind for fault in struck)
    sleeps_at_work |= any(fault.kind == "leader pauses mid-word" for fault in plan.faults)
    drained: set[str] = set()
    of_workers = (WorkerBegan, WorkerEnded, WorkerListened, WorkerReleased, WorkerSaved)
    of_rounds = (CheckpointWritten, NodeDrained, RoundEnding, SaveAsked, SteppedDown)
    for fact in only(history, *of_workers, *of_rounds):
        match fact:
            case WorkerBegan():
                known = rounds.setdefault(fact.round, RoundSaved())
                if fact.rank in known.ranks:  # It is of another life of the job.
                    known = rounds[fact.round] = RoundSaved()
                known.nodes.add(fact.node)
                known.ranks.add(fact.rank)
            case WorkerListened():
                rounds[fact.round].listens[fact.rank] = fact.at
            case SaveAsked():  # It may be asked before the first worker of the round has begun.
                known = rounds.setdefault(fact.round, RoundSaved())
                known.asked.setdefault(fact.number, fact.at)
                known.last[fact.by_host] = fact
            case WorkerSaved():
                yield from _one_step(rounds[fact.round], fact)
            case CheckpointWritten():
                rounds[fact.round].written[fact.rank] = fact.at
            case WorkerReleased():
                yield from _left_behind(rounds[fact.round], fact)
            case WorkerEnded():
                rounds[fact.round].listens.pop(fact.rank, None)
            case NodeDrained():
                is_orderly &= fact.node not in drained
                drained.add(fact.node)
                for known in rounds.values():
                    if fact.node in known.nodes and known.drained_at is None:
                        known.drained_at = fact.at
            case SteppedDown():
                is_orderly = False
            case RoundEnding() if fact.round in rounds:
                of_workers_that_ended = fact.kind == "drain" and not drained
                if sleeps_at_work:
                    continue  # It may end later than it is told here: its time may be over.
                if fact.kind in ("newcomers", "asked") or of_workers_that_ended:
                    yield from _thrown_away(rounds[fact.round], fact)
                elif fact.kind == "drain" and is_orderly:
                    yield from _left_too_soon(plan, rounds[fact.round], fact)


def _thrown_away(known: RoundSaved, fact: RoundEnding) -> Iterator[Violation]:
    last = known.last.get(fact.by_host)
    is_over = last is not None and fact.at >= last.until - IN_TIME_S
    asked_at = fact.at if last is None else known.asked[last.number]
    unsaved = [] if is_over else known.unsaved(asked_at)
    if unsaved:
        text = f"round {fact.round} was ended ({fact.kind}) before rank {unsaved[0]} had saved"
        yield Violation(NAME, fact.at, text)


def _one_step(known: RoundSaved, fact: WorkerSaved) -> Iterator[Violation]:
    other = known.first.get(fact.number)
    if other is None or other.instance != fact.instance:
        known.first[fact.number] = fact
    elif fact.step != other.step:
        ranks = f"rank {fact.rank} at step {fact.step}, rank {other.rank} at step {other.step}"
        yield Violation(NAME, fact.at, f"round {fact.round} was saved by {ranks}")


def _left_behind(known: RoundSaved, fact: WorkerReleased) -> Iterator[Violation]:
    other = known.first.get(fact.number)
    if other is not None and other.instance == fact.instance:
        text = f"rank {fact.rank} goes on, and rank {other.rank} has saved in round {fact.round}"
        yield Violation(NAME, fact.at, text)


def _left_too_soon(plan: Plan, known: RoundSaved, fact: RoundEnding) -> Iterator[Violation]:
    drained_at = known.drained_at
    if drained_at is None or fact.at >= drained_at + plan.config.timeouts.save_s / DRIFT:
        return
    unsaved = known.unsaved(drained_at)
    if unsaved:
        text = f"round {fact.round} was ended for a drain before rank {unsaved[0]} had saved"
        yield Violation(NAME, fact.at, text)


def _stopped_while_saving(plan: Plan, history: History) -> Iterator[Violation]:
    """A node that has to leave stops its workers when it is told to, or has no time left."""
    drained: dict[str, list[float]] = {}
    leases: dict[str, float] = {}
    listens: dict[tuple[str, int, int], float] = {}
    paused: dict[str, float] = {}
    told: set[str] = set()
    of_nodes = (Delivered, FaultStruck, LeaseRenewed, NodeDrained)
    of_workers = (WorkerListened, CheckpointWritten, WorkerEnded)
    for fact in only(history, *of_nodes, *of_workers):
        match fact:
            case NodeDrained():
                drained.setdefault(fact.node, []).append(fact.at)
            case FaultStruck() if fact.kind == "whole tree is asked":
                told.add(fact.node)  # A worker that does not ask yet dies of it.
            case FaultStruck() if "pauses" in fact.kind:
                paused[fact.node] = fact.until
            case LeaseRenewed():
                stop_at = leases.get(fact.node, fact.until) - plan.config.leases.stop_reserve_s
                if fact.at > stop_at - BARELY_S:
                    told.add(fact.node)  # Its spawner stops the workers already.
                leases[fact.node] = fact.until
            case Delivered() if isinstance(fact.message, StopRound | CloseJob) and fact.obeyed:
                told.add(fact.node)
            case Delivered() if isinstance(fact.message, RunRound):
                told.discard(fact.node)
            case WorkerListened():
                listens[fact.node, fact.round, fact.rank] = fact.at
            case CheckpointWritten():
                listens.pop((fact.node, fact.round, fact.rank), None)
            case WorkerEnded():
                since = listens.pop((fact.node, fact.round, fact.rank), None)
                asked = drained.get(fact.node, [])
                if since is None or fact.how != "stopped" or len(asked) != 1 or fact.node in told:
                    continue
                if fact.at < paused.get(fact.node, 0.0):
                    continue  # Its spawner does not know what its agent was about to tell it.
                until = asked[0] + plan.config.timeouts.save_s / DRIFT
                lease_until = leases.get(fact.node, 0.0) - plan.config.leases.stop_reserve_s
                if since < asked[0] - BARELY_S and fact.at < min(until, lease_until):
                    text = f"rank {fact.rank} was stopped while it saved, so that its node leaves"
                    yield Violation(NAME, fact.at, text)


def _not_restarted(plan: Plan, history: History) -> Iterator[Violation]:
    """A round ends for which a restart is written down, whoever coordinates by then.

    Looked at where nothing else goes wrong than that another one takes over.
    """
    if plan.strike is not None or any(fault.kind not in TAKEN_OVER for fault in plan.faults):
        return
    leases = plan.config.leases
    within_s = leases.lease_s + leases.gone_after_s + plan.config.timeouts.save_s
    asked: dict[int, float] = {}
    ended: dict[int, float] = {}
    for fact in only(history, Recorded, RoundEnding):
        match fact:
            case RoundEnding():
                ended.setdefault(fact.round, fact.at)
            case Recorded() if fact.document.ledger.outcome is not None:
                ended.setdefault(fact.document.ledger.round, fact.at)
            case Recorded() if fact.document.ledger.restart:
                asked.setdefault(fact.document.ledger.round, fact.at)
    for number, asked_at in asked.items():
        until = ended.get(number, history[-1].at)
        if until > asked_at + within_s * DRIFT:
            text = f"round {number} goes on {within_s:.0f} s after a restart was written down"
            yield Violation(NAME, until, text)
