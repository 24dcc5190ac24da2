"""Hangs of a whole job: when all of its workers are stalled, and what follows.

Rules
1. A job hangs when every node that has not finished its part of the round has reported a stall of
   its workers. A node without such a report may be what the others wait for.
2. All of these nodes are told, once for each stall. Progress of any of them ends it.
3. With `--hang restart` one worker is ended: the outlier, on whichever node, or without one, a
   worker on the first node. Its failure ends the round, as any failure does. Where the
   workers of some nodes never reported, that is done only if the cause is known (rule 6).
4. Reports on a connection that broke are forgotten: the node may have progressed since, unheard.
   It reports again what is still true, and is told again what it may not have heard; the worker to
   end stays the same.
5. Where several nodes are stalled, the coordinator prints the locations of all workers once.
6. The cause is known where at least half of the ranks wait in a collective and the others are in
   none, or where all wait in one and a rank has ended with exit code 0, or is the only one in
   another one. A node whose workers never reported a step, and are stalled for a short time only,
   counts only then. Once a node has finished, such a node has to report again: its workers may have
   been released by that one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct, field

from holdfast.core.coordinator_hooks import CoordinatorFeature
from holdfast.core.coordinator_io import CoordinatorEffect, Explain, Tell
from holdfast.core.policy import sentences
from holdfast.core.protocol.messages import FromNode, TellHang, WorkersResumed, WorkersStalled
from holdfast.core.rounds import Round

if TYPE_CHECKING:
    from holdfast.core.coordinator import CoordinatorState
    from holdfast.core.policy.stacks import StackGroup

Effects = list[CoordinatorEffect]


class HangCase(Struct):
    """The whole job is stalled."""

    node: str
    """The node on which a worker is to be ended for it; empty if none."""
    rank: int | None = None
    """The rank to end, where known."""
    told: set[str] = field(default_factory=set)


class RoundStalls(Struct):
    """The stalled members of a round."""

    reports: dict[str, WorkersStalled] = field(default_factory=dict)
    """By member."""
    case: HangCase | None = None
    """While all of them are."""


def of_round(current: Round) -> RoundStalls:
    if current.stalls is None:
        current.stalls = RoundStalls()
    return current.stalls


class Hangs(CoordinatorFeature):
    """Attaches the detection of hangs to the coordinator."""

    messages = (WorkersStalled, WorkersResumed)

    def heard(self, state: CoordinatorState, node: str, message: FromNode, now: float) -> Effects:
        assert isinstance(message, WorkersStalled | WorkersResumed), "it has no other"
        current = state.group.told_round(message.round, node)
        if current is None:
            return []
        stalls = of_round(current)
        if isinstance(message, WorkersStalled):
            stalls.reports[node] = message
            return _check(state)
        if stalls.reports.pop(node, None) is not None:
            stalls.case = None
        return []

    def connected(self, state: CoordinatorState, node: str) -> None:
        """Start over, on a fresh connection (rule 4)."""
        current = state.group.round
        if current is None or current.stalls is None:
            return
        current.stalls.reports.pop(node, None)
        if current.stalls.case is not None:
            current.stalls.case.told.discard(node)

    def after_greeting(self, state: CoordinatorState) -> Effects:
        return _check(state)

    def member_succeeded(self, state: CoordinatorState, current: Round) -> Effects:
        """Nodes that never reported a step report their stall again (rule 6). The member may have
        been the only one that was not stalled."""
        stalls = current.stalls
        if stalls is not None:
            left = {node: one for node, one in stalls.reports.items() if not one.never_spoke}
            if len(left) < len(stalls.reports):
                stalls.reports, stalls.case = left, None
        return _check(state)


def _check(state: CoordinatorState) -> Effects:
    """Whether all of them are stalled now (rule 1)."""
    current = state.group.round
    if current is None or not current.is_whole or current.stalls is None:
        return []  # It stops, or not all of its members are known yet.
    stalls = current.stalls
    if not _are_enough(current, stalls):
        return []
    left = [node for node in current.seats.nodes() if not current.seats.has_succeeded(node)]
    if not left or any(node not in stalls.reports for node in left):
        return []
    groups = _groups(state, stalls, left)
    is_known = _is_cause_known(current, stalls, left, groups)
    if not is_known and any(stalls.reports[node].needs_cause for node in left):
        return []
    said: Effects = []
    if stalls.case is None or stalls.case.node not in ("", *left):
        stalls.case = HangCase("")
        if state.config.oversight.hang == "restart" and (
            is_known or not any(stalls.reports[node].never_spoke for node in left)
        ):
            stalls.case = _with_suspect(stalls, left, groups)
        said = _announced(state, current, left, groups)
    case = stalls.case
    untold = [node for node in left if node not in case.told]
    case.told.update(untold)
    for node in untold:
        ends = node == case.node
        said.append(Tell(node, TellHang(current.number, ends, case.rank if ends else None)))
    return said


def _are_enough(current: Round, stalls: RoundStalls) -> bool:
    """By number alone: thousands of nodes come and go, and are not gone through each time."""
    known = len(stalls.reports) + current.seats.succeeded + len(current.done)
    return known >= len(current.seats)


def _groups(
    state: CoordinatorState, stalls: RoundStalls, left: list[str]
) -> tuple[StackGroup, ...]:
    """The locations of the workers of all nodes."""
    from holdfast.core.policy.stacks import WorkerStack, grouped_by, told_location

    return grouped_by(
        (told_location(location), WorkerStack(rank, state.members[node].name))
        for node in left
        for location in stalls.reports[node].locations
        for rank in location.ranks
    )


def _is_cause_known(
    current: Round, stalls: RoundStalls, left: list[str], groups: tuple[StackGroup, ...]
) -> bool:
    """Whether the rank for which the others wait is known (rule 6)."""
    from holdfast.core.policy.stacks import not_in_collective, odd_one

    absent = sum(len(one.stacks) for one in not_in_collective(groups))
    waiting = sum(len(one.stacks) for one in groups) - absent
    has_end = current.has_success or any(stalls.reports[node].has_early_end for node in left)
    if absent:
        return absent <= waiting
    return waiting > 0 and (has_end or odd_one(groups) is not None)


def _with_suspect(stalls: RoundStalls, left: list[str], groups: tuple[StackGroup, ...]) -> HangCase:
    """The node and the rank of the worker to end (rule 3)."""
    from holdfast.core.policy.stacks import odd_one

    odd = odd_one(groups)
    for node in left:
        if odd is not None and any(
            odd.rank in location.ranks for location in stalls.reports[node].locations
        ):
            return HangCase(node, odd.rank)
    return HangCase(left[0])


def _announced(
    state: CoordinatorState, current: Round, left: list[str], groups: tuple[StackGroup, ...]
) -> Effects:
    """Print where all workers of several nodes are (rule 5)."""
    if len(left) == 1:
        return []
    from holdfast.core.policy.stacks import in_words

    stalled_s = min(of_round(current).reports[node].still_s for node in left)
    finished = sorted(one.node for one in current.seats.by_node.values() if one.succeeded)
    names = [state.name_of(node) for node in finished]
    return [Explain(sentences.hang_of_nodes(len(left), stalled_s, in_words(groups), names))]
