"""Workers of one node that stand still, and what its agent is told of it.

Rules
1. They stand until their time is over or they are gone. Meanwhile they neither step nor finish.
2. The agent is told some time after, as by looks that are far apart, and again when they go on.
"""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING

from tools.simulator.facts import NodeResumed, NodeStalled

from holdfast.core.node_io import StallFound, StallOver
from holdfast.core.protocol.messages import FrameGroup

if TYPE_CHECKING:
    from tools.simulator.spawner import SimulatedSpawner, SimulatedWorker

NOTICED_S = 1.0
"""How long it takes until an agent notices, at most."""


class SimulatedStall:
    """What one spawner's workers do not do."""

    def __init__(self, spawner: SimulatedSpawner) -> None:
        self._spawner = spawner
        self.round = 0
        """The round that stands still; 0 while none does."""
        self._is_told = False

    def begin(self, random: Random, lasts_s: float) -> None:
        running = self._running()
        if self.round or not running:
            return
        self.round, self._is_told = running[0].round, False
        self._note(NodeStalled)
        after = self._spawner.machine.after
        after(NOTICED_S * random.random(), self._tell, self.round)
        after(lasts_s, self._move, self.round)

    def look(self) -> None:
        """Some of them may be gone: when all are, nobody stands any more."""
        if self.round and not any(one.round == self.round for one in self._running()):
            self._note(NodeResumed)
            self.round = 0

    def _tell(self, round: int) -> None:
        if self._spawner.alive and self.round == round:
            self._is_told = True
            ranks = [one.rank for one in self._running()]
            places = (FrameGroup(tuple(ranks), "all_reduce", "train.py:1"),)
            event = StallFound(round, "they stand still", "", min(ranks), places, 300.0)
            self._spawner.process.post_agent(event)

    def _move(self, round: int) -> None:
        if not self._spawner.alive or self.round != round:
            return
        self._note(NodeResumed)
        self.round = 0
        if self._is_told:
            self._spawner.process.post_agent(StallOver(round))

    def _running(self) -> list[SimulatedWorker]:
        return [worker for worker in self._spawner.workers if worker.executes]

    def _note(self, kind: type[NodeStalled] | type[NodeResumed]) -> None:
        machine, process = self._spawner.machine, self._spawner.process
        cluster = machine.cluster
        cluster.note(kind(cluster.timeline.now, machine.number, process.node, self.round))
        verb = "stand still" if kind is NodeStalled else "stand still no more"
        cluster.tell_story(machine, f"the workers of round {self.round} {verb}")
