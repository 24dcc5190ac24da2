"""Time, and what lies between the hosts of a story: connections that can be cut.

Nothing takes time by itself: what is sent arrives at once, in order. Only `advance` moves the
clock, and whatever is due on the way happens then, in order. There is no randomness.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import TYPE_CHECKING

from holdfast.core.document import Document
from holdfast.core.leadership_io import (
    LeadershipEvent,
    ReadRegister,
    RegisterRead,
    RegisterUnclear,
    RegisterWrote,
    WriteRegister,
)

if TYPE_CHECKING:
    from holdfast.core.agent_io import Told
    from holdfast.core.config import JobConfig
    from holdfast.core.messages import FromNode

    from .host import Host

Happening = Callable[[], None]


class Register:
    """The shared document through which coordinators are found and fenced."""

    def __init__(self) -> None:
        self.document: Document | None = None
        self.token = 0
        self.down = False
        self.loses_reply = False

    def ask(self, request: ReadRegister | WriteRegister) -> LeadershipEvent:
        wrote = isinstance(request, WriteRegister)
        if self.down:
            return RegisterUnclear(wrote)
        if not isinstance(request, WriteRegister):
            return RegisterRead(self.document, self.token)
        done = request.token == self.token
        if done:
            self.document, self.token = request.document, self.token + 1
        if self.loses_reply:
            self.loses_reply = False
            return RegisterUnclear(wrote)
        return RegisterWrote(done, self.document, self.token)


class World:
    """All hosts of a story, the clock, and what has been seen since the last command."""

    def __init__(self) -> None:
        self.now = 0.0
        self.config: JobConfig | None = None
        self.hosts: dict[str, Host] = {}
        self.register: Register | None = None
        """None where the first host carries the coordinator and its record."""
        self.seen: list[str] = []
        self._due: list[tuple[float, int, Happening]] = []
        self._count = 0
        self._stuck: list[tuple[str, str, Happening]] = []

    def note(self, who: str, text: str) -> None:
        self.seen.append(f"{self.now:7.2f} s  {who:<11}  {text}")

    def at(self, when: float, happen: Happening) -> None:
        self._count += 1
        heapq.heappush(self._due, (max(when, self.now), self._count, happen))

    def soon(self, happen: Happening) -> None:
        self.at(self.now, happen)

    def advance(self, by_s: float) -> None:
        until = self.now + by_s
        while self._due and self._due[0][0] <= until:
            self.now, _, happen = heapq.heappop(self._due)
            happen()
        self.now = until

    # The network.

    def reaches(self, one: Host, other: Host) -> bool:
        return one is other or not (one.cut_off or other.cut_off)

    def send(self, source: Host, target: Host, arrive: Happening) -> None:
        """Let something arrive, now or when the link is whole again."""
        if self.reaches(source, target):
            self.soon(arrive)
        else:
            self._stuck.append((source.name, target.name, arrive))

    def healed(self) -> None:
        stuck, self._stuck = self._stuck, []
        for source, target, arrive in stuck:
            self.send(self.hosts[source], self.hosts[target], arrive)

    def forget_what_is_on_the_way_to(self, host: Host) -> None:
        self._stuck = [one for one in self._stuck if host.name not in one[:2]]


class Link:
    """A node's connection to a coordinator, and its tether beside it."""

    def __init__(self, world: World, client: Host, server: Host) -> None:
        self.world, self.client, self.server = world, client, server
        self.client_life, self.server_life = client.life, server.life
        self.node = client.node

    def tell_server(self, message: FromNode) -> None:
        chair = self.server.chair
        self._arrive_at_server(lambda: chair.receive(self, message))

    def tell_client(self, told: Told) -> None:
        def arrive() -> None:
            if self.client.link is self:
                self.client.told(told)

        self._arrive_at_client(arrive)

    def hang_up(self) -> None:
        """The client ends the connection; the tether stays, and says nothing."""
        chair = self.server.chair
        self._arrive_at_server(lambda: chair.disconnected(self))

    def node_died(self) -> None:
        """Every process of the client is gone: its kernel ends both connections in order."""
        chair = self.server.chair
        self._arrive_at_server(lambda: chair.disconnected(self))
        self._arrive_at_server(lambda: chair.tether_ended(self))

    def drop(self, reason: str) -> None:
        """The server ends the connection, or something between does."""
        self._arrive_at_client(lambda: self.client.link_lost(self, reason))

    def _arrive_at_server(self, arrive: Happening) -> None:
        def if_there() -> None:
            if self.server.life == self.server_life:
                self.server.run(arrive)

        self.world.send(self.client, self.server, if_there)

    def _arrive_at_client(self, arrive: Happening) -> None:
        def if_there() -> None:
            if self.client.life == self.client_life:
                self.client.run(arrive)

        self.world.send(self.server, self.client, if_there)
