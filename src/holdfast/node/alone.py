"""The coordinator's place in a job of one node: in this very process, without a network."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.core.coordinator import begin
from holdfast.core.node.io import CoordinatorReached
from holdfast.core.protocol.messages import FromNode
from holdfast.core.protocol.model import Endpoint
from holdfast.node.coordinating import Coordinating, NothingKept

if TYPE_CHECKING:
    from holdfast.node.engine import Engine


class Alone:
    """Nobody else to reach, and nobody who would need to be told."""

    is_needed = False
    store_address: Endpoint | None = None

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.coordinating: Coordinating | None = Coordinating(
            begin(engine.config), engine, NothingKept()
        )

    def begin(self) -> None:
        pass

    def dial(self) -> None:
        self._engine.post(CoordinatorReached(hosting=True))

    def hang_up(self) -> None:
        pass

    def send(self, message: FromNode) -> None:
        assert self.coordinating is not None, "it lives as long as its node"
        self.coordinating.on_message(self._engine.node, message)

    def nodes_ended(self, nodes: tuple[str, ...]) -> None:
        pass  # Nobody was its coordinator but itself.

    def leave(self) -> None:
        pass

    def close(self) -> None:
        if self.coordinating is not None:
            self.coordinating.close()
