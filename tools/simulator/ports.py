"""The ports of a simulated process: what is behind them happens on the virtual timeline.

Rules
1. A port takes nothing from the world but through its process: what comes waits for its turn.
2. What a process does to the world in a turn in whose middle it was paused happens after the pause.
3. A process that leads, or claims to, may be struck where it says, asks or hears something.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING

from tools.simulator.facts import NodeRefused, Recorded
from tools.simulator.lying import LIAR, lies
from tools.simulator.network import ASKED_AGAIN_S, TO_CLIENT, TO_SERVER, SimulatedConnection
from tools.simulator.register import Write

from holdfast.core.node_io import Told
from holdfast.core.protocol.document import Document, decode
from holdfast.core.protocol.messages import FromNode, ToNode
from holdfast.core.protocol.model import Endpoint, Term
from holdfast.engine.ports import Exchange, RoundKeys
from holdfast.registers.register_thread import OnReply, RegisterAnswer, Reply
from holdfast.transport.roster import Roster

if TYPE_CHECKING:
    from tools.simulator.machine import Machine
    from tools.simulator.process import SimulatedProcess

    from holdfast.transport.client import LineHandlers
    from holdfast.transport.server import ExchangeHandlers

DISK_S = 0.004
FORGETTING_S = 0.01
EMBEDDED_HOST = 0
PORT = 1


class SimulatedLine:
    """A process's line to a coordinator."""

    def __init__(self, process: SimulatedProcess, handlers: LineHandlers) -> None:
        self._process, self.handlers = process, handlers
        self.connection: SimulatedConnection | None = None
        self._dials = 0
        self._dialling = 0
        """The number of the attempt under way; 0 where there is none."""
        self._ringing = 0
        """How many hosts that were dialled have not answered yet."""

    def dial(self, endpoints: Sequence[Endpoint], timeout_s: float) -> None:
        self.close()
        process = self._process
        self._dials += 1
        self._dialling, self._ringing = self._dials, len(endpoints)
        process.call_later(timeout_s, self._fail, self._dialling, "no answer")
        for endpoint in endpoints:
            host = process.cluster.host_of(endpoint.address)
            process.when_awake(self._ring, host, self._dialling)

    def send(self, message: FromNode) -> None:
        if self.connection is not None:
            network = self._process.cluster.network
            self._process.when_awake(network.send, self.connection, TO_SERVER, message)

    def close(self) -> None:
        self._dialling = 0
        if self.connection is not None:
            network = self._process.cluster.network
            self._process.when_awake(network.hang_up, self.connection, TO_SERVER)
            self.connection = None

    def _ring(self, host: int, attempt: int, waited_s: float = 0.0) -> None:
        """Ask for a connection; of whom nothing comes back the kernel asks again, ever later."""
        if self._dialling != attempt:
            return
        process, network = self._process, self._process.cluster.network
        there = process.cluster.machines[host]
        here = process.host
        blocked = network.blocked(here, host) or network.blocked(host, here)
        if blocked or not there.up or there.paused:
            again_s = ASKED_AGAIN_S + waited_s
            process.machine.after(again_s, self._ring, host, attempt, waited_s + again_s)
            return
        process.machine.after(2 * network.delay(here, host), self._knock, there, attempt)

    def _in_vain(self, attempt: int, reason: str) -> None:
        """One of those that were dialled cannot be had; the attempt fails with the last."""
        if self._dialling == attempt:
            self._ringing -= 1
            if self._ringing <= 0:
                self._fail(attempt, reason)

    def _fail(self, attempt: int, reason: str) -> None:
        if attempt and self._dialling == attempt:
            self._dialling = 0
            self.handlers.on_line_lost(reason, False)

    def _knock(self, there: Machine, attempt: int) -> None:
        process, server = self._process, there.process
        if not process.alive or self._dialling != attempt:
            return
        if server is None or not server.alive or server.exchange is None:
            process.post(self._in_vain, attempt, f"{there.name} does not coordinate")
        else:
            # Who sleeps answers when it wakes up, if it is still waited for.
            server.post(self._answered, server, attempt)

    def _answered(self, server: SimulatedProcess, attempt: int) -> None:
        """In a turn of the one that was dialled."""
        process, exchange = self._process, server.exchange
        if not process.alive or self._dialling != attempt:
            return
        if exchange is None or exchange.closed_because:
            reason = f"{server.machine.name} does not coordinate"
            process.post(self._in_vain, attempt, reason)
            return
        connection = process.cluster.network.connect(process, server)
        process.connections.append(connection)
        server.connections.append(connection)
        exchange.admit(connection)
        process.post(self._connected, connection, attempt)

    def _connected(self, connection: SimulatedConnection, attempt: int) -> None:
        network = self._process.cluster.network
        if self._dialling != attempt:
            network.hang_up(connection, TO_SERVER)
            return
        self._dialling = 0
        self.connection = connection
        self.handlers.on_connected(self._process.machine.name)
        delay_s = 2 * network.delay(self._process.host, connection.server.host)
        self._process.machine.after(delay_s, self._tie, connection)

    def _tie(self, connection: SimulatedConnection) -> None:
        """The tether follows the connection, if that is still there."""
        process, server = self._process, connection.server
        network = process.cluster.network
        cut = network.blocked(process.host, server.host) or network.blocked(
            server.host, process.host
        )
        if not process.alive or not server.alive or cut or self.connection is not connection:
            return
        connection.tethered = True
        process.post(self.handlers.on_own_tether, connection.number)
        server.tie(connection)

    def take(self, connection: SimulatedConnection, told: Told) -> None:
        if connection is self.connection:
            self.handlers.on_told(told.term, told.message)

    def broken(self, connection: SimulatedConnection, reason: str) -> None:
        if connection is self.connection:
            self.connection = None
            self.handlers.on_line_lost(reason, False)


