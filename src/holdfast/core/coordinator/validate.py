"""What is true of a coordinator after every step, whatever happened: the simulator asks."""

from __future__ import annotations

from collections.abc import Iterator

from holdfast.core.coordinator.io import Written
from holdfast.core.coordinator.liveness import Desk
from holdfast.core.coordinator.state import UNKNOWN, CoordinatorState, RunningRound
from holdfast.core.protocol.document import SUCCESSORS


def untruths(desk: Desk) -> Iterator[str]:
    """What should be true and is not, in words."""
    state = desk.state
    yield from _about_nodes(state)
    yield from _about_the_outcome(state)
    if state.round is not None:
        yield from _about_the_round(state, state.round)
    for taken in desk.taken:
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
    if state.leader in state.successors:
        yield "the coordinator would follow itself"
    if len(state.successors) > SUCCESSORS:
        yield f"there are {len(state.successors)} successors"


def _about_the_outcome(state: CoordinatorState) -> Iterator[str]:
    if state.outcome is None and (state.outcome_told or state.retired):
        yield "an outcome was told that there is not"
    if state.outcome_version > state.version:
        yield "the outcome has a version that is still to come"
    if state.charges < 0 or state.fruitless < 0:
        yield "something was counted below zero"


def _about_the_round(state: CoordinatorState, current: RunningRound) -> Iterator[str]:
    known = [name for name in current.members if name != UNKNOWN]
    if current.number > state.round_number:
        yield f"round {current.number} runs, above {state.round_number}"
    if len(known) != len(set(known)):
        yield "a node has two seats"
    seats = {name: rank for rank, name in enumerate(current.members) if name != UNKNOWN}
    if seats != current.seats:
        yield "seats and members differ"
    if current.back & current.gone.keys():
        yield "a member is back and gone"
    for what, names in (("back", current.back), ("succeeded", current.succeeded)):
        if not names <= set(known):
            yield f"somebody is {what} who has no seat"
    if current.ending is None and current.stop_deadline is not None:
        yield "a round that nobody ends has a time to stop"
    if current.ending is not None and not current.stop_reason:
        yield "a round ends for no reason"
    saving = current.saving
    if saving is not None:
        if not saving.unheard | saving.unsaved <= set(known):
            yield "somebody without a seat is to save"
        if saving.step is not None and saving.step != saving.furthest:
            yield f"all save at step {saving.step}, and somebody is at {saving.furthest}"
    if current.version > state.version:
        yield "the round has a version that is still to come"
