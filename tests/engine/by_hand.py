"""Ports made by hand, for engines whose world is a test's to command.

All of it is on one clock that only the test moves. What a port has to tell is told from within the
call that asked for it where the world answers `at_once`, which is the hardest case, and in the
clock's next turn else, as real ports do. Processes start and end as they are told.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tools.simulator.timeline import ManualClock

from holdfast.core.coordinator import Beginning, Coordinator, Taken
from holdfast.core.election import ElectionEffect, ElectionEvent, ElectionState
from holdfast.core.node_io import (
    AllGone,
    EndpointReserved,
    EndSpawner,
    KillEverything,
    KillSpawner,
    NodeEffect,
    NodeEvent,
    NodeStarted,
    NodeTimerFired,
    ReserveEndpoint,
    SignalWorkers,
    SpawnerEnded,
    StartWorkers,
    WorkerExited,
    WorkerStarted,
)
from holdfast.core.policy.config import JobConfig, Program, RestartPolicy, Timeouts
from holdfast.core.protocol.document import Document, decode
from holdfast.core.protocol.messages import FromNode, ToNode
from holdfast.core.protocol.model import Endpoint, ExitStatus, Outcome, Term
from holdfast.engine.engine import Engine
from holdfast.engine.ports import Exchange, Ports
from holdfast.registers.register_thread import OnReply, RegisterAnswer
from holdfast.transport.client import LineHandlers
from holdfast.transport.server import ExchangeHandlers

MEETING = Endpoint("meeting", 1)
"""The endpoint of the jobs whose coordinator is embedded."""
FIRST_PORT, FIRST_PID = 29500, 100


def job(nodes: int = 1, least: int | None = None, **settings: Any) -> JobConfig:
    return JobConfig(
        "job",
        Program("script", "train.py"),
        min_nodes=least or nodes,
        max_nodes=nodes,
        restarts=RestartPolicy(max_restarts=3),
        timeouts=Timeouts(last_call_s=0.0),
        **settings,
    )


class World:
    """What the nodes of a test have in common."""

    def __init__(self, *, at_once: bool = False) -> None:
        self.clock = ManualClock()
        self.at_once = at_once
        self.has_tethers = True
        """Whether a tether follows each connection."""
        self.listening: dict[Endpoint, MemoryExchange] = {}
        self.owner = ""
        """Who has the place behind the meeting's endpoint."""
        self.disk = MemoryDisk(self)
        self.register = MemoryRegister(self)
        self.lives = 0

    def tell(self, callback: Callable[..., None], *args: object) -> None:
        if self.at_once:
            callback(*args)
        else:
            self.clock.call_soon(callback, *args)

    def node(self, name: str, config: JobConfig, way: str = "alone") -> Node:
        """One that has not started yet, `alone` or meeting others, `embedded` or `elected`."""
        return Node(self, name, config, way)

    def pass_time(self, seconds: float = 0.0) -> None:
        """Whatever is due until then happens."""
        self.clock.advance(seconds)


class Node:
    """One engine, its processes and its journal, and all that it did, in order."""

    def __init__(self, world: World, name: str, config: JobConfig, way: str) -> None:
        self.world, self.name = world, name
        self.done: list[NodeEffect] = []
        self.order: list[tuple[str, Any]] = []
        """Every step and what was carried out of it."""
        self.fired: list[tuple[float, str]] = []
        """Its timers, and when they ran out."""
        self.beginnings: list[Beginning] = []
        self.coordinated: list[Taken] = []
        self.said: list[str] = []
        self.outcomes: list[Outcome] = []
        self.tethers: list[int] = []
        self.workers: dict[int, int] = {}
        self.round = 0
        self.ignores_signals = False
        world.lives += 1
        self.life = world.lives
        ports = Ports(
            world.clock,
            self,
            self,
            say=self.said.append,
            instance=lambda: self.life,
            finished=self.outcomes.append,
        )
        self.add_ports(ports, way)
        self.engine = Engine(config, name, f"host-{name}", ports)

    def add_ports(self, ports: Ports, way: str) -> None:
        """Those that lead to other nodes."""
        if way != "alone":
            self.network = ports.network = MemoryNetwork(self.world, self)
        if way == "embedded":
            self.claim = ports.claim = MemoryClaim(self.world, self.name)
            ports.record = self.world.disk
        elif way == "elected":
            ports.register = self.register = RegisterAccess(self.world.register)

    def begin(self) -> None:
        self.engine.post(NodeStarted(cold="there is nothing to preload"))

    def start(self) -> Node:
        """Begin, and see what comes of it now."""
        self.begin()
        self.world.pass_time()
        return self

    @property
    def leads(self) -> bool:
        return self.engine.link.coordinating is not None

    def end(self, local_rank: int, code: int) -> None:
        """One of its workers ends by itself."""
        self._ended(local_rank, ExitStatus(code=code))
        self.world.pass_time()

    def succeed(self) -> None:
        for local_rank in list(self.workers):
            self.end(local_rank, 0)

    # As the processes.

    def do(self, effect: NodeEffect) -> None:
        self.done.append(effect)
        self.order.append(("done", effect))
        match effect:
            case ReserveEndpoint():
                self._tell(EndpointReserved(Endpoint("", FIRST_PORT + self.life)))
            case StartWorkers():
                self.round = effect.assignment.round
                for local_rank in effect.local_ranks:
                    self.workers[local_rank] = FIRST_PID + local_rank
                    self._tell(WorkerStarted(self.round, local_rank, FIRST_PID + local_rank))
            case SignalWorkers() if not self.ignores_signals:
                for local_rank in effect.local_ranks:
                    self._ended(local_rank, ExitStatus(signal=effect.signal))
            case KillEverything():
                for local_rank in list(self.workers):
                    self._ended(local_rank, ExitStatus(signal=9))
                self._tell(AllGone(effect.round))
            case EndSpawner() | KillSpawner():
                self._tell(SpawnerEnded())

    def _ended(self, local_rank: int, status: ExitStatus) -> None:
        pid = self.workers.pop(local_rank, None)
        if pid is not None:
            self._tell(WorkerExited(self.round, local_rank, pid, status))

    def _tell(self, event: NodeEvent) -> None:
        self.world.tell(self.engine.post, event)

    def hold_tether(self, tether: int) -> None:
        self.tethers.append(tether)

    def share_tethers(self, tethers: list[int]) -> None: ...

    # As the journal.

    def agent(self, at: float, event: NodeEvent, effects: list[NodeEffect]) -> None:
        self.order.append(("step", (event, effects)))
        if isinstance(event, NodeTimerFired):
            self.fired.append((at, event.name))

    def began(self, at: float, beginning: Beginning) -> None:
        self.beginnings.append(beginning)

    def taken(self, at: float, liveness: Coordinator) -> None:
        self.coordinated += liveness.taken
        liveness.taken.clear()

    def election(
        self,
        at: float,
        before: ElectionState,
        event: ElectionEvent,
        effects: list[ElectionEffect],
    ) -> None: ...


