"""The coordinator's place where any node can be it: found, elected and fenced through a register.

Every node listens; only the one that the register names admits others. A node that loses the
coordinator dials those that may be it now, or finds through the register that it is its own turn.
Which of that happens is decided in `core.election`; this is the stage for it.

Rules
1. A node that does not lead says so to whoever dials it, and keeps no connection.
2. The orderly end of our tether to the leader, seen from our end, means that nothing of its node
   is left: whoever lets go of a tether for another reason resets it. The leader's spawner holds
   the tethers of its successors too, so that it is not the agent's end alone. With TLS it means
   nothing, because it is TCP that ends it: the leader's term is then waited for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from holdfast.core.coordinator import elected
from holdfast.core.coordinator_io import HandOverAsked
from holdfast.core.election.io import (
    DialNodes,
    DialWanted,
    ElectionStarted,
    Lead,
    LeaderTetherEnded,
    NodeLeaves,
    NodesEnded,
    Pointed,
)
from holdfast.core.election.state import ElectionState, is_needed
from holdfast.core.node.io import CoordinatorLost, CoordinatorReached, Told
from holdfast.core.policy.timing import one_dial_s
from holdfast.core.protocol.errors import UsageError
from holdfast.core.protocol.messages import (
    CloseJob,
    FromNode,
    NodeGreeted,
    NodeJoined,
    ToNode,
    Welcomed,
)
from holdfast.core.protocol.model import Endpoint, Outcome, Term
from holdfast.core.protocol.naming import host_of
from holdfast.node.coordinating import Coordinating
from holdfast.node.electing import Electing
from holdfast.node.networked_link import NetworkedLink, with_address
from holdfast.node.ports import Closable, Network, RegisterPort

if TYPE_CHECKING:
    from holdfast.node.engine import Engine

TELL_PLACE = (NodeGreeted, NodeJoined)
NOT_LEADING = "this node is not the coordinator"


class Elected(NetworkedLink):
    """The coordinator of a job of several nodes, on any of them."""

    def __init__(self, engine: Engine, network: Network, register: RegisterPort) -> None:
        self._engine, self._network = engine, network
        self._line = network.line(self)
        self._exchange = network.exchange(self)
        self._exchange.closed_because = NOT_LEADING
        self._place = network.listen(self._exchange)
        self._electing = Electing(engine, register, self, self._place)
        self._leader = ""
        self._leader_address: Endpoint | None = None
        self._heard = Term()
        self._watched: Closable | None = None
        """The end of the leader's tether, and so of the leader."""
        self._tethers: set[str] = set()
        """Nodes that have a tether to us."""
        self._shared: frozenset[str] = frozenset()
        """Those of them whose tether the processes of this node hold too."""

    @property
    def election(self) -> ElectionState:
        """Who leads, as this node sees it."""
        return self._electing.state

    @property
    def store_address(self) -> Endpoint | None:
        """Where the coordinator's store is found from here; None while nobody is known to lead."""
        return self._place if self.coordinating is not None else self._leader_address

    # What the engine does.

    def begin(self) -> None:
        self._electing.take(ElectionStarted())

    def dial(self) -> None:
        self._electing.take(DialWanted())

    def send(self, message: FromNode) -> None:
        complete = with_address(message, self._place.address)
        if isinstance(complete, TELL_PLACE):
            complete = replace(complete, info=replace(complete.info, place=self._place))
        super().send(complete)

    def nodes_ended(self, nodes: tuple[str, ...]) -> None:
        self._electing.take(NodesEnded(nodes))

    def leave(self) -> None:
        """Give the place away if others go on: they need not wait until it is missed."""
        self._electing.take(NodeLeaves())
        if self.coordinating is not None:
            self.coordinating.decide(HandOverAsked())

    @property
    def is_needed(self) -> bool:
        coordinator = self.coordinating.state if self.coordinating is not None else None
        return is_needed(self.election, coordinator)

    def close(self) -> None:
        self._stop_watching()
        self._line.close()
        if self.coordinating is not None:
            self.coordinating.close()
        self._exchange.close()
        self._electing.close()

    # What the election decides.

    def lead(self, effect: Lead) -> None:
        engine, now = self._engine, self._engine.clock.now()
        beginning = elected(engine.config, engine.node, effect)
        engine.journal.began(now, beginning)
        state = beginning.state(engine.config, now)
        self.coordinating = Coordinating(state, engine, self._electing, self._exchange)
        if self._exchange.keys is not None:
            self._exchange.keys.open(
                state.group.round_number
            )  # The last leader's are lost with it.
        self._exchange.closed_because = ""
        known = (
            f", and goes on from round {state.group.round_number}"
            if state.group.round_number
            else ""
        )
        engine.say(f"this node is the coordinator, on {self._place}{known}")
        self._line.close()
        self._reach_here()
        self.coordinating.begin()

    def renewed(self) -> None:
        if self.coordinating is not None:
            self.coordinating.speak_again()
            self._share_tethers()

    def step_down(self, reason: str) -> None:
        coordinating, self.coordinating = self.coordinating, None
        end = coordinating.state.end if coordinating is not None else None
        is_over = end is not None and end.is_told
        if not is_over:
            self._engine.say(f"this node is no longer the coordinator: {reason}")
        if coordinating is not None:
            coordinating.close()
        self._exchange.closed_because = NOT_LEADING
        if not is_over:  # Else some may still need the round's keys, until this node goes.
            self._exchange.dismiss()
        self._share_tethers()
        self._engine.post(CoordinatorLost(reason))

    def call(self, effect: DialNodes) -> None:
        if self.coordinating is not None:
            self._reach_here()
        elif effect.endpoints:
            self._line.dial(effect.endpoints, one_dial_s(self._engine.config))
        else:
            hosts = ", ".join(dict.fromkeys(map(host_of, effect.nodes)))
            self.lose(f"the register does not say where {hosts} can be reached")

    def learn_outcome(self, outcome: Outcome, term: Term) -> None:
        self._engine.post(Told(CloseJob(outcome), term))

    def lose(self, reason: str, permanent: bool = False) -> None:
        self._engine.post(CoordinatorLost(reason, permanent))

    # The tethers of nodes to us.

    def on_tether(self, node: str) -> None:
        self._tethers.add(node)
        self._shared -= {node}  # A newer one than the one that is held.
        self._share_tethers()

    def on_tether_ended(self, node: str, clean: bool) -> None:
        self._tethers.discard(node)
        super().on_tether_ended(node, clean)

    def _share_tethers(self) -> None:
        """Have the processes of this node hold the tethers of those who would take over."""
        follows = self.coordinating.state.succession if self.coordinating is not None else None
        wanted = frozenset(follows.successors if follows is not None else ()) & self._tethers
        if wanted == self._shared:
            return
        self._shared = wanted
        found = [self._exchange.share_tether(node) for node in sorted(wanted)]
        self._engine.ports.processes.share_tethers([each for each in found if each is not None])

    # What comes on our line to the leader.

    def on_connected(self, local_address: str) -> None:
        # The old tether tells of whoever led before, and must not get another's name.
        self._stop_watching()
        self._leader = ""
        self._engine.post(CoordinatorReached())

    def on_line_lost(self, reason: str, permanent: bool) -> None:
        """Of those that were dialled, or of the coordinator that we had."""
        # Whoever was welcomed once has the right token: it is a stranger at an old place who
        # refuses us for good.
        self.lose(reason, permanent and self._heard == Term())

    def on_unusable(self, error: UsageError) -> None:
        # The files for TLS: somebody may be replacing them while the job runs.
        self.lose(error.message, self._heard == Term())

    def on_told(self, term: Term, message: ToNode) -> None:
        self._engine.post(Told(message, term))
        if isinstance(message, Welcomed) and term >= self._heard:
            self._heard, self._leader = term, message.leader
            leader, successors, places = message.leader, message.successors, message.places
            self._leader_address = places.get(leader, self._leader_address)
            self._electing.take(Pointed(leader, successors, places, term))

    def on_own_tether(self, tether: int) -> None:
        self._stop_watching()
        self._watched = self._network.watch_end(tether, self._on_leader_gone)
        self._engine.ports.processes.hold_tether(tether)

    def _on_leader_gone(self) -> None:
        if self._leader:
            self._electing.take(LeaderTetherEnded(self._leader))

    def _stop_watching(self) -> None:
        if self._watched is not None:
            self._watched.close()
            self._watched = None
