"""Many nodes on one thread: they speak Holdfast's own protocol to a real coordinator.

Each has a control connection of its own and, as far as the descriptors of a process go, a
tether. It says what the agent of a node says, in the same order and no less often: it
greets, joins, sends heartbeats, and answers the end of a round. What it has not is workers.

At most `AT_ONCE` nodes are in their handshake at a time. The kernel keeps no more than some
thousands of connections that were not accepted yet, and makes the others wait a whole second
before they try again; machines that start at the same time are spread by more than that.
"""

from __future__ import annotations

import errno
import os
import select
import socket
import time
from collections import deque
from collections.abc import Callable

from benchmarks.jobs import RunFailed
from holdfast.core.policy.config import Leases
from holdfast.core.protocol.messages import (
    Heartbeat,
    HeartbeatAnswered,
    NodeGreeted,
    NodeJoined,
    RoundStopped,
    RunRound,
    StopRound,
    Welcomed,
    WorkersFailed,
)
from holdfast.core.protocol.model import Endpoint, ExitStatus, Failure, NodeInfo
from holdfast.transport.auth import OPEN
from holdfast.transport.frames import FRAME_LIMIT, FrameReader, encode, orders
from holdfast.transport.handshake import ClientSide, tether_opening

AT_ONCE = 512
EVENTS_AT_ONCE = 1024
RECEIVE_BYTES = 1 << 16
IP_BIND_ADDRESS_NO_PORT = 24
"""From <linux/in.h>: bind to an address now, and to a port when the peer is known."""
HEARTBEAT_S = Leases().heartbeat_s
MASTER_PORT = 1
"""Nobody connects to it: there are no workers."""


class SimulatedNode:
    """A node as far as a coordinator can tell."""

    __slots__ = ("address", "beats", "info", "reader", "receive", "side", "socket", "tether")

    def __init__(self, job: str, number: int) -> None:
        name = f"simulated-{number}"
        self.address = f"127.1.{number >> 8}.{number & 255}"
        """Its own: from a single one the kernel would search long for a free port."""
        self.info = NodeInfo(node=name, host=name, slots=1)
        self.side = ClientSide(job, name, "control", OPEN)
        self.reader = FrameReader()
        self.receive: Callable[[SimulatedNode, bytes | bytearray], None] | None = None
        self.socket = self.new_socket()
        self.tether: socket.socket | None = None
        self.beats = 0

    def new_socket(self) -> socket.socket:
        made = socket.socket()
        made.setsockopt(socket.IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, 1)
        made.bind((self.address, 0))
        return made


