"""The coordinator's place where an endpoint names its host.

Whoever has the claim to the endpoint (`Claim`) is the coordinator, the others dial it. Which of the
two this node is may change: each time it dials, it looks. What the coordinator decides is in a
record on its host's disk, from which the next life of it goes on.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from holdfast.core.coordinator import CoordinatorState, is_owed, ledger, next_life
from holdfast.core.node.io import CoordinatorLost, CoordinatorReached, Told
from holdfast.core.policy.timing import one_dial_s
from holdfast.core.protocol.document import Document
from holdfast.core.protocol.errors import UsageError
from holdfast.core.protocol.messages import FromNode, ToNode
from holdfast.core.protocol.model import Endpoint, Term
from holdfast.node.coordinating import Coordinating, NothingKept
from holdfast.node.networked_link import NetworkedLink, with_address
from holdfast.node.ports import Claim, Exchange, Network
from holdfast.node.record_keeper import RecordKeeper

if TYPE_CHECKING:
    from holdfast.node.engine import Engine


class Embedded(NetworkedLink):
    """The coordinator of a job of several nodes, here or at the endpoint's host."""

    def __init__(self, engine: Engine, network: Network, claim: Claim) -> None:
        self._engine, self._network, self._claim = engine, network, claim
        self._line = network.line(self)
        self._keeper: RecordKeeper | None = None
        self._exchange: Exchange | None = None
        self._address = engine.config.local_address or ""
        self._is_opening = self._is_closed = False
        """Whether it is being found out if this node is to host, and the record is read."""

    @property
    def is_needed(self) -> bool:
        return self.coordinating is not None and is_owed(self.coordinating.state)

    @property
    def store_address(self) -> Endpoint:
        """Where the coordinator's store is found from here."""
        return self._claim.place

    # What the engine does.

    def begin(self) -> None:
        pass  # It is found out at each dial where the coordinator is.

    def dial(self) -> None:
        """Be the coordinator if the endpoint is this node's to have; else dial it."""
        if self.coordinating is not None:
            self._reach_here()
        elif not self._is_opening:
            self._is_opening = True
            self._claim.take(self._on_here, self._on_elsewhere)

    def _on_elsewhere(self) -> None:
        self._is_opening = False
        self._line.dial((self._claim.place,), one_dial_s(self._engine.config))

    def _reach_here(self) -> None:
        self._address = self._address or self._claim.place.address
        super()._reach_here()

    def send(self, message: FromNode) -> None:
        super().send(with_address(message, self._address))

    def nodes_ended(self, nodes: tuple[str, ...]) -> None:
        pass  # Who hosts does not depend on who did before.

    def leave(self) -> None:
        pass  # Whoever must still learn the outcome dials this host, and no other.

    def close(self) -> None:
        self._is_closed = True
        self._line.close()
        self._close_coordinator()
        self._claim.close()

    def _close_coordinator(self) -> None:
        for part in (self.coordinating, self._keeper, self._exchange):
            if part is not None:
                part.close()
        self.coordinating = self._keeper = self._exchange = None
        self._claim.release()

    # What comes on the line.

    def on_connected(self, local_address: str) -> None:
        if not self._engine.config.local_address:
            self._address = local_address
        self._claim.reached()
        self._engine.post(CoordinatorReached())

    def on_line_lost(self, reason: str, permanent: bool) -> None:
        self._engine.post(CoordinatorLost(reason, permanent))

    def on_unusable(self, error: UsageError) -> None:
        raise error

    def on_told(self, term: Term, message: ToNode) -> None:
        self._engine.post(Told(message, term))

    def on_own_tether(self, tether: int) -> None:
        self._engine.ports.processes.hold_tether(tether)

    # Being the coordinator.

    def _on_here(self) -> None:
        record = self._engine.ports.record
        if record is None:
            self._open(None)  # It dies with this node: there is nothing to go on from.
        else:
            record.read(self._open)

    def _open(self, written: Document | None) -> None:
        """Make the coordinator; nobody hears of it before it is written under which term."""
        if self._is_closed:
            return
        engine, record = self._engine, self._engine.ports.record
        state = self._beginning(written)
        keeper = NothingKept()
        if record is not None:
            keeper = self._keeper = RecordKeeper(
                engine, record, written.counter if written is not None else 0
            )
        self._exchange = self._network.exchange(self)
        coordinating = Coordinating(state, engine, keeper, self._exchange)
        if self._keeper is None:
            self._serve(coordinating)
        else:
            known = ledger(state, self._engine.clock.now())
            self._keeper.begin(state.term, known, partial(self._serve, coordinating))

    def _beginning(self, written: Document | None) -> CoordinatorState:
        """Go on from the record of an earlier coordinator of this job, or begin."""
        config, now = self._engine.config, self._engine.clock.now()
        beginning = next_life(config, written, self._engine.ports.instance())
        known = beginning.ledger
        if known is not None and known.outcome is not None:
            self._engine.say(
                "this job has already finished; telling the nodes that have not heard of it"
            )
        elif known is not None and known.round:
            self._engine.say(f"going on from the record of round {known.round}")
        self._engine.journal.began(now, beginning)
        return beginning.state(config, now)

    def _serve(self, coordinating: Coordinating) -> None:
        if self._is_closed or self._exchange is None:
            return
        self.coordinating, self._is_opening = coordinating, False
        self._claim.serve(self._exchange, self._give_way)
        coordinating.begin()
        self._reach_here()

    def _give_way(self, reason: str) -> None:
        """Another machine hosts this job too. Its nodes find that one as if we had died."""
        if self.is_needed:
            return  # The job is over, and this is where they learn how.
        self._close_coordinator()
        self.on_line_lost(reason, permanent=False)
