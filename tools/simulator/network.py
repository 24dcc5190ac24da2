"""Connections between hosts: in order each, late, cut, reset, or half open.

A connection has four lanes, each in order and none ordered with another: the frames of either
side, and the two ends of its tether, whose end means that everything that held it is gone.

Rules
1. What is sent while the way is cut arrives after the cut, if the connection is still there.
2. A process that dies ends its connections in order; a host that crashes says nothing, and
   answers with a reset once it is back.
3. A connection that is half open swallows what is sent, in one direction or both.
4. A tether that is reset proves nothing, whatever comes on its lane later.
"""

from __future__ import annotations

import itertools
from collections import deque
from random import Random
from typing import Any, Protocol

from tools.simulator.timeline import Timeline

TO_SERVER, TO_CLIENT, CLIENT_TETHER, SERVER_TETHER = range(4)
ASKED_AGAIN_S = 1.0
"""After which the kernel asks for a connection once more; then after twice as long, and so on."""


class Party(Protocol):
    """A process at one end of a connection."""

    host: int
    node: str
    alive: bool

    def host_is_up(self) -> bool: ...

    def received(self, connection: SimulatedConnection, lane: int, payload: Any) -> None: ...

    def broken(self, connection: SimulatedConnection, reason: str) -> None: ...

    def tie(self, connection: SimulatedConnection) -> None:
        """The client's tether has come."""
        ...

    def tether_reset(self, connection: SimulatedConnection) -> None: ...


class SimulatedConnection:
    """Two ends, four lanes."""

    __slots__ = (
        "client",
        "last",
        "number",
        "open",
        "server",
        "swallows",
        "tethered",
        "waiting",
    )

    def __init__(self, number: int, client: Party, server: Party) -> None:
        self.client = client
        self.server = server
        self.number = number
        """In the order in which servers admit them; by which a tether is known on either side."""
        self.open = [True, True]
        """Whether the server's end, and the client's, takes what comes."""
        self.last = [0.0] * 4
        self.waiting: tuple[deque[Any], ...] = (deque(), deque(), deque(), deque())
        self.swallows = [False, False]
        self.tethered = False
        """Whether there is a tether whose end still proves something."""

    def receiver(self, lane: int) -> Party:
        return self.server if lane in (TO_SERVER, CLIENT_TETHER) else self.client

    def sender(self, lane: int) -> Party:
        return self.client if lane in (TO_SERVER, CLIENT_TETHER) else self.server


END = object()


class ClusterNetwork:
    """Every connection, and every way that is cut."""

    def __init__(self, timeline: Timeline, random: Random) -> None:
        self._timeline = timeline
        self._random = random
        self._numbers = itertools.count(1)
        self._cut: dict[tuple[int, int], int] = {}
        self._slow: dict[int, int] = {}
        self._stalled: dict[SimulatedConnection, None] = {}

    def connect(self, client: Party, server: Party) -> SimulatedConnection:
        return SimulatedConnection(next(self._numbers), client, server)

    # What is wrong with it.

    def cut(self, source: int, target: int) -> None:
        self._cut[source, target] = self._cut.get((source, target), 0) + 1

    def mend(self, source: int, target: int) -> None:
        left = self._cut[source, target] - 1
        if left:
            self._cut[source, target] = left
            return
        del self._cut[source, target]
        stalled, self._stalled = self._stalled, {}
        for connection in stalled:
            for lane in range(4):
                self._flush(connection, lane)

    def slow(self, host: int, by: int) -> None:
        self._slow[host] = self._slow.get(host, 0) + by

    def blocked(self, source: int, target: int) -> bool:
        return source != target and (source, target) in self._cut

    def delay(self, source: int, target: int) -> float:
        if source == target:
            return 0.0001
        delay_s = 0.0005 + 0.004 * self._random.random()
        if self._slow and (self._slow.get(source) or self._slow.get(target)):
            delay_s += 1.2 * self._random.random()
        return delay_s

    # Sending.

    def send(self, connection: SimulatedConnection, lane: int, payload: Any) -> None:
        source, target = connection.sender(lane).host, connection.receiver(lane).host
        at = max(connection.last[lane], self._timeline.now + self.delay(source, target))
        connection.last[lane] = at
        self._timeline.at(at, self._arrive, connection, lane, payload)

    def _arrive(self, connection: SimulatedConnection, lane: int, payload: Any) -> None:
        sender, receiver = connection.sender(lane), connection.receiver(lane)
        if connection.waiting[lane] or self.blocked(sender.host, receiver.host):
            connection.waiting[lane].append(payload)
            self._stalled[connection] = None
            return
        self._hand_over(connection, lane, payload)

    def _flush(self, connection: SimulatedConnection, lane: int) -> None:
        waiting = connection.waiting[lane]
        if not waiting:
            return
        if self.blocked(connection.sender(lane).host, connection.receiver(lane).host):
            self._stalled[connection] = None
            return
        payloads = list(waiting)
        waiting.clear()
        for payload in payloads:
            self._hand_over(connection, lane, payload)

    def _hand_over(self, connection: SimulatedConnection, lane: int, payload: Any) -> None:
        receiver = connection.receiver(lane)
        if lane in (CLIENT_TETHER, SERVER_TETHER):
            if connection.tethered and receiver.alive:
                receiver.received(connection, lane, payload)
            return
        if connection.swallows[lane]:
            return
        if payload is END:
            if connection.open[lane]:
                connection.open[lane] = False
                if receiver.alive:
                    receiver.broken(connection, "the connection was closed")
            return
        if receiver.alive and connection.open[lane]:
            receiver.received(connection, lane, payload)
        elif receiver.host_is_up():
            self._refuse(connection, lane)

    def _refuse(self, connection: SimulatedConnection, lane: int) -> None:
        """A frame for a connection that is no more: its sender is told by a reset."""
        back = TO_CLIENT if lane == TO_SERVER else TO_SERVER
        if connection.open[back]:
            self.send(connection, back, END)

    # The end of a connection.

    def hang_up(self, connection: SimulatedConnection, lane: int) -> None:
        """The process that sends on this lane closes its end of the frames. The tether stays."""
        back = TO_CLIENT if lane == TO_SERVER else TO_SERVER
        if connection.open[back]:
            connection.open[back] = False
            self.send(connection, lane, END)

    def process_ended(self, connection: SimulatedConnection, lane: int) -> None:
        """The process is dead; the kernel closes for it."""
        self.send(connection, lane, END)

    def reset(self, connection: SimulatedConnection) -> None:
        """Something between the two resets it, frames and tether: both ends are told."""
        self.reset_tether(connection)
        for lane in (TO_SERVER, TO_CLIENT):
            receiver = connection.receiver(lane)
            if connection.open[lane]:
                connection.open[lane] = False
                if receiver.alive:
                    receiver.broken(connection, "the connection was reset")

    def reset_tether(self, connection: SimulatedConnection) -> None:
        """It proves nothing any more; the server, which may not have done it, is told."""
        if connection.tethered:
            connection.tethered = False
            if connection.server.alive:
                connection.server.tether_reset(connection)

    def tether_ended(self, connection: SimulatedConnection, lane: int) -> None:
        """The last that held this end of the tether is gone."""
        self.send(connection, lane, END)
