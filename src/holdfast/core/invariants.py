"""Invariants of a coordinator, which hold after every step: the simulator checks them."""

from __future__ import annotations

from collections.abc import Iterator

from holdfast.core.coordinator import Coordinator, CoordinatorState
from holdfast.core.coordinator_io import Written
from holdfast.core.protocol.document import SUCCESSORS
from holdfast.core.rounds import Round
from holdfast.core.seating import Seats


def broken_invariants(coordinator: Coordinator) -> Iterator[str]:
    """The broken invariants, in words."""
    state = coordinator.state
    yield from _about_nodes(state)
    if state.end is not None and state.end.version > state.version:
        yield "the outcome has a version that is still to come"
    if state.group.budget.fruitless < 0:
        yield "something was counted below zero"
    if state.group.round is not None:
        yield from _about_the_round(state, state.group.round)
    for taken in coordinator.taken:
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
        if member.round > state.group.round_number:
            yield f"{name} runs round {member.round}, which has not been formed"
    follows = state.succession
    if follows is not None and follows.leader in follows.successors:
        yield "the coordinator would follow itself"
    if follows is not None and len(follows.successors) > SUCCESSORS:
        yield f"there are {len(follows.successors)} successors"


def _about_the_round(state: CoordinatorState, current: Round) -> Iterator[str]:
    seats = current.seats
    seated = (name for name in seats.by_node if name in state.members)
    if seats.suspected != {name for name in seated if state.members[name].suspected}:
        yield "members that are suspected are counted wrong"
    if current.number > state.group.round_number:
        yield f"round {current.number} runs, above {state.group.round_number}"
    yield from _about_seats(seats)
    if not current.announced and current.stop is None:
        yield from _about_a_forming_round(state, current)
    if current.is_running:
        if any(seat.exit is not None and not seat.succeeded for seat in seats.by_node.values()):
            yield "a member is lost, and the round goes on"
        if current.missing is None and seats.unreported:
            yield "a round goes on of which somebody has not reported"
        yield from _about_saving(current)
    if current.stop is not None and not current.stop.cause.reason:
        yield "a round ends for no reason"


def _about_a_forming_round(state: CoordinatorState, current: Round) -> Iterator[str]:
    if not 1 <= current.version <= state.version:
        yield "the round waits for a version that nobody writes"
    for name in current.seats.by_node:
        record = state.record_of(name) if name in state.members else None
        if record is not None and record.is_out(current.started_at):
            yield f"{name} has a seat, and its host is quarantined"
        if record is not None and record.is_paused(current.started_at):
            yield f"{name} has a seat, and its host is paused"


def _about_saving(current: Round) -> Iterator[str]:
    save = current.saves.current if current.saves is not None else None
    if save is None:
        return
    if not save.unheard | save.unsaved <= current.seats.by_node.keys():
        yield "somebody without a seat is to save"
    if save.step is not None and save.step != save.furthest:
        yield f"all save at step {save.step}, and somebody is at {save.furthest}"


def _about_seats(seats: Seats) -> Iterator[str]:
    known = {seat.node: seat for seat in seats.by_rank if seat.status == "member"}
    if known != seats.by_node or any(seats.by_rank[s.rank] is not s for s in known.values()):
        yield "a node has two seats, or none of those that are its own"
    if seats.unreported != len(seats.unreported_ranks()):
        yield "seats that have not reported are counted wrong"
    if seats.succeeded != sum(seat.succeeded for seat in known.values()):
        yield "members that have succeeded are counted wrong"
    if seats.exited != sum(seat.exit is not None for seat in known.values()):
        yield "members that are back or gone are counted wrong"
