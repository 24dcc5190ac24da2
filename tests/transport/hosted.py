"""A real coordinator on a real socket, with honest nodes that do what they are told.

What a hostile client says reaches the coordinator, keeper and server of a job; the honest nodes
have no workers, and say of them what a test wants said.
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, cast

from holdfast.core.border import Retire, Write, Written
from holdfast.core.coordinator import Coordinator, ledger, next_life
from holdfast.core.coordinator_io import CoordinatorEvent
from holdfast.core.node_io import Told
from holdfast.core.policy.config import JobConfig, Program, RestartPolicy, Timeouts
from holdfast.core.protocol.document import Document
from holdfast.core.protocol.errors import UsageError
from holdfast.core.protocol.messages import (
    CloseJob,
    FromNode,
    Heartbeat,
    HeartbeatAnswered,
    NodeGreeted,
    RoundStopped,
    RunRound,
    StopRound,
    ToNode,
    WorkersFailed,
    WorkersSucceeded,
)
from holdfast.core.protocol.model import (
    Assignment,
    Endpoint,
    ExitStatus,
    Failure,
    NodeInfo,
    Term,
)
from holdfast.engine.coordinating import Coordinating
from holdfast.engine.embedded import RecordWriter
from holdfast.engine.engine import Engine
from holdfast.engine.link import NetworkedLink
from holdfast.engine.network import RealExchange
from holdfast.registers.job_record import JobRecord
from holdfast.runtime.loop import Cancellable
from holdfast.transport.auth import OPEN, ConnectionSecurity
from holdfast.transport.client import Client
from holdfast.transport.dialling import Identity
from holdfast.transport.frames import encode
from holdfast.transport.handshake import ClientSide

from .stage import DEADLINE_S, JOB, LOOPBACK, Raw, Stage

HOST = "host"
INSTANCE = 1000
KEPT_S = 3600.0


def config(at_least: int = 2, at_most: int = 4) -> JobConfig:
    return JobConfig(
        JOB,
        Program("script", "train.py"),
        min_nodes=at_least,
        max_nodes=at_most,
        restarts=RestartPolicy(max_restarts=3, backoff_first_s=0.01, backoff_max_s=0.01),
        timeouts=Timeouts(last_call_s=0.0),
    )


class Node:
    """An honest node; the one of the coordinator's own host speaks to it without a socket."""

    def __init__(self, job: Hosted, name: str) -> None:
        self.job, self.name = job, name
        self.info = NodeInfo(name, f"machine-{name}", slots=1)
        self.rounds: list[Assignment] = []
        self.stops: list[StopRound] = []
        self.told: list[ToNode] = []
        self.lost: list[str] = []
        self.tethers: list[socket.socket] = []
        self.beats = 0
        self.client: Client | None = None

    def dial(self, security: ConnectionSecurity) -> None:
        stage = self.job.stage
        client = Client(stage.loop, Identity(JOB, self.name, security), stage.disk, self)
        self.client = client
        stage.closing(client.close)
        client.dial((stage.endpoint,), DEADLINE_S)

    def say(self, message: FromNode) -> None:
        if self.client is None:
            self.job.coordinating.on_message(self.name, message)
        else:
            self.client.send(message)

    def greet(self) -> None:
        self.say(NodeGreeted(self.info, endpoint=self._endpoint(), heartbeat=1))

    def _endpoint(self) -> Endpoint:
        return Endpoint(LOOPBACK, 20000 + len(self.rounds))

    def hear(self, message: ToNode) -> None:
        self.told.append(message)
        if isinstance(message, RunRound):
            self.rounds.append(message.assignment)
        if isinstance(message, StopRound):
            self.stops.append(message)
            self.say(RoundStopped(message.round, (), self._endpoint()))

    def is_answered(self) -> None:
        """The coordinator hears this node, and answers."""
        self.beats += 1
        answer = HeartbeatAnswered(100 + self.beats)
        self.say(Heartbeat(100 + self.beats))
        self.job.stage.until(lambda: answer in self.told)
        assert self.lost == []

    def fail(self) -> None:
        """Its worker fails, of its own."""
        seat = self.rounds[-1]
        rank = seat.workers[0].rank
        status = ExitStatus(code=1)
        failure = Failure(self.name, self.info.host, 0, rank, "default", 7, status, 1.0)
        self.say(WorkersFailed(seat.round, (failure,)))

    # What the connection says.

    def on_connected(self, local_address: str) -> None:
        self.greet()

    def on_line_lost(self, reason: str, permanent: bool) -> None:
        self.lost.append(reason)

    def on_unusable(self, error: UsageError) -> None:
        raise error

    def on_told(self, term: Term, message: ToNode) -> None:
        self.hear(message)

    def on_own_tether(self, tether: int) -> None:
        self.tethers.append(socket.socket(fileno=tether))
        self.job.stage.closing(self.tethers[-1].close)