class MemoryNetwork:
    def __init__(self, world: World, node: Node) -> None:
        self._world, self._node = world, node
        self.exchanges: list[MemoryExchange] = []
        self.lines: list[MemoryLine] = []
        self.watches: dict[int, Callable[[], None]] = {}
        """By tether: who is told of the end of its other end."""

    def line(self, handlers: LineHandlers) -> MemoryLine:
        self.lines.append(MemoryLine(self._world, self._node.name, handlers))
        return self.lines[-1]

    def exchange(self, handlers: ExchangeHandlers) -> MemoryExchange:
        self.exchanges.append(MemoryExchange(self._world, handlers))
        return self.exchanges[-1]

    def listen(self, exchange: Exchange) -> Endpoint:
        place = Endpoint(self._node.name, 1)
        assert isinstance(exchange, MemoryExchange)
        self._world.listening[place] = exchange
        return place

    def watch_end(self, tether: int, on_gone: Callable[[], None]) -> Watch:
        self.watches[tether] = on_gone
        return Watch(self, tether)


class Watch:
    def __init__(self, network: MemoryNetwork, tether: int) -> None:
        self._network, self._tether = network, tether

    def close(self) -> None:
        self._network.watches.pop(self._tether, None)


class MemoryLine:
    def __init__(self, world: World, node: str, handlers: LineHandlers) -> None:
        self._world, self.node, self._handlers = world, node, handlers
        self._to: MemoryExchange | None = None
        self._is_open = False
        self.dialled: list[tuple[Endpoint, ...]] = []
        self.tether = 0

    def dial(self, endpoints: Sequence[Endpoint], timeout_s: float) -> None:
        self.close()
        self.dialled.append(tuple(endpoints))
        for endpoint in endpoints:
            found = self._world.listening.get(endpoint)
            if found is not None and not found.closed_because:
                self._to = found
                found.lines[self.node] = self
                self._world.tell(self._connected, found)
                return
        self._world.tell(self._handlers.on_line_lost, "nobody is there", False)

    def _connected(self, exchange: MemoryExchange) -> None:
        if self._to is exchange:
            self._is_open = True
            self._handlers.on_connected("127.0.0.1")
            if self._world.has_tethers:
                self.tether += 1
                self._handlers.on_own_tether(self.tether)
                exchange.handlers.on_tether(self.node)

    def send(self, message: FromNode) -> None:
        if self._to is not None and self._is_open:
            self._world.tell(self._to.receive, self, message)

    def close(self) -> None:
        exchange, self._to, self._is_open = self._to, None, False
        if exchange is not None and exchange.lines.get(self.node) is self:
            del exchange.lines[self.node]
            self._world.tell(exchange.handlers.on_lost, self.node, "it hung up")

    def take(self, exchange: MemoryExchange, term: Term, message: ToNode) -> None:
        if self._to is exchange:
            self._handlers.on_told(term, message)

    def cut(self, exchange: MemoryExchange) -> None:
        if self._to is exchange:
            self._to, self._is_open = None, False
            self._handlers.on_line_lost("the connection was closed", False)


