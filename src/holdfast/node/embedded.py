"""The coordinator's place where an endpoint names its host.

Whoever has the claim to the endpoint (`Claim`) is the coordinator, the others dial it. Which of the
two this node is may change: each time it dials, it looks. What the coordinator decides is in a
record on its host's disk, from which the next life of it goes on.
"""

from __future__ import annotations

from functools import partial

from holdfast.core.coordinator.bootstrap import next_life
from holdfast.core.coordinator.state import CoordinatorState, is_owed, ledger
from holdfast.core.node.io import CoordinatorLost, CoordinatorReached, Told
from holdfast.core.policy.timing import one_dial_s
from holdfast.core.protocol.document import Document
from holdfast.core.protocol.errors import UsageError
from holdfast.core.protocol.messages import FromNode, ToNode
from holdfast.core.protocol.model import Endpoint, Tenure
from holdfast.node.coordinating import Coordinating, NothingKept
from holdfast.node.host import Host
from holdfast.node.ports import Claim, Exchange, Network
from holdfast.node.record_keeper import RecordKeeper
from holdfast.node.speech import with_address


class Embedded:
    """The coordinator of a job of several nodes, here or at the endpoint's host."""

    def __init__(self, host: Host, network: Network, claim: Claim) -> None:
        self._host, self._network, self._claim = host, network, claim
        self._line = network.line(self)
        self._keeper: RecordKeeper | None = None
        self._exchange: Exchange | None = None
        self.coordinating: Coordinating | None = None
        self._address = host.config.local_address or ""
        self._is_opening = self._is_closed = False
        """Whether it is being found out if this node is to host, and the record is read."""

    @property
    def is_needed(self) -> bool:
        return self.coordinating is not None and is_owed(self.coordinating.state)

    @property
    def store_place(self) -> Endpoint:
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
        self._line.dial((self._claim.place,), one_dial_s(self._host.config))

    def _reach_here(self) -> None:
        self._address = self._address or self._claim.place.address
        self._host.post(CoordinatorReached(hosting=True))

    def hang_up(self) -> None:
        self._line.close()

    def send(self, message: FromNode) -> None:
        complete = with_address(message, self._address)
        if self.coordinating is not None:
            self.coordinating.on_message(self._host.node, complete)
        else:
            self._line.send(complete)

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
        if not self._host.config.local_address:
            self._address = local_address
        self._claim.reached()
        self._host.post(CoordinatorReached())

    def on_line_lost(self, reason: str, permanent: bool) -> None:
        self._host.post(CoordinatorLost(reason, permanent))

    def on_unusable(self, error: UsageError) -> None:
        raise error

    def on_told(self, tenure: Tenure, message: ToNode) -> None:
        self._host.post(Told(message, tenure))

    def on_own_tether(self, tether: int) -> None:
        self._host.ports.processes.hold_tether(tether)

    # Being the coordinator.

    def _on_here(self) -> None:
        record = self._host.ports.record
        if record is None:
            self._open(None)  # It dies with this node: there is nothing to go on from.
        else:
            record.read(self._open)

    def _open(self, written: Document | None) -> None:
        """Make the coordinator; nobody hears of it before it is written under which tenure."""
        if self._is_closed:
            return
        host, record = self._host, self._host.ports.record
        state = self._beginning(written)
        keeper = NothingKept()
        if record is not None:
            keeper = self._keeper = RecordKeeper(
                host, record, written.counter if written is not None else 0
            )
        handlers = Forwarding()
        self._exchange = self._network.exchange(handlers)
        coordinating = handlers.to = Coordinating(state, host, keeper, self._exchange)
        if self._keeper is None:
            self._serve(coordinating)
        else:
            known = ledger(state, self._host.clock.now())
            self._keeper.begin(state.tenure, known, partial(self._serve, coordinating))

    def _beginning(self, written: Document | None) -> CoordinatorState:
        """Go on from the record of an earlier coordinator of this job, or begin."""
        config, now = self._host.config, self._host.clock.now()
        beginning = next_life(config, written, self._host.ports.instance())
        known = beginning.ledger
        if known is not None and known.outcome is not None:
            self._host.say(
                "this job has already finished; telling the nodes that have not heard of it"
            )
        elif known is not None and known.round:
            self._host.say(f"going on from the record of round {known.round}")
        self._host.journal.began(now, beginning)
        return beginning.state(config, now)

    def _serve(self, coordinating: Coordinating) -> None:
        if self._is_closed or self._exchange is None:
            return
        self._claim.serve(self._exchange, self._give_way)
        self.coordinating, self._is_opening = coordinating, False
        coordinating.begin()
        self._reach_here()

    def _give_way(self, reason: str) -> None:
        """Another machine hosts this job too. Its nodes find that one as if we had died."""
        if self.is_needed:
            return  # The job is over, and this is where they learn how.
        self._close_coordinator()
        self.on_line_lost(reason, permanent=False)


class Forwarding:
    """Passes on what nodes say to the coordinator, from when there is one."""

    to: Coordinating | None = None

    def on_message(self, node: str, message: FromNode) -> None:
        if self.to is not None:
            self.to.on_message(node, message)

    def on_lost(self, node: str, reason: str) -> None:
        if self.to is not None:
            self.to.on_lost(node, reason)

    def on_tether(self, node: str) -> None:
        pass

    def on_tether_ended(self, node: str, clean: bool) -> None:
        if self.to is not None:
            self.to.on_tether_ended(node, clean)
