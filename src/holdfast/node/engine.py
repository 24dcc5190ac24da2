"""The engine: the machines of one node, driven over its ports.

    event ─▶ inbox ─▶ core.node.step ─▶ effects ─┬─▶ place: to the coordinator, here or elsewhere
                                                 ├─▶ processes: workers and all that is theirs
                                                 └─▶ timers, words, the end

Requests of outsiders go past the machines, for they decide nothing (`node.requests`).

The coordinator is behind the node's *place* (`Alone`, `Embedded`, `Elected`): how it is found, and
that it may be this very node. What it says arrives in the same inbox as everything else.

Nothing is decided here. What the world is made of, is behind the ports (`node.ports`).
"""

from __future__ import annotations

from typing import Protocol

from holdfast.core import node as node_machine
from holdfast.core.features.node import new_node
from holdfast.core.node_io import (
    CoordinatorLost,
    CoordinatorReached,
    Dial,
    Finish,
    HangUp,
    KnowEnded,
    NodeEffect,
    NodeEvent,
    NodeTimerFired,
    Report,
    Say,
    Told,
    WakeNode,
)
from holdfast.core.policy.config import JobConfig
from holdfast.core.protocol.messages import FromNode, OfRequests
from holdfast.core.protocol.model import Endpoint, Outcome
from holdfast.node.alone import Alone
from holdfast.node.coordinating import Coordinating
from holdfast.node.ports import JournalPort, Ports
from holdfast.node.requests import Requests
from holdfast.runtime.loop import Clock, Inbox
from holdfast.runtime.timers import Timers


class CoordinatorLink(Protocol):
    """Where the coordinator is, as one node sees it."""

    coordinating: Coordinating | None
    """The coordinator, while it is this node."""

    @property
    def store_address(self) -> Endpoint | None:
        """Where the coordinator's store is found from here."""
        ...

    @property
    def is_needed(self) -> bool:
        """Whether other nodes still need something from here, though this one is done."""
        ...

    def begin(self) -> None:
        """Do what is to be done before anybody dials; what comes of it may be posted at once."""
        ...

    def dial(self) -> None:
        """Find the coordinator: `CoordinatorReached` follows, or `CoordinatorLost`."""
        ...

    def hang_up(self) -> None: ...
    def send(self, message: FromNode) -> None: ...
    def nodes_ended(self, nodes: tuple[str, ...]) -> None:
        """These have ended, by proof of this machine: one of them may have been the coordinator."""
        ...

    def leave(self) -> None:
        """The node is done: hand over to others what they need, while `is_needed`."""
        ...

    def close(self) -> None: ...


class Engine:
    """One node of one job."""

    def __init__(
        self,
        config: JobConfig,
        node: str,
        host: str,
        ports: Ports,
    ) -> None:
        self.config, self.node, self.ports = config, node, ports
        self.clock: Clock = ports.clock
        self.journal: JournalPort = ports.journal
        self.state = new_node(config, node, host)
        self.outcome: Outcome | None = None
        self._inbox: Inbox[NodeEvent] = Inbox(self._take)
        self._timers = Timers(ports.clock, lambda name: self.post(NodeTimerFired(name)))
        self.requests = Requests(ports, self._send)
        self.link: CoordinatorLink = _place(self)
        self.link.begin()

    @property
    def is_needed(self) -> bool:
        """Whether other nodes still need this one, though it has finished."""
        return self.link.is_needed

    def say(self, text: str) -> None:
        self.ports.say(text)

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

    def _send(self, message: FromNode) -> None:
        self.link.send(message)

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
            self._carry_out(effect)

    def _carry_out(self, effect: NodeEffect) -> None:
        match effect:
            case Report():
                self.link.send(effect.message)
            case WakeNode():
                self._timers.set(effect.name, effect.after_s)
            case Dial():
                self.link.dial()
            case KnowEnded():
                self.link.nodes_ended(effect.nodes)
            case HangUp():
                self.link.hang_up()
            case Say():
                self.say(effect.text)
            case Finish():
                self.outcome = effect.outcome
                self.ports.finished(effect.outcome)
            case _:
                self.ports.processes.do(effect)


def _place(engine: Engine) -> CoordinatorLink:
    network, ports = engine.ports.network, engine.ports
    if network is None:
        return Alone(engine)
    if ports.register is not None:
        from holdfast.node.elected import Elected

        return Elected(engine, network, ports.register)
    from holdfast.node.embedded import Embedded

    assert ports.claim is not None, "nobody could find the coordinator"
    return Embedded(engine, network, ports.claim)
