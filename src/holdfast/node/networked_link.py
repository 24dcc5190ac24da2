"""What the coordinator's place has in common wherever a job has several nodes.

The coordinator is here, or at the other end of the line: what this node says goes to the one or the
other, and what other nodes say is heard while it is here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from holdfast.core.node_io import CoordinatorReached
from holdfast.core.protocol.messages import FromNode, NodeGreeted, NodeJoined, RoundStopped
from holdfast.node.coordinating import Coordinating
from holdfast.node.ports import CoordinatorLine

if TYPE_CHECKING:
    from holdfast.node.engine import Engine


class NetworkedLink:
    """The parent of those places."""

    coordinating: Coordinating | None = None
    _engine: Engine
    _line: CoordinatorLine

    def hang_up(self) -> None:
        self._line.close()

    def send(self, message: FromNode) -> None:
        if self.coordinating is not None:
            self.coordinating.on_message(self._engine.node, message)
        else:
            self._line.send(message)

    def _reach_here(self) -> None:
        self._engine.post(CoordinatorReached(hosting=True))

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


def with_address(message: FromNode, address: str) -> FromNode:
    """Put in the address that peers should use, as only its place in the network tells."""
    if not isinstance(message, NodeGreeted | NodeJoined | RoundStopped):
        return message
    endpoint = message.endpoint
    if endpoint is None or endpoint.address:
        return message
    return replace(message, endpoint=replace(endpoint, address=address))
