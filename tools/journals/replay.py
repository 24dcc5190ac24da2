"""A journal replayed: its events, fed to fresh machines, must give the recorded effects.

    python -m tools.journals.replay journal.jsonl

No output means that today's core (node, coordinator and election) decides every step as it was
decided then.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import msgspec

from holdfast.core import coordinator
from holdfast.core import node as agent
from holdfast.core.coordinator import begin
from holdfast.core.features.of_node import new_node
from holdfast.core.node import UNANSWERED, NodeState
from holdfast.observe.journal import (
    AgentFailed,
    ClockRead,
    CoordinatorBegan,
    CoordinatorStep,
    ElectionStep,
    Gap,
    JournalHeader,
    NodeStep,
    Step,
    read,
    sent_number,
)

Machine = Literal["agent", "coordinator", "election"]
MACHINES: dict[type, Machine] = {
    NodeStep: "agent",
    CoordinatorStep: "coordinator",
    ElectionStep: "election",
}


class Divergence(msgspec.Struct, frozen=True):
    """A step that the core would decide differently today."""

    seq: int
    machine: Machine
    recorded: str
    replayed: str


def replay(header: JournalHeader, steps: list[Step]) -> Iterator[Divergence]:
    """Feed the recorded events to fresh machines; yield every difference, up to a gap."""
    agent_state = new_node(header.config, header.node, header.host)
    coordinator_state = begin(header.config)
    for step in steps:
        recorded: list[Any] = []
        decided: list[Any] = []
        match step:
            case ClockRead() | AgentFailed():
                pass
            case Gap():
                return  # The state of the machines after it is not known.
            case CoordinatorBegan():
                coordinator_state = step.beginning.state(header.config, step.at)
            case NodeStep():
                _skip_heartbeats(agent_state, step)
                recorded, decided = step.effects, agent.step(agent_state, step.event, step.at)
            case CoordinatorStep():
                recorded = step.effects
                decided = coordinator.step(coordinator_state, step.event, step.at)
            case ElectionStep():
                recorded, decided = _elect_again(step)
        if decided != recorded:
            yield Divergence(step.seq, MACHINES[type(step)], repr(recorded), repr(decided))


def _elect_again(step: ElectionStep) -> tuple[list[Any], list[Any]]:
    """The election's decision at that step, then and today."""
    from holdfast.core import election
    from holdfast.core.election import ElectionEffect, ElectionEvent, ElectionState

    if step.before is None:
        return [], []  # Of an older schema.
    before = msgspec.convert(step.before, ElectionState)
    (event,) = msgspec.convert([step.event], list[ElectionEvent])
    recorded = msgspec.convert(step.effects, list[ElectionEffect])
    return recorded, list(election.step(before, event, step.at))


def _skip_heartbeats(state: NodeState, step: NodeStep) -> None:
    """Those that were answered and followed by others are not in the journal.

    Nor is the answer to one that is, if it came after a step that made us write it: where the
    agent sent another, nothing that old was unanswered.
    """
    number, lease = sent_number(step), state.link.lease
    if number is None or lease is None:
        return
    lease.number = number - 1
    oldest = step.at - UNANSWERED * lease.terms.heartbeat_s
    lease.sent = {each: sent_at for each, sent_at in lease.sent.items() if sent_at > oldest}


if __name__ == "__main__":
    found = [each for path in sys.argv[1:] for each in replay(*read(Path(path)))]
    for difference in found:
        print(difference)
    sys.exit(1 if found else 0)
