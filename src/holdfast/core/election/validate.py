"""What is true of an election after every step, whatever happened. The simulator asks each time."""

from __future__ import annotations

from collections.abc import Iterator

from holdfast.core.election.state import ElectionState


def broken_invariants(state: ElectionState) -> Iterator[str]:
    """What should be true and is not, in words."""
    leading, pending = state.leading, state.pending
    if leading is not None and leading.leader != state.node:
        yield f"this node leads by a document that names {leading.leader or 'nobody'}"
    if pending is not None and pending.purpose == "renew" and leading is None:
        yield "a term is renewed that is over"
    if pending is not None and pending.purpose != "renew" and leading is not None:
        yield f"a leader writes a {pending.purpose}"
    if state.wanted is not None and leading is None:
        yield "something waits to be written for a coordinator that is not there"
    if leading is not None and state.calling:
        yield "a leader looks for a coordinator"
    if state.forgotten and not state.retiring:
        yield "the register forgot a job that is not over"