class Crowd:
    """All of them. Every method returns when all have got where it says, or raises RunFailed."""

    def __init__(self, port: int, job: str, size: int, tethers: int) -> None:
        self._address = ("127.0.0.1", port)
        self._job, self._size = job, size
        self._tethers = tethers
        self._epoll = select.epoll()
        self._nodes: dict[int, SimulatedNode] = {}
        self._unfinished = 0
        self._beats: deque[tuple[float, SimulatedNode]] = deque()
        self.tethered = 0
        self.beats_answered = 0
        self.round = 0
        self.running = 0
        """How many were told to run the highest round so far."""
        self.stopped = 0
        """How many were told to stop it."""

    def __enter__(self) -> Crowd:
        return self

    def __exit__(self, *_: object) -> None:
        for node in self._nodes.values():
            node.socket.close()
            if node.tether is not None:
                node.tether.close()
        self._epoll.close()

    def join(self, deadline_s: float) -> float:
        """Connect all; the seconds until the last one was told to run the round."""
        begun = time.monotonic()
        number = 0
        while self.running < self._size or self.round == 0:
            while number < self._size and self._unfinished < AT_ONCE:
                self._connect(SimulatedNode(self._job, number))
                number += 1
            self._turn(begun + deadline_s)
        return time.monotonic() - begun

    def rest(self, seconds: float) -> None:
        """Send heartbeats and hear the answers, for a while."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            self._turn(until + seconds, until)

    def fail_one(self, deadline_s: float) -> tuple[float, float]:
        """One tells of a failure; the seconds until all were told to stop, and to run again."""
        self.stopped = 0
        ended, sick = self.round, next(iter(self._nodes.values()))
        begun = time.monotonic()
        self._send(sick, encode(WorkersFailed(ended, (self._failure(sick),))))
        while self.stopped < self._size:
            self._turn(begun + deadline_s)
        told_s = time.monotonic() - begun
        while self.round == ended or self.running < self._size:
            self._turn(begun + deadline_s)
        return told_s, time.monotonic() - begun

    def _failure(self, node: SimulatedNode) -> Failure:
        return Failure(
            node=node.info.node,
            host=node.info.host,
            local_rank=0,
            rank=0,
            role=node.info.role,
            pid=1,
            status=ExitStatus(code=1),
            observed_at=time.monotonic(),
        )

    # The loop.

    def _turn(self, deadline: float, until: float | None = None) -> None:
        """Wait for whatever comes first, and handle it."""
        now = time.monotonic()
        if now > deadline:
            raise RunFailed(f"{self.running} of {self._size} run round {self.round}, too few")
        wake_at = deadline if until is None else until
        if self._beats:
            wake_at = min(wake_at, self._beats[0][0])
        for number, _ in self._epoll.poll(max(0.0, wake_at - now), EVENTS_AT_ONCE):
            node = self._nodes[number]
            if node.receive is None:
                self._on_connected(node)
            else:
                self._on_readable(node)
        now = time.monotonic()
        while self._beats and self._beats[0][0] <= now:
            self._beat(self._beats.popleft()[1])

    def _connect(self, node: SimulatedNode) -> None:
        node.socket.setblocking(False)
        node.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        result = node.socket.connect_ex(self._address)
        if result not in (0, errno.EINPROGRESS):
            raise RunFailed(f"{node.info.node} cannot connect: {os.strerror(result)}")
        self._nodes[node.socket.fileno()] = node
        self._unfinished += 1
        self._epoll.register(node.socket.fileno(), select.EPOLLOUT)

    def _on_connected(self, node: SimulatedNode) -> None:
        result = node.socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if result:
            raise RunFailed(f"{node.info.node} cannot connect: {os.strerror(result)}")
        node.receive = self._on_challenge
        self._epoll.modify(node.socket.fileno(), select.EPOLLIN)
        self._send(node, node.side.opening())

    def _on_readable(self, node: SimulatedNode) -> None:
        received = node.socket.recv(RECEIVE_BYTES)
        if not received:
            raise RunFailed(f"the coordinator has closed the connection of {node.info.node}")
        node.reader.feed(received)
        while (payload := node.reader.take()) is not None:
            assert node.receive is not None, "it has read before it was connected"
            node.receive(node, payload)

    def _send(self, node: SimulatedNode, data: bytes) -> None:
        if node.socket.send(data) != len(data):
            raise RunFailed(f"the coordinator does not read what {node.info.node} says")

    # The handshake.

    def _on_challenge(self, node: SimulatedNode, payload: bytes | bytearray) -> None:
        node.side.read_challenge(payload)
        node.receive = self._on_welcome
        self._send(node, node.side.prove())

    def _on_welcome(self, node: SimulatedNode, payload: bytes | bytearray) -> None:
        node.side.read_welcome(payload)
        node.reader.limit = FRAME_LIMIT
        node.receive = self._on_order
        self._unfinished -= 1
        self._send(node, encode(NodeGreeted(node.info)))
        self._beat(node)
        if self.tethered < self._tethers:
            self.tethered += 1
            node.tether = node.new_socket()
            node.tether.connect(self._address)
            node.tether.send(tether_opening(self._job, node.info.node, node.side.ticket))

    # The life of a node.

    def _beat(self, node: SimulatedNode) -> None:
        node.beats += 1
        self._send(node, encode(Heartbeat(node.beats)))
        self._beats.append((time.monotonic() + HEARTBEAT_S, node))

    def _on_order(self, node: SimulatedNode, payload: bytes | bytearray) -> None:
        message = orders.decode(payload).message
        match message:
            case HeartbeatAnswered():
                self.beats_answered += 1
            case Welcomed():
                self._send(node, encode(NodeJoined(node.info, self._endpoint())))
            case RunRound():
                self._note_round(message.assignment.round)
            case StopRound():
                self.stopped += 1
                over = RoundStopped(message.round, (), self._endpoint())
                self._send(node, encode(over))
            case _:
                raise RunFailed(f"{node.info.node} was told {message}")

    def _note_round(self, number: int) -> None:
        if number > self.round:
            self.round, self.running = number, 0
        self.running += number == self.round

    def _endpoint(self) -> Endpoint:
        return Endpoint(self._address[0], MASTER_PORT)
