"""What is true of a coordinator after every step, whatever happened: the simulator asks."""

from __future__ import annotations

from collections.abc import Iterator

from holdfast.core.coordinator import quarantine as quarantine
from holdfast.core.coordinator.io import Written
from holdfast.core.coordinator.liveness import Liveness
from holdfast.core.coordinator.round import (
    AnyRound,
    FormingRound,
    InheritedRound,
    NodeSeat,
    RoundSeats,
    RunningRound,
    StoppingRound,
)
from holdfast.core.coordinator.state import CoordinatorState, Unrecorded
from holdfast.core.protocol.document import HOSTS_KEPT, SUCCESSORS


def broken_invariants(liveness: Liveness) -> Iterator[str]:
    """What should be true and is not, in words."""
    state = liveness.state
    yield from _about_nodes(state)
    yield from _about_the_outcome(state)
    if state.round is not None:
        yield from _about_the_round(state, state.round)
    for taken in liveness.taken:
        event = taken.event
        if isinstance(event, Written) and not 1 <= event.version <= state.version:
            yield f"version {event.version} was written, which nobody asked for"


def _about_nodes(state: CoordinatorState) -> Iterator[str]:
    for name in state.ready:
        if name not in state.members:
            yield f"{name} is ready, and is not there"
    for name, member in state.members.items():
        if member.ready != (name in state.ready):
            yield f"{name} is noted as {'not ' if member.ready else ''}ready, and that is wrong"
        if member.round > state.round_number:
            yield f"{name} runs round {member.round}, which has not been formed"
    follows = state.succession
    if follows is not None and follows.leader in follows.successors:
        yield "the coordinator would follow itself"
    if follows is not None and len(follows.successors) > SUCCESSORS:
        yield f"there are {len(follows.successors)} successors"


def _about_the_outcome(state: CoordinatorState) -> Iterator[str]:
    stage = state.end.stage if state.end is not None else None
    if isinstance(stage, Unrecorded) and stage.version > state.version:
        yield "the outcome has a version that is still to come"
    if state.budget.fruitless < 0:
        yield "something was counted below zero"


def _about_the_round(state: CoordinatorState, current: AnyRound) -> Iterator[str]:
    seated = (name for name in current.seats.ranks if name in state.members)
    if current.seats.suspected != {name for name in seated if state.members[name].suspected}:
        yield "members that are suspected are counted wrong"
    if current.number > state.round_number:
        yield f"round {current.number} runs, above {state.round_number}"
    yield from _about_seats(current.seats)
    match current:
        case FormingRound():
            if current.version > state.version:
                yield "the round has a version that is still to come"
        case RunningRound() | InheritedRound():
            if not current.gone <= current.course.succeeded:
                yield "a member is lost, and the round goes on"
            yield from _about_saving(current)
        case StoppingRound():
            if not current.exited.keys() <= current.seats.ranks.keys():
                yield "somebody is back or gone who has no seat"
            if not current.cause.reason:
                yield "a round ends for no reason"
    if isinstance(current, FormingRound):
        yield from _about_who_is_quarantined(state, current)
    if not isinstance(current, FormingRound):
        if not current.course.succeeded <= current.seats.ranks.keys():
            yield "somebody has succeeded who has no seat"
        if isinstance(current, RunningRound) and current.seats.unreported:
            yield "a round goes on of which somebody has not reported"


def _about_who_is_quarantined(state: CoordinatorState, current: FormingRound) -> Iterator[str]:
    kept = quarantine.out(state, current.formed_at)
    for name in current.seats.ranks:
        if name in state.members and quarantine.record_of(state, name, kept) is not None:
            yield f"{name} has a seat, and its host is kept out"
    if len(state.hosts) > HOSTS_KEPT:
        yield f"something is held against {len(state.hosts)} hosts, more than can be written down"


def _about_saving(current: RunningRound | InheritedRound) -> Iterator[str]:
    saving = current.saving
    if saving is None:
        return
    if not saving.unheard | saving.unsaved <= current.seats.ranks.keys():
        yield "somebody without a seat is to save"
    if saving.step is not None and saving.step != saving.furthest:
        yield f"all save at step {saving.step}, and somebody is at {saving.furthest}"


def _about_seats(seats: RoundSeats) -> Iterator[str]:
    ranks = {seat.node: n for n, seat in enumerate(seats.by_rank) if isinstance(seat, NodeSeat)}
    if ranks != seats.ranks:
        yield "a node has two seats, or none of those that are its own"
    if seats.unreported != len(seats.unreported_ranks()):
        yield "seats that have not reported are counted wrong"
    if len(seats.marks) > 1 and len(seats.marks[0]) != len(seats):
        yield "there are not as many marks as seats"
