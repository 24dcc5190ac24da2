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
from holdfast.core.coordinator.state import CoordinatorState, RunningRound, current_round
from holdfast.core.protocol.messages import TellHang, WorkersMoved, WorkersStood


def stood(state: CoordinatorState, node: str, message: WorkersStood) -> list[CoordinatorEffect]:
    current = current_round(state, message.round)
    if current is None or not current.has(node):
        return []
    current.still[node] = message
    return look(state, current)


def moved(state: CoordinatorState, node: str, message: WorkersMoved) -> list[CoordinatorEffect]:
    current = current_round(state, message.round)
    if current is not None and current.still.pop(node, None) is not None:
        current.hang_told = False
    return []


def look(state: CoordinatorState, current: RunningRound) -> list[CoordinatorEffect]:
    """Whether it is true of all of them now (rule 1)."""
    left = [name for name in current.members if name not in current.succeeded]
    if current.ending is not None or current.hang_told or not left:
        return []
    if any(name not in current.still for name in left):
        return []
    current.hang_told = True
    suspect = _suspect(state, current, left)
    return [Tell(name, TellHang(current.number, name == suspect)) for name in left]


def _suspect(state: CoordinatorState, current: RunningRound, left: list[str]) -> str:
    """The node on which a worker is to be ended; none where nobody is (rule 3)."""
    said = [current.still[name] for name in left]
    if state.config.oversight.hang != "restart" or any(one.never_spoke for one in said):
        return ""
    return next((name for name in left if current.still[name].stands_out), left[0])
