"""A coordinator's server and agents' clients on one loop, all that happens written down.

Everything is real: sockets on loopback, the loop of the product. A test acts, and then waits
with `until` for what must come of it; a deadline ends what never comes.
"""

from __future__ import annotations

import functools
import os
import socket
import time
from collections.abc import Callable

from msgspec.structs import replace

from holdfast.core.protocol.errors import UsageError
from holdfast.core.protocol.messages import (
    FromNode,
    Heartbeat,
    HeartbeatAnswered,
    NodeGreeted,
    ToNode,
)
from holdfast.core.protocol.model import Endpoint, NodeInfo, Term
from holdfast.runtime.disk import Disk
from holdfast.runtime.loop import EventLoop
from holdfast.store.key_spaces import KeySpaces
from holdfast.transport.auth import OPEN, ConnectionSecurity
from holdfast.transport.client import Client
from holdfast.transport.dialling import Identity
from holdfast.transport.frames import FrameReader
from holdfast.transport.server import Server

from ..waiting import loop_until

JOB = "job"
TENURE = Term(3, 7)
DEADLINE_S = 40.0
LOOPBACK = "127.0.0.1"


class Coordinator:
    """Writes down what its server tells, and answers heartbeats."""

    def __init__(self) -> None:
        self.server: Server
        self.messages: list[tuple[str, FromNode]] = []
        self.lost: list[tuple[str, str]] = []
        self.tethered: list[str] = []
        self.tethers_ended: list[tuple[str, bool]] = []

    def on_message(self, node: str, message: FromNode) -> None:
        self.messages.append((node, message))
        if isinstance(message, Heartbeat):
            self.server.send(node, TENURE, HeartbeatAnswered(message.number))

    def on_lost(self, node: str, reason: str) -> None:
        self.lost.append((node, reason))

    def on_tether(self, node: str) -> None:
        self.tethered.append(node)

    def on_tether_ended(self, node: str, clean: bool) -> None:
        self.tethers_ended.append((node, clean))


class Agent:
    """Writes down what its client tells, and owns the tethers that it is handed."""

    def __init__(self, stage: Stage, node: str, security: ConnectionSecurity, job: str) -> None:
        self.node = node
        self.client = Client(stage.loop, Identity(job, node, security), stage.disk, self)
        # Whoever comes again under a name is taken for the same node: it has the same secret.
        identity = self.client._identity
        self.client._identity = replace(identity, secret=node.encode().ljust(32))
        self.connected: list[str] = []
        self.unusable: list[UsageError] = []
        self.lost: list[tuple[str, bool]] = []
        self.messages: list[tuple[int, int, ToNode]] = []
        self.tethers: list[socket.socket] = []
        self.beats = 0

    def was_answered(self) -> bool:
        return bool(self.tethers or self.lost)

    def on_connected(self, local_address: str) -> None:
        self.connected.append(local_address)

    def on_line_lost(self, reason: str, permanent: bool) -> None:
        self.lost.append((reason, permanent))

    def on_unusable(self, error: UsageError) -> None:
        self.unusable.append(error)

    def on_told(self, term: Term, message: ToNode) -> None:
        self.messages.append((term.instance, term.epoch, message))

    def on_own_tether(self, tether: int) -> None:
        self.tethers.append(socket.socket(fileno=tether))

    def greet(self) -> None:
        """Say what it is there for, as every real one does first of all."""
        self.client.send(NodeGreeted(NodeInfo(self.node, "host", 1)))

    def close(self) -> None:
        self.client.close()
        for tether in self.tethers:
            tether.close()