class AtOnce:
    """A record whose disk answers at once."""

    def __init__(self, record: JobRecord) -> None:
        self._record = record
        self.touch, self.remove = record.touch, record.remove

    def read(self, then: Callable[[Document | None], None]) -> None:
        then(self._record.read(KEPT_S))

    def write(self, document: Document, then: Callable[[str], None]) -> None:
        self._record.write(document)
        then(self._record.problem)


class Hosted:
    """The coordinator of a job, its record, and its nodes."""

    def __init__(
        self,
        stage: Stage,
        folder: Path,
        security: ConnectionSecurity = OPEN,
        settings: JobConfig | None = None,
    ) -> None:
        self.stage, self.security = stage, security
        self.config = settings or config()
        self.said: list[str] = []
        self.record = JobRecord(folder, JOB)
        self.nodes: dict[str, Node] = {HOST: Node(self, HOST)}
        self.beating: Cancellable
        self.clock, self.journal, self.node = stage.loop, self, HOST
        written = self.record.read(KEPT_S)
        beginning = next_life(self.config, written, INSTANCE)
        state = beginning.state(self.config, stage.loop.now())
        self.events: list[CoordinatorEvent] = []
        """What the coordinator took a step for."""
        engine = cast(Engine, self)  # As much of one as the coordinator and its writer use.
        writer = RecordWriter(engine, AtOnce(self.record), written.counter if written else 0)
        self.routes: dict[type, Callable[[Any], object]] = {}
        handlers = NetworkedLink()
        self.server = RealExchange(stage.loop, Identity(JOB, HOST, security), handlers)
        self.coordinating = handlers.coordinating = Coordinating(state, engine, self.server)
        stage.server, stage.spaces = self.server, self.server.keys
        self.server.listen((LOOPBACK, 0))
        for part in (self.server, self.coordinating, writer):
            stage.closing(part.close)
        self.routes[Write] = self.write
        self.routes[Retire] = lambda effect: writer.remove()
        self.writer = writer
        writer.write(state.term, ledger(state, stage.loop.now()), self.coordinating.begin)

    # As the node that the coordinator lives on.

    def write(self, effect: Write) -> None:
        done = partial(self.coordinating.post, Written(effect.version))
        self.writer.write(self.coordinating.state.term, effect.ledger, done)

    def ignore(self, effect: object) -> None: ...
    def say(self, text: str) -> None:
        self.said.append(text)

    def post(self, event: Told) -> None:
        self.nodes[HOST].hear(event.message)

    def taken(self, at: float, liveness: Coordinator) -> None:
        self.events += [taken.event for taken in liveness.taken]
        liveness.taken.clear()

    @property
    def round(self) -> int:
        return self.coordinating.state.group.round_number

    def start(self, *names: str) -> None:
        """The host's own node and these have come: the first round runs on them."""
        self.nodes[HOST].greet()
        for name in names:
            node = self.nodes[name] = Node(self, name)
            node.dial(self.security)
        self.until_running(1)

    def until_running(self, count: int) -> None:
        """Every node runs its `count`-th round."""
        self.stage.until(lambda: all(len(node.rounds) >= count for node in self.nodes.values()))

    def goes_on(self, rounds: int = 1) -> None:
        """Every node is heard and runs the round that it ran, and the job comes to a good end."""
        for node in self.nodes.values():
            node.is_answered()
        assert {len(node.rounds) for node in self.nodes.values()} == {rounds}
        current = self.coordinating.state.group.round
        assert current is not None
        assert current.is_whole
        assert set(current.seats.nodes()) == set(self.nodes)
        self.ends_well()

    def ends_well(self) -> None:
        for node in self.nodes.values():
            node.say(WorkersSucceeded(node.rounds[-1].round))
        self.stage.until(lambda: len(self.ends()) == len(self.nodes))
        assert {end.outcome.verdict for end in self.ends()} == {"succeeded"}

    def ends(self) -> list[CloseJob]:
        """What the nodes were told last, as far as it was the job's end."""
        last = [node.told[-1] for node in self.nodes.values()]
        return [message for message in last if isinstance(message, CloseJob)]

    # Who is admitted, and means ill.

    def admit(self, name: str) -> Raw:
        raw = self.stage.raw()
        side = ClientSide(JOB, name, "control", self.security)
        raw.send(side.opening())
        self.stage.until(lambda: raw.frames or raw.is_ended)
        side.read_challenge(raw.frames[0])
        raw.send(side.prove())
        self.stage.until(lambda: len(raw.frames) > 1 or raw.is_ended)
        return raw

    def attack(self, *words: FromNode, name: str = "mallory") -> Raw:
        """Say all of this as an admitted client, and wait until it was read."""
        raw = self.admit(name)
        for word in words:
            raw.send(encode(word))
        self._until_read(raw)
        return raw

    def _until_read(self, raw: Raw) -> None:
        """Somebody honest is answered after it, on a loop that takes turns."""
        for _ in range(3):
            for node in self.nodes.values():
                node.is_answered()
