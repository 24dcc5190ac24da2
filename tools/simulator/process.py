"""The agent process on a simulated host: the very engine that ships, with simulated ports.

Rules
1. The engine of a host sees that host's clock and nothing else.
2. It gets its turns one after the other, and none while it is paused (`turns`).
3. A process ends when its node is done and nobody needs it any more, as that of `holdfast run`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tools.simulator.facts import AgentBegan, AgentDied, AgentFinished, LeaderEnded
from tools.simulator.network import (
    CLIENT_TETHER,
    SERVER_TETHER,
    TO_CLIENT,
    TO_SERVER,
    SimulatedConnection,
)
from tools.simulator.observing import Observer
from tools.simulator.ports import (
    SimulatedClaim,
    SimulatedExchange,
    SimulatedLine,
    SimulatedNetwork,
    SimulatedRecord,
    SimulatedRegister,
)
from tools.simulator.spawner import SimulatedSpawner
from tools.simulator.turns import Turns

from holdfast.core.coordinator import Coordinator
from holdfast.core.election import ElectionState
from holdfast.core.node import NodeState, has_succeeded
from holdfast.core.node_io import (
    ClosingAsked,
    NodeEvent,
    NodeStarted,
    Released,
    SignalReceived,
    SpawnerReady,
)
from holdfast.core.protocol.model import Outcome
from holdfast.engine.elected import Elected
from holdfast.engine.engine import Engine
from holdfast.engine.ports import Ports

if TYPE_CHECKING:
    from tools.simulator.machine import Machine

    from holdfast.observe.journal import Journal

FIRST_INSTANCE = 1


class SimulatedProcess(Turns):
    """One life of an agent, with the coordinator in it where it leads."""

    def __init__(self, machine: Machine, node: str) -> None:
        super().__init__(machine)
        self.node = node
        self.spawner = SimulatedSpawner(self)
        self.observer = Observer(self, self._journal())
        self.line: SimulatedLine | None = None
        self.exchange: SimulatedExchange | None = None
        self.register: SimulatedRegister | None = None
        self.connections: list[SimulatedConnection] = []
        self.watches: dict[int, Callable[[], None]] = {}
        self.engine: Engine | None = None
        self.led = False
        """Whether it carried the coordinator when it died."""

    def _journal(self) -> Journal | None:
        """As that of a real node, where whoever runs the simulation wants journals."""
        folder, config = self.cluster.journals, self.machine.config
        if folder is None:
            return None
        from holdfast.observe.journal import SCHEMA, ClockPair, Journal, JournalHeader

        def clocks() -> ClockPair:
            return ClockPair(self.machine.clock.now(), self.cluster.timeline.now)

        name, job = self.machine.name, config.run_id
        of = JournalHeader(SCHEMA, job, self.node, name, "", config, clocks())
        return Journal(folder / f"{self.node}.jsonl", of, clocks=clocks)

    def begin(self) -> None:
        self.cluster.note(AgentBegan(self.cluster.timeline.now, self.host, self.node))
        self.cluster.tell_story(self.machine, f"the agent starts, as node {self.node}")
        self.post(self._begin)

    def _begin(self) -> None:
        self.engine = Engine(self.machine.config, self.node, self.machine.name, self._ports())
        warm = self.machine.plan.warm
        steps, cold = (("import torch",), "") if warm else ((), "--no-warm")
        self.engine.post(NodeStarted(steps, cold, locks=True))
        self.engine.post(self.spawner.notes.make())
        self.engine.post(SpawnerReady(self.machine.pids, True, True))

    def _ports(self) -> Ports:
        embedded = self.cluster.plan.embedded
        if not embedded:
            self.register = SimulatedRegister(self)
        return Ports(
            clock=self,
            processes=self.spawner,
            journal=self.observer,
            say=self._say,
            # A later one is larger, as with a calendar. Embedded and without its record, it has
            # the very term of its first life: the hardest case.
            instance=lambda: FIRST_INSTANCE + (0 if embedded else self._microseconds()),
            finished=self._finished,
            network=SimulatedNetwork(self),
            register=self.register,
            claim=SimulatedClaim(self) if embedded else None,
            record=SimulatedRecord(self) if embedded else None,
        )

    def _microseconds(self) -> int:
        return int(self.cluster.timeline.now * 1e6)

    def _say(self, text: str) -> None:
        self.cluster.tell_story(self.machine, text)

    # What others ask of it.

    @property
    def state(self) -> NodeState:
        assert self.engine is not None, "it has not begun"
        return self.engine.state

    @property
    def liveness(self) -> Coordinator | None:
        """The coordinator's, where this process is it."""
        coordinating = self.engine.link.coordinating if self.engine is not None else None
        return coordinating.liveness if coordinating is not None else None

    @property
    def election(self) -> ElectionState | None:
        place = self.engine.link if self.engine is not None else None
        return place.election if isinstance(place, Elected) else None

    def reached_point(self) -> None:
        """Where a coordinator, or who wants to be one, may be struck."""
        election = self.election
        if self.liveness is None and (election is None or election.pending is None):
            return
        was_frozen = self.frozen
        lasts_s = self.cluster.reached_point(self)
        if self.frozen and not was_frozen:
            self.falls_asleep_s += lasts_s

    def pause_mid_word(self) -> float:
        return self.cluster.pause_mid_word(self) if self.liveness is not None else 0.0

    def host_is_up(self) -> bool:
        return self.machine.up

    def post_agent(self, event: NodeEvent) -> None:
        self.post(self.take, event)

    def take(self, event: NodeEvent) -> None:
        if self.engine is not None:
            self.engine.post(event)

    def signal(self, number: int) -> None:
        self.post_agent(SignalReceived(number))

    def ask_for_closing(self) -> None:
        self.post_agent(ClosingAsked(Outcome("failed", "no further round is wanted", 1)))

    def release_if_done(self) -> bool:
        """Have the node go, if its workers have succeeded; whether they have."""
        if self.engine is None or not has_succeeded(self.engine.state):
            return False
        self.ask_for_closing()
        self.post_agent(Released())
        return True

    def hear_liar(self, variety: int) -> None:
        if self.exchange is not None:
            self.exchange.hear_liar(variety)

    # As a party of the network.

    def received(self, connection: SimulatedConnection, lane: int, payload: Any) -> None:
        if lane == TO_CLIENT:
            if self.line is not None:
                self.post(self.line.take, connection, payload)
        elif lane == SERVER_TETHER:
            self.post(self._far_end_gone, connection.number)
        elif self.exchange is not None:
            if lane == TO_SERVER:
                self.post(self.exchange.frame, connection, payload)
            else:
                self.post(self.exchange.tether_ended, connection, True)

    def _far_end_gone(self, tether: int) -> None:
        on_gone = self.watches.pop(tether, None)
        if on_gone is not None:
            on_gone()

    def broken(self, connection: SimulatedConnection, reason: str) -> None:
        if connection.client is self:
            if self.line is not None:
                self.post(self.line.broken, connection, reason)
        elif self.exchange is not None:
            self.post(self.exchange.broken, connection)

    def tie(self, connection: SimulatedConnection) -> None:
        if self.exchange is not None:
            self.post(self.exchange.tie, connection)

    def tether_reset(self, connection: SimulatedConnection) -> None:
        if self.exchange is not None:
            self.post(self.exchange.tether_ended, connection, False)

    # The end.

    def _finished(self, outcome: Outcome) -> None:
        closed = self.cluster.is_outcome_of_the_job(outcome)
        now = self.cluster.timeline.now
        self.cluster.note(AgentFinished(now, self.host, self.node, outcome, closed))
        self.cluster.tell_story(self.machine, f"the agent finishes: {outcome.verdict}")
        self.post(self._leave)

    def _leave(self) -> None:
        if self.engine is not None:
            self.engine.leave()

    def after_turn(self) -> None:
        """As the agent's loop does: look whether anybody needs this process any more."""
        engine = self.engine
        if engine is not None and engine.outcome is not None and not engine.is_needed:
            if self._queue:
                return  # What the node has to hand over may be among it.
            engine.close()
            self.die()

    def die(self) -> None:
        """The agent's process ends; its kernel closes what it held."""
        if not self.alive:
            return
        self._ceased()
        network = self.cluster.network
        for connection in self.connections:
            mine = connection.client is self
            network.process_ended(connection, TO_SERVER if mine else TO_CLIENT)
            if not mine and connection.number not in self.spawner.shared:
                network.tether_ended(connection, SERVER_TETHER)
        self.spawner.agent_died()
        self.part_ended()

    def _ceased(self) -> None:
        self.alive = False
        self.cluster.note(AgentDied(self.cluster.timeline.now, self.host, self.node))
        self.cluster.tell_story(self.machine, f"the agent of {self.node} is no more")
        self.led = self.liveness is not None
        self._queue.clear()
        if self.machine.process is self:
            self.machine.older.append(self)
            self.machine.process = None

    def vanish(self) -> None:
        """The host has lost its power."""
        if self.alive:
            self._ceased()
        self._note_end(silent=True)
        self.connections.clear()
        self.spawner.vanish("killed")

    @property
    def is_left(self) -> bool:
        """Whether anything of the node is."""
        return self.alive or self.spawner.alive or self.spawner.orphan is not None

    def part_ended(self) -> None:
        """FIN on the tethers, once nothing of the node is left."""
        if self.is_left:
            return
        self._note_end(silent=False)
        if self in self.machine.older:
            self.machine.older.remove(self)
        network = self.cluster.network
        for connection in self.connections:
            if connection.client is self:
                if connection.number in self.spawner.tethers:
                    network.tether_ended(connection, CLIENT_TETHER)
            elif connection.number in self.spawner.shared:
                network.tether_ended(connection, SERVER_TETHER)
        self.connections.clear()
        self.machine.freed()

    def let_go_of_tether(self, number: int) -> None:
        """Nobody on this node holds that one any more."""
        for connection in self.connections:
            if connection.number == number:
                self.cluster.network.tether_ended(connection, CLIENT_TETHER)

    def _note_end(self, *, silent: bool) -> None:
        if self.led:
            self.led = False
            now = self.cluster.timeline.now
            self.cluster.note(LeaderEnded(now, self.host, self.node, silent))
