"""What is true of a node after every step, whatever happened. The simulator asks each time."""

from __future__ import annotations

from collections.abc import Iterator

from holdfast.core.node.state import NodeState, Phase, alive

RUNNING, WAITING = Phase.RUNNING, Phase.WAITING
IDLE = (Phase.PREPARING, Phase.WAITING)
UNJOINED = (Phase.PREPARING, Phase.CLOSING, Phase.FINISHED)
"""Nobody has been told of the node, or has to be any more."""


def broken_invariants(state: NodeState) -> Iterator[str]:
    """What should be true and is not, in words."""
    phase = state.phase
    if state.connected and state.dialling:
        yield "the coordinator is looked for, and was found"
    if phase is RUNNING:
        if state.assignment is None or not state.workers:
            yield "a round runs without workers"
        elif state.assignment.round != state.last_round:
            yield f"round {state.assignment.round} runs after round {state.last_round}"
    if phase is WAITING and state.endpoint is None:
        yield "the node waits for a round, and holds no endpoint"
    if phase in IDLE and alive(state):
        yield f"workers run while the node is {phase}"
    if state.workers and not state.failures.keys() <= state.workers.keys():
        yield "somebody failed who is no worker of the round"
    if state.warm and state.warm_pending:
        yield "the zygote is ready, and waited for"
    if state.node in [one.node for one in state.ended]:
        yield "the node tells of its own end"
    if state.lock_pending and phase not in UNJOINED:
        yield "the node has joined, and its note is waited for"