class MemoryExchange:
    def __init__(self, world: World, handlers: ExchangeHandlers) -> None:
        self._world, self.handlers = world, handlers
        self.closed_because = ""
        self.keys = MemoryKeys()
        self.lines: dict[str, MemoryLine] = {}
        self.sent: list[tuple[str, Term, ToNode]] = []
        self.refused: list[tuple[str, str]] = []
        self.is_closed = self.is_mute = False
        """Whether what it sends is lost on its way."""

    def receive(self, line: MemoryLine, message: FromNode) -> None:
        if self.lines.get(line.node) is line:
            self.handlers.on_message(line.node, message)

    def send(self, node: str, term: Term, message: ToNode) -> bool:
        self.sent.append((node, term, message))
        self.keys.seen.append(("told", message))
        line = self.lines.get(node)
        if line is not None and not self.is_mute:
            self._world.tell(line.take, self, term, message)
        return line is not None

    def drop(self, node: str) -> None:
        line = self.lines.pop(node, None)
        if line is not None:
            self._world.tell(line.cut, self)

    def refuse(self, node: str, kind: str, reason: str) -> None:
        self.refused.append((node, kind))
        self.drop(node)

    def share_tether(self, node: str) -> int | None:
        return None

    def dismiss(self) -> None:
        for node in list(self.lines):
            self.drop(node)

    def close(self) -> None:
        self.is_closed, self.closed_because = True, "it has ended"
        self.dismiss()


class MemoryKeys:
    def __init__(self) -> None:
        self.seen: list[tuple[str, Any]] = []
        """What became of the keys, and what was told meanwhile."""

    def open(self, round: int) -> None:
        self.seen.append(("open", round))

    def end(self, round: int) -> None:
        self.seen.append(("end", round))


class MemoryClaim:
    """One node has the place at a time; who comes later finds it taken."""

    endpoint = MEETING

    def __init__(self, world: World, node: str) -> None:
        self._world, self._node = world, node
        self.takes = 0

    def take(self, on_here: Callable[[], None], on_elsewhere: Callable[[], None]) -> None:
        self.takes += 1
        self._world.owner = self._world.owner or self._node
        self._world.tell(on_here if self._world.owner == self._node else on_elsewhere)

    def serve(self, exchange: Exchange) -> None:
        assert isinstance(exchange, MemoryExchange)
        self._world.listening[MEETING] = exchange

    def close(self) -> None:
        if self._world.owner == self._node:
            self._world.owner = ""
            self._world.listening.pop(MEETING, None)


class MemoryDisk:
    """The record of the meeting's host, whichever node that is."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.document: Document | None = None
        self.problem = ""
        self.waits = False
        """It answers nothing until `answer`."""
        self._unanswered: list[Callable[[], None]] = []

    def _reply(self, answer: Callable[[], None]) -> None:
        if self.waits:
            self._unanswered.append(answer)
        else:
            self._world.tell(answer)

    def answer(self) -> None:
        self.waits = False
        unanswered, self._unanswered = self._unanswered, []
        for reply in unanswered:
            reply()
        self._world.pass_time()

    def read(self, then: Callable[[Document | None], None]) -> None:
        self._reply(lambda: then(self.document))

    def write(self, document: Document, then: Callable[[str], None]) -> None:
        def done() -> None:
            if not self.problem:
                self.document = document
            then(self.problem)

        self._reply(done)

    def touch(self) -> None: ...
    def remove(self) -> None:
        self.document = None


class MemoryRegister:
    """What all share of a register."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.content: bytes | None = None
        self.token = 0
        self.is_silent = False
        self.accesses: list[RegisterAccess] = []

    @property
    def document(self) -> Document | None:
        return decode(self.content) if self.content else None

    def answer(self, has_set: bool = False) -> RegisterAnswer:
        return RegisterAnswer(self.content, self.token, has_set)


class RegisterAccess:
    """One node's way to it."""

    tells_of_changes = True
    can_forget = True

    def __init__(self, register: MemoryRegister) -> None:
        self._register = register
        self._watcher: OnReply | None = None
        self.is_closed = False
        register.accesses.append(self)

    def _reply(self, reply: OnReply, answer: RegisterAnswer) -> None:
        if not self._register.is_silent:
            self._register.world.tell(reply, answer)

    def read(self, reply: OnReply) -> None:
        self._reply(reply, self._register.answer())

    def write(
        self, content: bytes, token: int, reply: OnReply, keep_s: float | None = None
    ) -> None:
        register = self._register
        has_set = not register.is_silent and token == register.token
        if has_set:
            register.content, register.token = content, token + 1
        self._reply(reply, register.answer(has_set))
        for access in register.accesses if has_set else ():
            if access is not self and access._watcher is not None:
                self._reply(access._watcher, register.answer())

    def watch(self, token: int, tell: OnReply) -> None:
        self._watcher = tell
        if token != self._register.token:
            self._reply(tell, self._register.answer())

    def stop_watching(self) -> None:
        self._watcher = None

    def forget_after(self, seconds: float, reply: OnReply) -> None:
        self._register.content = None
        self._reply(reply, self._register.answer())

    def close(self) -> None:
        self._watcher, self.is_closed = None, True
