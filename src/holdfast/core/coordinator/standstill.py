"""When a whole job stands still, and what follows.

Rules
1. A job hangs when every node that has not finished its part of the round has said that its workers
   stand still. One that has not said so may be what the others wait for.
2. All of these are told, once for each standstill. Who moves ends it.
3. With `--hang restart` one worker is ended, unless the workers of some never spoke: on the first
   node that has one which stands out, else on the first of all. That it failed ends the round, as
   any failure does.
"""

from __future__ import annotations

from holdfast.core.coordinator.io import CoordinatorEffect, Tell
from holdfast.core.coordinator.round import RunningRound, ToldRound
from holdfast.core.coordinator.state import CoordinatorState, told_round
from holdfast.core.protocol.messages import TellHang, WorkersMoved, WorkersStood


def stood(state: CoordinatorState, node: str, message: WorkersStood) -> list[CoordinatorEffect]:
    current = told_round(state, message.round, node)
    if current is None:
        return []
    current.course.still[node] = message
    return look(state, current)


def moved(state: CoordinatorState, node: str, message: WorkersMoved) -> list[CoordinatorEffect]:
    current = told_round(state, message.round, node)
    if current is not None and current.course.still.pop(node, None) is not None:
        current.course.hang_told = False
    return []


def look(state: CoordinatorState, current: ToldRound) -> list[CoordinatorEffect]:
    """Whether it is true of all of them now (rule 1)."""
    if not isinstance(current, RunningRound):
        return []  # It stops, or not all of its members are known yet.
    course = current.course
    left = [node for node in current.seats.nodes() if node not in course.succeeded]
    if course.hang_told or not left or any(node not in course.still for node in left):
        return []
    course.hang_told = True
    suspect = _suspect(state, current, left)
    return [Tell(node, TellHang(current.number, node == suspect)) for node in left]


def _suspect(state: CoordinatorState, current: RunningRound, left: list[str]) -> str:
    """The node on which a worker is to be ended; none where nobody is (rule 3)."""
    still = current.course.still
    if state.config.oversight.hang != "restart" or any(still[node].never_spoke for node in left):
        return ""
    return next((node for node in left if still[node].stands_out), left[0])
