"""The agent process on a simulated host: the shell around the core.

Rules
1. The core of a host sees that host's clock and nothing else.
2. It gets its turns one after the other, and none while it is paused (`turns`).
3. A process that hosts the coordinator ends when both its agent and its coordinator are done.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from holdfast.core import agent
from holdfast.core.agent_io import (
    AgentEffect,
    AgentStarted,
    AgentTimerFired,
    ClosingAsked,
    CoordinatorLost,
    CoordinatorReached,
    Dial,
    EndpointReserved,
    Finish,
    HangUp,
    Released,
    Remember,
    Report,
    ReserveEndpoint,
    Say,
    SignalReceived,
    SpawnerReady,
    Told,
    WakeAgent,
)
from holdfast.core.agent_state import AgentState, has_succeeded
from holdfast.core.messages import (
    CloseJob,
    Heartbeat,
    HeartbeatAnswered,
    NodeGreeted,
    RunRound,
    StopRound,
    Welcomed,
)
from holdfast.core.model import Endpoint, Outcome, Tenure
from holdfast.testing.facts import (
    AgentBegan,
    AgentDied,
    AgentFinished,
    Delivered,
    LeaderEnded,
    LeaseRenewed,
)
from holdfast.testing.leading import Leading
from holdfast.testing.network import (
    CLIENT_TETHER,
    CONNECT_TIMEOUT_S,
    SERVER_TETHER,
    TO_CLIENT,
    TO_SERVER,
    Connection,
)
from holdfast.testing.spawner import Spawner
from holdfast.testing.turns import Turns

if TYPE_CHECKING:
    from holdfast.testing.machine import Machine

DIAL_TIMEOUT_S = 4.0
RESIGNING_S = 0.1


class Process(Turns):
    """One life of an agent, with the coordinator in it where it leads."""

    def __init__(self, machine: Machine, node: str) -> None:
        super().__init__(machine)
        self.node = node
        self.state = AgentState(machine.config, node, machine.name)
        self.spawner = Spawner(self)
        self.leading = Leading(self)
        self.connection: Connection | None = None
        self.hosting = False
        self.dialling = 0
        """The number of the attempt under way; 0 where there is none."""
        self.dials = 0
        self._ringing = 0
        """How many hosts that were dialled have not answered yet."""
        self.connections: list[Connection] = []
        self.outcome: Outcome | None = None
        self.heard = Tenure()
        self.led = False
        """Whether it carried the coordinator when it died."""
        self._sent: dict[int, float] = {}
        self._lease_from = 0.0

    def begin(self) -> None:
        self.cluster.note(AgentBegan(self.cluster.timeline.now, self.host, self.node))
        self.cluster.tell_story(self.machine, f"the agent starts, as node {self.node}")
        warm = self.machine.plan.warm
        started = AgentStarted(("import torch",)) if warm else AgentStarted(cold="--no-warm")
        self.post(self.leading.begin)
        self.post_agent(started)
        self.post_agent(SpawnerReady(self.machine.pids, True, True))

    def host_is_up(self) -> bool:
        return self.machine.up

    # The agent.

    def post_agent(self, event: Any) -> None:
        self.post(self._agent_takes, event)

    def _agent_takes(self, event: Any) -> None:
        effects = agent.step(self.state, event, self.machine.clock.now())
        if isinstance(event, Told):
            self._note_told(event, bool(effects))
        for effect in effects:
            self._carry_out(effect)
        if any(isinstance(effect, ReserveEndpoint) for effect in effects):
            self.machine.ports += 1
            self._agent_takes(EndpointReserved(Endpoint(self.machine.name, self.machine.ports)))

    def _note_told(self, event: Told, obeyed: bool) -> None:
        message, now = event.message, self.cluster.timeline.now
        current = event.tenure >= self.heard
        self.heard = max(self.heard, event.tenure)
        if isinstance(message, HeartbeatAnswered):
            if current:
                self._renewed(message.number)
            elif obeyed:
                self.cluster.note(Delivered(now, self.node, event.tenure, message, True))
        elif isinstance(message, RunRound | StopRound | CloseJob):
            self.cluster.note(Delivered(now, self.node, event.tenure, message, obeyed))

    def _renewed(self, number: int) -> None:
        """The lease as it must be: from when the heartbeat was handed to the network."""
        sent_at = self._sent.pop(number, None)
        if sent_at is None or sent_at <= self._lease_from:
            return
        self._lease_from = sent_at
        until = self.machine.clock.true_time(sent_at + self.machine.config.leases.lease_s)
        self.cluster.note(LeaseRenewed(self.cluster.timeline.now, self.node, until))

    def _carry_out(self, effect: AgentEffect) -> None:
        match effect:
            case Report():
                self._report(effect.message)
            case WakeAgent():
                self.set_timer(("agent", effect.name), effect.after_s, self._agent_timer)
            case ReserveEndpoint() | Remember():
                pass
            case Say():
                self.cluster.tell_story(self.machine, f"agent: {effect.text}")
            case Finish():
                self._finish(effect.outcome)
            case Dial():
                self._dial()
            case HangUp():
                self._hang_up()
            case _:
                self.machine.after(0.0, self.spawner.do, effect)

    def _agent_timer(self, name: str) -> None:
        self._agent_takes(AgentTimerFired(name))

    def signal(self, number: int) -> None:
        self.post_agent(SignalReceived(number))

    def ask_for_closing(self) -> None:
        self.post_agent(ClosingAsked(Outcome("failed", "no further round is wanted", 1)))

    def release_if_done(self) -> bool:
        """Have the node go, if its workers have succeeded; whether they have."""
        if not has_succeeded(self.state):
            return False
        self.ask_for_closing()
        self.post_agent(Released())
        return True

    # The way to the coordinator.

    def _report(self, message: Any) -> None:
        if isinstance(message, Heartbeat):
            self._sent[message.number] = self.machine.clock.now()
        elif isinstance(message, NodeGreeted):
            self._sent[message.heartbeat] = self.machine.clock.now()
        if self.hosting:
            self.post(self.leading.hear_own, message)
        elif self.connection is not None:
            self.cluster.network.send(self.connection, TO_SERVER, message)

    def _dial(self) -> None:
        self.dials += 1
        self.dialling = self.dials
        self.leading.find_coordinator()
        self.machine.after(DIAL_TIMEOUT_S, self.post, self.dial_failed, self.dialling, "no answer")

    def dial_failed(self, attempt: int, reason: str) -> None:
        if attempt and self.dialling == attempt:
            self.dialling = 0
            self._agent_takes(CoordinatorLost(reason))

    def found_nobody(self, reason: str, permanent: bool) -> None:
        if self.dialling:
            self.dialling = 0
            self._agent_takes(CoordinatorLost(reason, permanent))

    def call(self, hosts: list[int]) -> None:
        """Dial those hosts, all at once, in place of whomever we have or dial."""
        if not self.dialling:
            self._hang_up()
            self.dials += 1
            self.dialling = self.dials
        self._ringing = len(hosts)
        for host in hosts:
            self._ring(host)

    def _ring(self, host: int) -> None:
        network, attempt = self.cluster.network, self.dialling
        if not attempt:
            return
        there = self.cluster.machines[host]
        blocked = network.blocked(self.host, host) or network.blocked(host, self.host)
        if blocked or not there.up or there.paused:
            late = (CONNECT_TIMEOUT_S, self.post, self._in_vain, attempt, "it does not answer")
            self.machine.after(*late)
            return
        self.machine.after(2 * network.delay(self.host, host), self._knock, there, attempt)

    def _in_vain(self, attempt: int, reason: str) -> None:
        """One of those that were dialled cannot be had; the attempt fails with the last."""
        if self.dialling != attempt:
            return
        self._ringing -= 1
        if self._ringing <= 0:
            self.dial_failed(attempt, reason)

    def _knock(self, there: Machine, attempt: int) -> None:
        server = there.process
        if not self.alive or self.dialling != attempt:
            return
        if server is None or not server.alive or not server.leading.accepts:
            self.post(self._in_vain, attempt, f"{there.name} does not coordinate")
            return
        connection = Connection(self, server)
        self.connections.append(connection)
        server.connections.append(connection)
        self.post(self._connected, connection, attempt)

    def _connected(self, connection: Connection, attempt: int) -> None:
        if self.dialling != attempt:
            self.cluster.network.hang_up(connection, TO_SERVER)
            return
        self.dialling = 0
        self.connection = connection
        self._agent_takes(CoordinatorReached())

    def reached_own(self) -> None:
        """The coordinator is in this very process."""
        if self.connection is not None:
            self._hang_up()
        self.dialling = 0
        self.hosting = True
        self._agent_takes(CoordinatorReached(hosting=True))

    def lost_own(self, reason: str) -> None:
        if self.hosting:
            self.hosting = False
            self._agent_takes(CoordinatorLost(reason))

    def _hang_up(self) -> None:
        if self.connection is not None:
            self.cluster.network.hang_up(self.connection, TO_SERVER)
            self.connection = None

    # As a party of the network.

    def received(self, connection: Connection, lane: int, payload: Any) -> None:
        if lane == TO_CLIENT:
            self.post(self._frame, connection, payload)
        elif lane == TO_SERVER:
            self.post(self.leading.frame, connection, payload)
        elif lane == CLIENT_TETHER:
            self.post(self.leading.tether_ended, connection)
        elif lane == SERVER_TETHER:
            self.post(self.leading.leader_gone, connection)

    def _frame(self, connection: Connection, told: Told) -> None:
        if connection is not self.connection:
            return
        self._agent_takes(told)
        if isinstance(told.message, Welcomed) and told.tenure >= self.heard:
            self.leading.pointed(connection, told.message, told.tenure)

    def broken(self, connection: Connection, reason: str) -> None:
        if connection.client is self:
            self.post(self._client_broken, connection, reason)
        else:
            self.post(self.leading.disconnected, connection)

    def _client_broken(self, connection: Connection, reason: str) -> None:
        if connection is self.connection:
            self.connection = None
            self._agent_takes(CoordinatorLost(reason))

    # The end.

    def _finish(self, outcome: Outcome) -> None:
        self.outcome = outcome
        closed = self.cluster.is_outcome_of_the_job(outcome)
        now = self.cluster.timeline.now
        self.cluster.note(AgentFinished(now, self.host, self.node, outcome, closed))
        self.cluster.tell_story(self.machine, f"the agent finishes: {outcome.verdict}")
        self.end_if_done()

    def end_if_done(self) -> None:
        if self.outcome is None:
            return
        if self.leading.busy and self.cluster.outcome is None:
            # A node that leaves takes its coordinator along; another one may follow it.
            self.leading.resign()
            self.machine.after(RESIGNING_S, self.die)
        elif not self.leading.busy:
            self.leading.let_go()
            self.die()

    def die(self) -> None:
        """The agent's process ends; its kernel closes what it held."""
        if not self.alive:
            return
        self._ceased()
        for connection in self.connections:
            lane = TO_SERVER if connection.client is self else TO_CLIENT
            self.cluster.network.process_ended(connection, lane)
        self.spawner.agent_died()
        self.part_ended()

    def _ceased(self) -> None:
        self.alive = False
        self.cluster.note(AgentDied(self.cluster.timeline.now, self.host, self.node))
        self.cluster.tell_story(self.machine, f"the agent of {self.node} is no more")
        self.led = self.leading.busy
        self.leading.close()
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
        self.spawner.die("killed")

    def part_ended(self) -> None:
        """FIN on the tether, once nothing of the node is left."""
        if self.alive or self.spawner.alive:
            return
        self._note_end(silent=False)
        if self in self.machine.older:
            self.machine.older.remove(self)
        for connection in self.connections:
            mine = connection.client is self
            self.cluster.network.node_gone(connection, CLIENT_TETHER if mine else SERVER_TETHER)
        self.connections.clear()

    def _note_end(self, *, silent: bool) -> None:
        if self.led:
            self.led = False
            now = self.cluster.timeline.now
            self.cluster.note(LeaderEnded(now, self.host, self.node, silent))