class SimulatedExchange:
    """A coordinator's end of all connections. Which of them counts is the real roster's to say."""

    keys: RoundKeys | None = None

    def __init__(self, process: SimulatedProcess, handlers: ExchangeHandlers) -> None:
        self._process, self._handlers = process, handlers
        self.closed_because = ""
        self.roster: Roster[SimulatedConnection] = Roster()

    # What the coordinator does.

    def send(self, node: str, term: Term, message: ToNode) -> bool:
        process = self._process
        connection = self.roster.listener(node)
        process.reached_point()
        process.observer.says(message)
        if connection is None:
            return False
        process.when_awake(self._say, connection, Told(message, term))
        return True

    def _say(self, connection: SimulatedConnection, told: Told) -> None:
        self._process.observer.speaks(told.term)
        self._process.cluster.network.send(connection, TO_CLIENT, told)

    def drop(self, node: str) -> None:
        control, tethers = self.roster.drop(node)
        self._close(control, tethers)

    def _close(
        self, control: SimulatedConnection | None, tethers: Collection[SimulatedConnection]
    ) -> None:
        network = self._process.cluster.network
        if control is not None:
            network.hang_up(control, TO_CLIENT)
        for tether in tethers:
            network.reset_tether(tether)

    def refuse(self, node: str, kind: str, reason: str) -> None:
        process = self._process
        if node == LIAR:
            return
        process.cluster.note(NodeRefused(process.cluster.timeline.now, process.host, node, reason))
        control = self.roster.control(node)
        if control is not None:
            process.cluster.network.hang_up(control, TO_CLIENT)
            process.post(self.broken, control)

    def share_tether(self, node: str) -> int | None:
        tether = self.roster.latest_tether(node)
        return tether.number if tether is not None else None

    def dismiss(self) -> None:
        for node in sorted(self.roster.nodes | self.roster.tethered):
            self.drop(node)
        self.roster.clear()

    def close(self) -> None:
        self.closed_because = "it has ended"
        self.dismiss()

    # What comes in.

    def admit(self, connection: SimulatedConnection) -> None:
        network, node = self._process.cluster.network, connection.client.node
        older = self.roster.admit(node, connection)
        if older is not None:
            network.hang_up(older, TO_CLIENT)

    def tie(self, connection: SimulatedConnection) -> None:
        if connection.tethered and not self.closed_because:
            self.roster.tether(connection.client.node, connection)
            self._handlers.on_tether(connection.client.node)

    def frame(self, connection: SimulatedConnection, message: FromNode) -> None:
        node = connection.client.node
        if self.roster.counts(node, connection):
            self.roster.spoke(node)
            self._handlers.on_message(node, message)

    def broken(self, connection: SimulatedConnection) -> None:
        node = connection.client.node
        if self.roster.ended(node, connection):
            self._handlers.on_lost(node, "the connection was closed")

    def tether_ended(self, connection: SimulatedConnection, clean: bool) -> None:
        node = connection.client.node
        is_proof = self.roster.tether_ended(node, connection, clean)
        if is_proof is not None:
            self._handlers.on_tether_ended(node, is_proof)

    def hear_liar(self, variety: int) -> None:
        liveness = self._process.liveness
        if liveness is not None:
            for word in lies(liveness.state, variety):
                self._handlers.on_message(LIAR, word)
            self._handlers.on_lost(LIAR, "enough")


class SimulatedNetwork:
    """How one process reaches others, and they it."""

    def __init__(self, process: SimulatedProcess) -> None:
        self._process = process

    def line(self, handlers: LineHandlers) -> SimulatedLine:
        self._process.line = SimulatedLine(self._process, handlers)
        return self._process.line

    def exchange(self, handlers: ExchangeHandlers) -> SimulatedExchange:
        exchange = SimulatedExchange(self._process, handlers)
        if self._process.cluster.plan.embedded:
            return exchange  # It is reached when the claim serves it.
        self._process.exchange = exchange
        return exchange

    def listen(self, exchange: Exchange) -> Endpoint:
        return Endpoint(self._process.machine.name, PORT)

    def watch_end(self, tether: int, on_gone: Callable[[], None]) -> TetherWatch:
        return TetherWatch(self._process, tether, on_gone)


