"""Who may say what of whom: the border behind admission.

A node that was admitted knows the job's token, if there is one, and is no more than one node by
that: it speaks of itself. What it may say of itself is checked for its form before
(`core.protocol.bounds`).

Rules
1. Nothing counts before a greeting, on every connection anew.
2. A node speaks under its own name alone, of its own failures, and of ranks that it was given.
3. What it remembers of the job is believed as far as it can be true. A number far above what is
   known here is not: it would be counted on from, written down, and outlive whoever made it up.
4. A wish to close says how the job ends if it does not do well. Nobody wishes a success.

Whoever breaks one of these cannot be honest: it is refused, and nobody else notices. What only
*may* be a lie is ignored where it would count: a word on a round that the node is not in (another
life of the job may have had one of that number), or charges that nobody else remembers.
"""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct

from holdfast.core.coordinator.round import InheritedRound
from holdfast.core.coordinator.state import CoordinatorState, current_round
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

LEAP = 1_000_000
"""How far a node's memory may be ahead of ours: more rounds, or coordinators, than a job has."""
INSTANCE_MOST = 2**52
"""Instances are numbered by time, in microseconds: no clock, however wrong, says that."""


class Objection(Struct, frozen=True):
    """Why a word is not heard. `kind` is a word to count by."""

    kind: str
    reason: str


def objection(
    state: CoordinatorState, node: str, message: FromNode, has_greeted: bool
) -> Objection | None:
    """What is wrong with this, from that node; None where nothing is."""
    if isinstance(message, Heartbeat):
        return None  # Whom nobody knows has no lease, and gets no answer.
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
        or _standing(state, node, message.standing)
        or (_closing(state, node, message.closing) if message.closing is not None else None)
    )


def _name(node: str, said: str) -> Objection | None:
    if said == node:
        return None
    return Objection("name", f"{node} spoke under the name {said}")


def _standing(state: CoordinatorState, node: str, standing: RoundReport | None) -> Objection | None:
    if standing is None:
        return None
    # Ranks are not compared: it may stand in a round of another life of the job.
    return _about_others(state, node, standing.failures)


def _memory(state: CoordinatorState, seen: Seen) -> Objection | None:
    ours, theirs = state.term, seen.term
    epoch = ours.epoch if theirs.instance == ours.instance else 0
    is_true = (
        seen.round <= state.round_number + LEAP
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
    """Whether some of the failures are not this node's own, as far as it is known which are."""
    current = current_round(state, round)
    told = {} if isinstance(current, InheritedRound | None) else current.assignments
    assignment = told.get(node)
    given = None if assignment is None else {one.rank for one in assignment.workers}
    for failure in failures:
        if failure.node != node:
            return Objection("failure", f"{node} told of a failure on another node")
        if given is not None and failure.rank not in given:
            return Objection("failure", f"{node} told of rank {failure.rank}, which is not its own")
    return None
