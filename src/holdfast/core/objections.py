"""Objections: messages that no honest node sends, and why.

An admitted node knows the job's token, if any. It speaks of itself: under its own name, of its own
failures, of ranks that it was given, and never before it has greeted on that connection.

Rules
1. Numbers far above those known here are refused: they would be counted on from, and written down.
2. A claim that only *may* be false is no reason to refuse the node; it is ignored where it counts.
3. A message that is refused renews no lease and is no step (`core.coordinator.receive`).
"""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct

from holdfast.core.protocol.messages import (
    ClosingWanted,
    FailuresDescribed,
    FromNode,
    Heartbeat,
    NodeGreeted,
    NodeJoined,
    NodeLeft,
    RequestAnswered,
    RequestMade,
    RoundReport,
    RoundStopped,
    Seen,
    WorkersFailed,
)
from holdfast.core.protocol.model import Failure, Outcome

TYPE_CHECKING = False  # As in `typing`, without its import.
if TYPE_CHECKING:
    from holdfast.core.coordinator import CoordinatorState

LEAP = 1_000_000
"""The most rounds, or coordinators, that a node's memory may be ahead of this coordinator's."""


INSTANCE_MOST = 2**52
"""The highest instance number: a time in microseconds that no clock, however wrong, reaches."""


class Objection(Struct, frozen=True):
    """Why a message is refused. `kind` is a word to count by."""

    kind: str
    reason: str


def objection(
    state: CoordinatorState, node: str, message: FromNode, has_greeted: bool
) -> Objection | None:
    """The objection to this message from that node; None if there is none."""
    if isinstance(message, Heartbeat):
        return None  # A node that is not known has no lease, and gets no answer.
    if isinstance(message, NodeGreeted):
        return _in_greeting(state, node, message)
    if isinstance(message, RequestMade | RequestAnswered):
        return None  # Nor does it get one to what it asks.
    if not (has_greeted and node in state.members) and state.outcome is None:
        return Objection("greeting", "a node has to greet before it says anything else")
    match message:
        case NodeJoined():
            return _name(node, message.info.node)
        case WorkersFailed() | FailuresDescribed() | RoundStopped():
            return _about_others(state, node, message.failures, message.round)
        case NodeLeft():
            return _about_others(state, node, message.failures)
        case ClosingWanted():
            return _closing(state, node, message.outcome)
        case _:
            return None


def _in_greeting(state: CoordinatorState, node: str, message: NodeGreeted) -> Objection | None:
    return (
        _name(node, message.info.node)
        or _memory(state, message.seen)
        or _report(state, node, message.report)
        or (_closing(state, node, message.closing) if message.closing is not None else None)
    )


def _name(node: str, said: str) -> Objection | None:
    if said == node:
        return None
    return Objection("name", f"{node} spoke under the name {said}")


def _report(state: CoordinatorState, node: str, report: RoundReport | None) -> Objection | None:
    if report is None:
        return None
    # Ranks are not compared: it may stand in a round of another life of the job.
    return _about_others(state, node, report.failures)


def _memory(state: CoordinatorState, seen: Seen) -> Objection | None:
    ours, theirs = state.term, seen.term
    epoch = ours.epoch if theirs.instance == ours.instance else 0
    is_true = (
        seen.round <= state.group.round_number + LEAP
        and theirs.epoch <= epoch + LEAP
        and theirs.instance <= max(ours.instance, INSTANCE_MOST)
    )
    if is_true:
        return None
    said = f"round {seen.round} under term {theirs}"
    return Objection("memory", f"a node claims to have seen {said}, which cannot be")


def _closing(state: CoordinatorState, node: str, outcome: Outcome) -> Objection | None:
    if outcome.verdict == "succeeded":
        return Objection("closing", "a node wants the job to have succeeded")
    cause = () if outcome.cause is None else (outcome.cause,)
    return _about_others(state, node, (*cause, *outcome.others))


def _about_others(
    state: CoordinatorState, node: str, failures: Iterable[Failure], round: int = 0
) -> Objection | None:
    """Whether some of the failures are not this node's own, as far as that is known."""
    current = state.group.round
    told = current.assignments if current is not None and current.number == round else {}
    assignment = told.get(node)
    given = None if assignment is None else {one.rank for one in assignment.workers}
    for failure in failures:
        if failure.node != node:
            return Objection("failure", f"{node} told of a failure on another node")
        if given is not None and failure.rank not in given:
            return Objection("failure", f"{node} told of rank {failure.rank}, which is not its own")
    return None
