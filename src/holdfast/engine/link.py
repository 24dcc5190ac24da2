"""A node's link to its coordinator, which may be in this very process.

What the node and the coordinator ask of it comes over the engine's routes; what the coordinator
says, and that it is reached or lost, arrives in the engine's inbox.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from holdfast.core.border import (
    Depose,
    Dial,
    KnowEnded,
    Resign,
    Retire,
    Write,
    Written,
)
from holdfast.core.coordinator import begin
from holdfast.core.node_io import CoordinatorReached, HangUp, Report
from holdfast.core.protocol.messages import FromNode, NodeGreeted, NodeJoined, RoundStopped
from holdfast.core.protocol.model import Endpoint
from holdfast.engine.coordinating import Coordinating

if TYPE_CHECKING:
    from holdfast.engine.engine import Engine
    from holdfast.engine.ports import CoordinatorLine


class CoordinatorLink:
    """What the engine knows of its link. Each adds its routes to the engine's when it is made."""

    coordinating: Coordinating | None = None
    """The coordinator, while it is this node."""
    _engine: Engine

    @property
    def store_address(self) -> Endpoint | None:
        """Where the coordinator's store is found from here."""
        return None

    @property
    def is_needed(self) -> bool:
        """Whether other nodes still need something from here, though this one is done."""
        return False

    def begin(self) -> None:
        """Do what is to be done before anybody dials; what comes of it may be posted at once."""

    def report(self, effect: Report) -> None:
        """Tell the coordinator; lost where there is no connection."""
        if self.coordinating is not None:
            self.coordinating.on_message(self._engine.node, effect.message)

    def leave(self) -> None:
        """The node is done: hand over to others what they need, while `is_needed`."""

    def close(self) -> None:
        if self.coordinating is not None:
            self.coordinating.close()

    def _reach_here(self) -> None:
        self._engine.post(CoordinatorReached(hosting=True))


class Alone(CoordinatorLink):
    """In a job of one node: nobody else to reach, and nothing is written down."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        coordinating = self.coordinating = Coordinating(begin(engine.config), engine)
        engine.routes |= {
            Report: self.report,
            Dial: lambda effect: self._reach_here(),
            Write: lambda effect: coordinating.post(Written(effect.version)),
        }
        for needless in (HangUp, KnowEnded, Resign, Depose, Retire):
            engine.routes[needless] = engine.ignore


class NetworkedLink(CoordinatorLink):
    """In a job of several nodes: the coordinator is here, or at the other end of the line.

    What this node says goes to the one or the other, and what other nodes say is heard while it is
    here.
    """

    _line: CoordinatorLine
    _address = ""
    """Where this node is reached by others, as far as that is known."""
    _endpoint: Endpoint | None = None
    """Where it is dialled if it coordinates, in jobs where any node can."""

    def report(self, effect: Report) -> None:
        message = complete(effect.message, self._address, self._endpoint)
        if self.coordinating is not None:
            self.coordinating.on_message(self._engine.node, message)
        else:
            self._line.send(message)

    # What nodes say to us.

    def on_message(self, node: str, message: FromNode) -> None:
        if self.coordinating is not None:
            self.coordinating.on_message(node, message)

    def on_lost(self, node: str, reason: str) -> None:
        if self.coordinating is not None:
            self.coordinating.on_lost(node, reason)

    def on_tether(self, node: str) -> None:
        pass

    def on_tether_ended(self, node: str, clean: bool) -> None:
        if self.coordinating is not None:
            self.coordinating.on_tether_ended(node, clean)


def complete(message: FromNode, address: str, dialled_at: Endpoint | None = None) -> FromNode:
    """Put in where peers reach this node, and where it is dialled, as only its link knows it."""
    if not isinstance(message, NodeGreeted | NodeJoined | RoundStopped):
        return message
    endpoint = message.endpoint
    if endpoint is not None and not endpoint.address:
        message = replace(message, endpoint=replace(endpoint, address=address))
    if dialled_at is not None and not isinstance(message, RoundStopped):
        message = replace(message, info=replace(message.info, address=dialled_at))
    return message
