"""The engine: the machines of one node, driven over its ports.

    inbox ─▶ core.node.step ──────────▶ effects ─┐
    inbox ─▶ core.coordinator ───▶ effects ─┼─▶ routes ─┬─▶ the inbox of another machine
    inbox ─▶ core.election.step ──────▶ effects ─┘           ├─▶ lines, timers, words, the register
                                                             └─▶ processes: all else

Each machine has an inbox: what comes while a step is carried out waits for its turn. The effects of
a step go by one table, from an effect's type to whoever takes it. One that is an event of another
machine (`core.border`) goes straight into that one's inbox. The coordinator and the election are
behind the node's *link* (`Alone`, `Embedded`, `Elected`), and may be on another node.

Requests of outsiders go past the machines, for they decide nothing (`engine.requests`).

Nothing is decided here. What the world is made of, is behind the ports (`engine.ports`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from holdfast.core import node as node_machine
from holdfast.core.border import CoordinatorLost, Say, Told
from holdfast.core.features.of_node import new_node
from holdfast.core.node import NodeState
from holdfast.core.node_io import (
    CoordinatorReached,
    Finish,
    NodeEvent,
    NodeTimerFired,
    Report,
    WakeNode,
)
from holdfast.core.policy.config import JobConfig
from holdfast.core.protocol.messages import OfRequests
from holdfast.core.protocol.model import Outcome
from holdfast.engine.link import Alone, CoordinatorLink
from holdfast.engine.ports import JournalPort, Ports
from holdfast.engine.requests import Requests
from holdfast.runtime.loop import Clock, Inbox, Timers

Take = Callable[[Any], object]


class Engine:
    """One node of one job."""

    def __init__(self, config: JobConfig, node: str, host: str, ports: Ports) -> None:
        self.config, self.node, self.ports = config, node, ports
        self.clock: Clock = ports.clock
        self.journal: JournalPort = ports.journal
        self.say: Callable[[str], None] = ports.say
        self.state: NodeState = new_node(config, node, host)
        self.outcome: Outcome | None = None
        self._inbox: Inbox[NodeEvent] = Inbox(self._take)
        timers = self._timers = Timers(ports.clock, lambda name: self.post(NodeTimerFired(name)))
        self.routes: dict[type, Take] = {
            WakeNode: lambda effect: timers.set(effect.name, effect.after_s),
            Say: lambda effect: ports.say(effect.text),
            Finish: self._finish,
            **dict.fromkeys([Told, CoordinatorLost], self.post),
        }
        """Who takes each effect, of all machines here. Of the node's, the processes take the rest.

        The link adds what leads to the coordinator, and the coordinator its own while it is here.
        """
        self.link: CoordinatorLink = _link(self)
        self.requests = Requests(ports, lambda message: self.link.report(Report(message)))
        self.link.begin()

    @property
    def is_needed(self) -> bool:
        """Whether other nodes still need this one, though it has finished."""
        return self.link.is_needed

    def post(self, event: NodeEvent) -> None:
        """Take an event, after those that came before it. A request decides nothing, and waits for
        nobody."""
        if isinstance(event, Told):
            if isinstance(event.message, OfRequests):
                self.requests.told(event.message)
                return
        elif isinstance(event, CoordinatorReached):
            self.requests.reached()
        elif isinstance(event, CoordinatorLost):
            self.requests.lost(event.reason)
        self._inbox.put(event)

    def ignore(self, effect: object) -> None:
        """Take what is of no use here."""

    def leave(self) -> None:
        """The node has finished: whatever others need of it is handed over."""
        self.link.leave()

    def close(self) -> None:
        """Let go of everything."""
        self._timers.cancel()
        self.requests.close()
        self.link.close()

    def _take(self, event: NodeEvent) -> None:
        now = self.clock.now()
        effects = node_machine.step(self.state, event, now)
        self.journal.agent(now, event, effects)
        for effect in effects:
            self.routes.get(type(effect), self.ports.processes.do)(effect)

    def _finish(self, effect: Finish) -> None:
        self.outcome = effect.outcome
        self.ports.finished(effect.outcome)


def _link(engine: Engine) -> CoordinatorLink:
    network, ports = engine.ports.network, engine.ports
    if network is None:
        return Alone(engine)
    if ports.register is not None:
        from holdfast.engine.elected import Elected

        return Elected(engine, network, ports.register)
    from holdfast.engine.embedded import Embedded

    assert ports.claim is not None, "nobody could find the coordinator"
    return Embedded(engine, network, ports.claim)
