"""What a simulated coordinator says: it waits until its process gets to send it.

Rules
1. Whether something may be said is asked when it is sent (`gate`), not when it was decided: the
   process may have been paused in between, and then asks after it woke up.
2. A greeting begins anew: what was to be told to that node before is forgotten.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.core import desk as desks
from holdfast.core.agent_io import Told
from holdfast.core.coordinator_io import Tell
from holdfast.core.leadership_state import gate
from holdfast.core.messages import HeartbeatAnswered
from holdfast.testing.network import TO_CLIENT

if TYPE_CHECKING:
    from holdfast.testing.leading import Leading

SENDING_S = 0.0003


class Outbox:
    """What one coordinator has yet to say, and what it keeps until it may speak again."""

    def __init__(self, leading: Leading) -> None:
        self._leading = leading
        self._waiting: list[Tell] = []
        self._kept: list[Tell] = []
        self._flushing = False

    def clear(self) -> None:
        self._waiting, self._kept = [], []

    def say(self, tell: Tell) -> None:
        if isinstance(tell.message, HeartbeatAnswered):
            self._send(tell)
            return
        cluster, machine = self._leading.cluster, self._leading.machine
        if cluster.interrupts(machine):
            cluster.pause_mid_word(machine)
        self._say_later(tell)

    def _say_later(self, tell: Tell) -> None:
        self._waiting.append(tell)
        if not self._flushing:
            self._flushing = True
            self._leading.machine.after(SENDING_S, self._leading.process.post, self._flush)

    def forget(self, node: str) -> None:
        """A greeting begins anew: its answer tells all, and nothing older may come after it."""
        self._waiting = [tell for tell in self._waiting if tell.node != node]
        self._kept = [tell for tell in self._kept if tell.node != node]

    def _flush(self) -> None:
        self._flushing = False
        waiting, self._waiting = self._waiting, []
        for tell in waiting:
            self._send(tell)

    def send_kept(self) -> None:
        kept, self._kept = self._kept, []
        for tell in kept:
            self._send(tell)

    def _send(self, tell: Tell) -> None:
        leading = self._leading
        desk, notes, process = leading.desk, leading.notes, leading.process
        if desk is None or notes is None:
            return
        if leading.reached_point():
            self._say_later(tell)
            return
        if not leading.embedded:
            now = leading.now()
            heard = desks.all_heard(desk, now)
            verdict = gate(leading.state, tell.message, heard, now)
            if verdict == "keep":
                self._kept.append(tell)
            if verdict != "send":
                return
            notes.said(tell.message, leading.secure_from, now)
        told = Told(tell.message, desk.state.tenure)
        if tell.node == process.node:
            process.post_agent(told)
        elif tell.node in leading.latest:
            notes.speaks(told.tenure)
            leading.cluster.network.send(leading.latest[tell.node], TO_CLIENT, told)
