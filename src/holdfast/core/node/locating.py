"""Where the workers are that a round's end finds running.

Rules
1. Only where the coordinator wants to know it, as after a collective that timed out: the rank that
   did not come to it has not failed, and is stopped with the others. Elsewhere a stop waits for
   nothing.
2. They are asked before they are stopped. It ends with their answers, or after `PATIENCE_S`.
3. What they tell goes into what is said of those that were stopped; it decides nothing here.
"""

from __future__ import annotations

import signal

from holdfast.core.node.io import LocateWorkers, NodeEffect, Say, WakeNode, WorkersLocated
from holdfast.core.node.state import LOCATE_TIMER, NodeState, Phase, alive
from holdfast.core.node.stopping import stop_workers

PATIENCE_S = 2.0


def locate(state: NodeState) -> list[NodeEffect]:
    """Ask them, if they can be asked, and stop them then; else stop them."""
    if state.foreign or not state.config.oversight.stacks or not alive(state):
        return stop_workers(state, signal.SIGTERM)
    state.locating = True
    return [LocateWorkers(state.last_round), WakeNode(LOCATE_TIMER, PATIENCE_S)]


def located(state: NodeState, event: WorkersLocated) -> list[NodeEffect]:
    """They have told: stop them."""
    if not state.locating or event.round != state.last_round:
        return []
    for place in event.places:
        for worker in state.workers.values():
            if worker.rank in place.ranks:
                worker.place = place
    kept = [Say(f"where each worker was: {event.file}")] if event.file else []
    return [*kept, *not_located(state)]


def not_located(state: NodeState) -> list[NodeEffect]:
    """They have not told in time."""
    if not state.locating or state.phase is not Phase.STOPPING:
        return []
    return stop_workers(state, signal.SIGTERM)