class TetherWatch:
    """Our end of a tether, watched for the end of everything at the other."""

    def __init__(self, process: SimulatedProcess, tether: int, on_gone: Callable[[], None]) -> None:
        self._process, self._tether = process, tether
        process.watches[tether] = on_gone

    def close(self) -> None:
        self._process.watches.pop(self._tether, None)


class SimulatedClaim:
    """The place of an embedded coordinator: one host has it."""

    def __init__(self, process: SimulatedProcess) -> None:
        self._process = process
        self.endpoint = Endpoint(process.cluster.machines[EMBEDDED_HOST].name, PORT)

    def take(self, on_here: Callable[[], None], on_elsewhere: Callable[[], None]) -> None:
        (on_here if self._process.host == EMBEDDED_HOST else on_elsewhere)()

    def serve(self, exchange: Exchange) -> None:
        assert isinstance(exchange, SimulatedExchange), "an exchange of another world"
        self._process.exchange = exchange

    def close(self) -> None:
        self._process.exchange = None


SLOW_DISK_S = 1.5


class SimulatedRecord:
    """The record of an embedded coordinator on its host's disk, which outlives its process."""

    def __init__(self, process: SimulatedProcess) -> None:
        self._process, self._machine = process, process.machine
        self._busy_until = 0.0

    def read(self, then: Callable[[Document | None], None]) -> None:
        self._machine.after(DISK_S, self._process.post, self._found, then)

    def _found(self, then: Callable[[Document | None], None]) -> None:
        then(self._machine.disk)

    def write(self, document: Document, then: Callable[[str], None]) -> None:
        self._process.when_awake(self._begin, document, then)

    def _begin(self, document: Document, then: Callable[[str], None]) -> None:
        """One write after the other, as in the lane of a real disk."""
        now = self._process.cluster.timeline.now
        took_s = SLOW_DISK_S if self._machine.slow_record else DISK_S
        took_s = max(took_s, self._busy_until - now)
        self._busy_until = now + took_s
        self._machine.after(took_s, self._write, document, then)

    def _write(self, document: Document, then: Callable[[str], None]) -> None:
        if not self._process.alive:
            return  # It was killed before the disk had it.
        cluster, blank = self._process.cluster, self._machine.disk is None
        self._machine.disk = document
        now = cluster.timeline.now
        cluster.note(Recorded(now, self._process.host, document, blank, None, now))
        self._process.post(then, "")

    def touch(self) -> None:
        pass

    def remove(self) -> None:
        self._machine.disk = None


class SimulatedRegister:
    """One process's way to the register that all share."""

    can_forget = True

    def __init__(self, process: SimulatedProcess) -> None:
        self._process, self._register = process, process.cluster.register
        self.host = process.host
        self.token = 0
        """Of the version from which on it wants to be told of changes."""
        self.tells_of_changes = self._register.pushes
        self._sent: dict[str, tuple[float, float, Document | None]] = {}
        """When each document was first sent, on both clocks, and what was known then."""
        self._shown: Document | None = None
        """What the register has shown, of the highest term."""
        self.secure_from = 0.0
        """When the last document that the register took was sent."""

    def read(self, reply: OnReply) -> None:
        self._ask(None, reply)

    def write(
        self, content: bytes, token: int, reply: OnReply, keep_s: float | None = None
    ) -> None:
        document = decode(content)
        process = self._process
        sent_at = process.cluster.timeline.now + process.lag_s
        self._sent.setdefault(document.nonce, (process.reading(), sent_at, self._shown))
        self._ask((content, token), reply)

    def _ask(self, write: Write | None, reply: OnReply) -> None:
        process = self._process
        process.reached_point()
        process.when_awake(self._register.ask, self, write, self._teller(reply))

    def _teller(self, reply: OnReply) -> OnReply:
        return lambda answer: self._process.post(self._take, answer, reply)

    def _take(self, answer: Reply, reply: OnReply) -> None:
        process = self._process
        process.reached_point()
        if process.frozen:
            process.post(self._take, answer, reply)
            return
        if isinstance(answer, RegisterAnswer) and answer.content is not None:
            shown = decode(answer.content)
            if self._shown is None or shown.term >= self._shown.term:
                self._shown = shown
        reply(answer)

    def recorded(self, content: bytes, blank: bool) -> None:
        document = decode(content)
        now = self._process.cluster.timeline.now
        here, sent_at, known = self._sent.pop(document.nonce, (0.0, now, None))
        self.secure_from = max(self.secure_from, here)
        self._process.cluster.note(Recorded(now, self.host, document, blank, known, sent_at))

    def watch(self, token: int, tell: OnReply) -> None:
        self.token = token
        self._register.watch(self, self._teller(tell))

    def stop_watching(self) -> None:
        self._register.watch(self, None)

    def forget_after(self, seconds: float, reply: OnReply) -> None:
        self._process.call_later(FORGETTING_S, reply, RegisterAnswer(None, 0))

    def close(self) -> None:
        self._register.watch(self, None)
        self._register.release(self)