class Raw:
    """A client that does what it likes; `received` fills up while the stage runs."""

    def __init__(self, loop: EventLoop, endpoint: Endpoint, source: str = "") -> None:
        self._loop = loop
        place = (endpoint.address, endpoint.port)
        self.socket = socket.create_connection(place, source_address=(source, 0))
        self.socket.setblocking(False)
        self.reader = FrameReader(1 << 20)
        self.frames: list[bytes] = []
        self.is_ended = False
        self.is_reading = False
        self.read_again()

    def read_again(self) -> None:
        self.is_reading = True
        self._loop.add_reader(self.socket.fileno(), self._on_readable)

    def _on_readable(self) -> None:
        try:
            received = self.socket.recv(1 << 16)
        except OSError:
            received = b""
        if not received:
            self.is_ended = True
            self.read_no_more()
            return
        self.reader.feed(received)
        while (payload := self.reader.take()) is not None:
            self.frames.append(bytes(payload))

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def read_no_more(self) -> None:
        if self.is_reading:
            self.is_reading = False
            self._loop.remove_reader(self.socket.fileno())

    def close(self) -> None:
        self.read_no_more()
        self.socket.close()


class Stage:
    """Everything of one test."""

    def __init__(self) -> None:
        self.loop = EventLoop()
        self.disk = Disk(self.loop, print)
        self.coordinator = Coordinator()
        self.spaces = KeySpaces()
        self.server: Server
        self._closing: list[Callable[[], None]] = []

    def serve(
        self,
        security: ConnectionSecurity = OPEN,
        host: str = LOOPBACK,
        job: str = JOB,
        port: int = 0,
    ) -> Server:
        self.server = Server(self.loop, job, security, self.coordinator, self.spaces)
        self.coordinator.server = self.server
        self.server.listen((host, port))
        self._closing.append(self.server.close)
        return self.server

    @property
    def endpoint(self) -> Endpoint:
        return self.server.addresses[0]

    def agent(
        self, node: str = "node", security: ConnectionSecurity = OPEN, job: str = JOB
    ) -> Agent:
        agent = Agent(self, node, security, job)
        self._closing.append(agent.close)
        return agent

    def connect(self, node: str = "node", security: ConnectionSecurity = OPEN) -> Agent:
        """An agent that is connected, and tethered if it can be; the server has heard of it."""
        agent = self.agent(node, security)
        agent.client.dial((self.endpoint,), DEADLINE_S)
        tethered = len(self.coordinator.tethered)
        if security.tls is None:
            self.until(lambda: agent.tethers and len(self.coordinator.tethered) > tethered)
        else:
            self.until(lambda: agent.connected or agent.lost)
        assert agent.lost == []
        return agent

    def connect_at_last(self, node: str, security: ConnectionSecurity) -> Agent:
        """The same where one may have to come again, as agents do."""
        until = time.monotonic() + DEADLINE_S
        while True:
            agent = self.agent(node, security)
            agent.client.dial((self.endpoint,), DEADLINE_S)
            self.until(agent.was_answered)
            if not agent.lost:
                self.until(functools.partial(self._is_tethered, agent.node))
                return agent
            assert time.monotonic() < until, agent.lost

    def _is_tethered(self, node: str) -> bool:
        return node in self.coordinator.tethered

    def raw(self, endpoint: Endpoint | None = None, source: str = "") -> Raw:
        """A connection of one's own, from an address of this machine."""
        raw = Raw(self.loop, endpoint or self.endpoint, source)
        self._closing.append(raw.close)
        return raw

    def closing(self, close: Callable[[], None]) -> None:
        """Have this called when the test is over, before what came before it."""
        self._closing.append(close)

    def until(self, done: Callable[[], object]) -> None:
        """Run the loop until something is so; fail when it never is."""
        loop_until(self.loop, done)

    def assert_undisturbed(self, agent: Agent) -> None:
        """The agent is still heard, and still answered, on the connection that it had."""
        agent.beats += 1
        answer = (TENURE.instance, TENURE.epoch, HeartbeatAnswered(agent.beats))
        agent.client.send(Heartbeat(agent.beats))
        self.until(lambda: agent.lost or answer in agent.messages)
        assert agent.lost == []
        assert len(agent.connected) == 1
        assert agent.node not in [node for node, _ in self.coordinator.lost]
        assert agent.node not in [node for node, _ in self.coordinator.tethers_ended]

    def close(self) -> None:
        for close in reversed(self._closing):
            close()
        self.disk.close()
        self.loop.close()


def reset(sock: socket.socket) -> None:
    """Close so that the peer gets a reset."""
    import struct

    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    sock.close()


def open_descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))
