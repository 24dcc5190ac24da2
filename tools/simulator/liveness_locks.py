"""The notes of nodes on a simulated host: they outlive its processes and its restarts.

Rules
1. What a note proves is decided by the core that ships; here is only what there is to be found.
2. A note is locked as long as anything of its node is left: the agent, its spawner, or a worker
   that has outlived both.
3. Who looks at one that is locked is told when it is free, a little later.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from holdfast.core.node_io import EndedFound, LivenessLockTaken, RecordSeat
from holdfast.core.policy.liveness_locks import (
    OUTERMOST,
    Evidence,
    LockOrigin,
    LockRecord,
    RecordedSeat,
    ended_member,
    judge,
)
from holdfast.core.protocol.messages import EndedMember

if TYPE_CHECKING:
    from tools.simulator.machine import Machine
    from tools.simulator.process import SimulatedProcess

DISK_S = 0.003


class SimulatedNotes:
    """Of one process, on its host's disk."""

    def __init__(self, process: SimulatedProcess) -> None:
        self._process, self._machine = process, process.machine
        self._told: set[str] = set()

    def make(self) -> LivenessLockTaken:
        """Its own; then it looks at the others."""
        machine, node = self._machine, self._process.node
        machine.notes[node] = LockRecord("job", node, _where(machine), machine.lives)
        machine.after(DISK_S, self._process.post, self.look)
        return LivenessLockTaken()

    def look(self) -> None:
        """Tell of those that have ended, and were not told of."""
        machine, nodes = self._machine, []
        members: list[EndedMember] = []
        for node, note in machine.notes.items():
            if node == self._process.node or node in self._told:
                continue
            evidence = Evidence(note.file, machine.has_of(node))
            if judge(note, _where(machine), evidence) == "ended":
                nodes.append(node)
                told = ended_member(note)
                members += [told] if told is not None else []
        self._told |= set(nodes)
        if nodes:
            self._process.post_agent(EndedFound(tuple(nodes), tuple(members)))

    def put(self, effect: RecordSeat) -> None:
        self._machine.after(DISK_S, self._put, effect)

    def _put(self, effect: RecordSeat) -> None:
        notes, node = self._machine.notes, self._process.node
        if node in notes:
            seat = RecordedSeat(effect.instance, effect.round, effect.seat)
            notes[node] = replace(notes[node], seat=seat)

    def remove(self) -> None:
        self._machine.notes.clear()


def _where(machine: Machine) -> LockOrigin:
    return LockOrigin(machine.name, f"start {machine.boots}", OUTERMOST)
