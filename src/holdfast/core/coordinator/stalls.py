"""When a whole job stands still, and what follows.

Rules
1. A job hangs when every node that has not finished its part of the round has said that its workers
   stand still. One that has not said so may be what the others wait for.
2. All of these are told, once for each stall. Who moves ends it.
3. With `--hang restart` one worker is ended: the odd one of all, whichever node it is on, and where
   none is odd, one on the first node. That it failed ends the round, as any failure does. Where
   the workers of some never spoke, that is done only if the cause is known (rule 6).
4. What a node said on a connection that broke is forgotten: it may have moved since, unheard. It
   says again what still holds, and is told again what it may not have heard; whom to end for it
   stays the same.
5. Where several nodes stand still, all places together are said once, where the coordinator is.
6. The cause is known where at least half of the ranks wait in a collective and the others are in
   none, or where all wait in one and a rank has ended with exit code 0, or is the only one in
   another one. A node whose workers never spoke, and stand still for a short time only, counts
   only then. Once a node has finished, it has to say so again: its workers may have been released
   by that one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.core.coordinator.io import CoordinatorEffect, Explain, Tell
from holdfast.core.coordinator.round import (
    FormingRound,
    HangCase,
    RoundCourse,
    RunningRound,
    ToldRound,
)
from holdfast.core.coordinator.state import CoordinatorState, name_of, told_round
from holdfast.core.protocol.messages import TellHang, WorkersResumed, WorkersStalled

if TYPE_CHECKING:
    from holdfast.core.policy.stacks import StackGroup


def stood(state: CoordinatorState, node: str, message: WorkersStalled) -> list[CoordinatorEffect]:
    current = told_round(state, message.round, node)
    if current is None:
        return []
    current.course.still[node] = message
    return look(state)


def moved(state: CoordinatorState, node: str, message: WorkersResumed) -> list[CoordinatorEffect]:
    current = told_round(state, message.round, node)
    if current is not None and current.course.still.pop(node, None) is not None:
        current.course.hang = None
    return []


def greeted(state: CoordinatorState, node: str) -> None:
    """It begins anew, on a fresh connection (rule 4)."""
    current = state.round
    if current is None or isinstance(current, FormingRound):
        return
    current.course.still.pop(node, None)
    if current.course.hang is not None:
        current.course.hang.told.discard(node)


def finished(course: RoundCourse) -> None:
    """A node has: those that never spoke say anew that they stand still (rule 6)."""
    left = {node: one for node, one in course.still.items() if not one.never_spoke}
    if len(left) < len(course.still):
        course.still, course.hang = left, None


def look(state: CoordinatorState) -> list[CoordinatorEffect]:
    """Whether it is true of all of them now (rule 1)."""
    current = state.round
    if not isinstance(current, RunningRound):
        return []  # It stops, or not all of its members are known yet.
    course = current.course
    if not _are_enough(current):
        return []
    left = [node for node in current.seats.nodes() if node not in course.succeeded]
    if not left or any(node not in course.still for node in left):
        return []
    groups = _groups(state, current, left)
    is_known = _is_cause_known(course, left, groups)
    if not is_known and any(course.still[node].needs_cause for node in left):
        return []
    effects = _begin(state, current, left, groups, is_known)
    case = course.hang
    assert case is not None, "it has just begun"
    untold = [node for node in left if node not in case.told]
    case.told.update(untold)
    for node in untold:
        ends = node == case.node
        effects.append(Tell(node, TellHang(current.number, ends, case.rank if ends else None)))
    return effects


def _are_enough(current: RunningRound) -> bool:
    """By number alone: thousands of nodes come and go, and are not gone through each time."""
    course = current.course
    known = len(course.still) + len(course.succeeded) + len(course.done)
    return known >= len(current.seats)


def _is_cause_known(course: RoundCourse, left: list[str], groups: tuple[StackGroup, ...]) -> bool:
    """Whether it is known for which rank the others wait (rule 6)."""
    from holdfast.core.policy.stacks import not_in_collective, odd_one

    absent = sum(len(one.stacks) for one in not_in_collective(groups))
    waiting = sum(len(one.stacks) for one in groups) - absent
    has_end = course.has_success or any(course.still[node].has_early_end for node in left)
    if absent:
        return absent <= waiting
    return waiting > 0 and (has_end or odd_one(groups) is not None)


def _begin(
    state: CoordinatorState,
    current: RunningRound,
    left: list[str],
    groups: tuple[StackGroup, ...],
    is_known: bool,
) -> list[CoordinatorEffect]:
    """Decide whom to end, and say where all are, unless that was done (rules 3 and 5)."""
    course = current.course
    if course.hang is not None and course.hang.node in ("", *left):
        return []
    from holdfast.core.policy.stacks import in_words

    ends = state.config.oversight.hang == "restart" and (
        is_known or not any(course.still[node].never_spoke for node in left)
    )
    course.hang = _case(current, left, groups) if ends else HangCase("")
    if len(left) == 1:
        return []
    still_s = min(course.still[node].still_s for node in left)
    words = f"all workers on {len(left)} nodes have stood still for {still_s:.0f} s"
    ended = ", ".join(name_of(state, node) for node in sorted(course.succeeded))
    also = f"; all workers on {ended} had ended with exit code 0" if ended else ""
    return [Explain(f"the job hangs: {words}: {in_words(groups)}{also}")]


def _groups(state: CoordinatorState, current: ToldRound, left: list[str]) -> tuple[StackGroup, ...]:
    """Where the workers of all nodes are."""
    from holdfast.core.policy.stacks import WorkerStack, as_told, grouped_by

    return grouped_by(
        (as_told(place), WorkerStack(rank, state.members[node].name))
        for node in left
        for place in current.course.still[node].places
        for rank in place.ranks
    )


def _case(current: RunningRound, left: list[str], groups: tuple[StackGroup, ...]) -> HangCase:
    """On which node a worker is to be ended, and which (rule 3)."""
    still = current.course.still
    from holdfast.core.policy.stacks import odd_one

    odd = odd_one(groups)
    if odd is not None:
        for node in left:
            if any(odd.rank in place.ranks for place in still[node].places):
                return HangCase(node, odd.rank)
    return HangCase(left[0])
