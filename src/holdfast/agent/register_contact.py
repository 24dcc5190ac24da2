"""How an agent and its coordinator reach each other where any node can carry the coordinator.

Every node listens; only the one that the register names admits others. A node that loses the
coordinator dials those that may carry it now, or finds through the register that it is its own
turn. Which of that happens is decided in `core.leadership`; this is the stage for it.

Rules
1. A node that does not lead says so to whoever dials it, and keeps no connection.
2. The orderly end of our tether to the leader, seen from our end, means that nothing of its node
   is left: whoever lets go of a tether for another reason resets it. The leader's spawner holds
   the tethers of its successors too, so that it is not the agent's end alone. With TLS it means
   nothing, because it is TCP that ends it: the leader's tenure is then waited for.
3. A dial ends by reaching somebody or by `CoordinatorLost`, whatever the register does.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from functools import partial

from msgspec.structs import replace

from holdfast.agent.contact import (
    Owner,
    Secrets,
    allow_many_connections,
    security_of,
    surroundings,
    with_address,
)
from holdfast.agent.hosting import CoordinatorHost
from holdfast.agent.leading import Leading
from holdfast.agent.line import Line
from holdfast.control.addresses import address_towards
from holdfast.control.registers.asking import Asking
from holdfast.control.registers.opening import open_register, registered
from holdfast.control.registers.register import Credentials, Register, RegisterSettings
from holdfast.control.server import Server
from holdfast.control.store import KeySpaces
from holdfast.control.tether_end import TetherEnd
from holdfast.core.agent_io import CoordinatorLost, CoordinatorReached, Told
from holdfast.core.beginning import elected
from holdfast.core.config import JobConfig
from holdfast.core.coordinator_io import Write
from holdfast.core.coordinator_state import ledger
from holdfast.core.errors import UsageError
from holdfast.core.leadership_io import (
    Call,
    DialWanted,
    Lead,
    LeadershipStarted,
    LeaderTetherEnded,
    Pointed,
    ResignationWanted,
)
from holdfast.core.messages import CloseJob, FromNode, NodeGreeted, NodeJoined, ToNode, Welcomed
from holdfast.core.model import Endpoint, Outcome, Tenure
from holdfast.core.naming import host_of
from holdfast.workers import linux
from holdfast.workers.event_loop import Cancellable

DIAL_TIMEOUT_S = 2.0
"""For all that may lead, at once: the lease of a running round does not wait much longer."""
SEEK_TIMEOUT_S = 5.0
RESIGN_TIMEOUT_S = 3.0
CALL_SHARE, ENDPOINT_SHARE = 0.85, 0.27
"""How much of a tenure one call of the register may take, and one endpoint of it."""
NOT_LEADING = "this node does not carry the coordinator"


def registered_backends() -> tuple[str, ...]:
    """The backends that this process registered by name: for the command line."""
    return registered()


def settings_of(config: JobConfig, secrets: Secrets) -> RegisterSettings:
    """How the job's register is reached, and how long that may take."""
    leases, rendezvous = config.leases, config.rendezvous
    return RegisterSettings(
        backend=rendezvous.backend,
        endpoint=rendezvous.endpoint,
        run_id=config.run_id,
        options=rendezvous.options,
        credentials=Credentials(secrets.user, secrets.password),
        call_timeout_s=CALL_SHARE * leases.tenure_s,
        endpoint_timeout_s=ENDPOINT_SHARE * leases.tenure_s,
        holder_ttl_s=leases.takeover_s,
        keep_s=config.timeouts.join_s + leases.hold_s,
    )


class RegisterContact:
    """The coordinator of a job of several nodes, on any of them."""

    def __init__(self, owner: Owner, secrets: Secrets, register: Register | None = None) -> None:
        """`register` is used in place of the one that the configuration names."""
        config = owner.config
        self._owner = owner
        security = security_of(config, secrets.token)
        self._believes_an_end = security.tls is None
        allow_many_connections(config.max_nodes)  # Every node may have to lead.
        self._client = Line(owner, security, self)
        self._spaces = KeySpaces()
        self._reception = Reception(self._share_tethers)
        self._server = Server(owner.loop, config.run_id, security, self._reception, self._spaces)
        self._server.own_node = owner.node
        self._server.closed_because = NOT_LEADING
        port = self._listen(config)
        self._address = config.local_address or address_towards(_places(config))
        self._place = Endpoint(self._address, port)
        make: Callable[[], Register] = partial(open_register, settings_of(config, secrets))
        if register is not None:
            given = register
            make = lambda: given  # noqa: E731
        asking = Asking(owner.loop, make, config.leases.tenure_s)
        self._leading = Leading(owner, asking, self, self._place)
        self._tether: TetherEnd | None = None
        self._leader = ""
        self._leader_place: Endpoint | None = None
        self._heard = Tenure()
        self._seeking: Cancellable | None = None
        self._leaves_until: float | None = None
        self._leading.take(LeadershipStarted())

    @property
    def _host(self) -> CoordinatorHost | None:
        return self._reception.host

    @property
    def store_place(self) -> Endpoint | None:
        """Where the coordinator's store is found from here; None while nobody is known to lead."""
        return self._place if self._host is not None else self._leader_place

    def _listen(self, config: JobConfig) -> int:
        port = int(config.rendezvous.options.get("coordinator_port", 0))
        try:
            try:
                self._server.listen(("::", port))
            except OSError:
                self._server.listen(("0.0.0.0", port))  # A kernel without IPv6.
        except OSError as error:
            raise UsageError(
                f"cannot listen on port {port}: {error.strerror}",
                "leave coordinator_port out, and each node takes a free one",
            ) from None
        return self._server.addresses[0].port

    # What the agent does.

    def dial(self) -> None:
        self._stop_seeking()
        no_answer = partial(self._lose, "no node is the coordinator yet", False)
        self._seeking = self._owner.loop.call_later(SEEK_TIMEOUT_S, no_answer)
        self._leading.take(DialWanted())

    def hang_up(self) -> None:
        self._client.close()

    def send(self, message: FromNode) -> None:
        complete = with_address(message, self._address)
        if isinstance(complete, NodeGreeted | NodeJoined):
            complete = replace(complete, info=replace(complete.info, place=self._place))
        if self._host is not None:
            self._host.receive(self._owner.node, complete)
        else:
            self._client.send(complete)

    def leave(self) -> None:
        """Give the place away if others go on: they need not wait until it is missed."""
        self._leaves_until = linux.now() + RESIGN_TIMEOUT_S
        look_again = partial(bool)  # The loop looks after every call whether we are needed.
        self._owner.loop.call_later(RESIGN_TIMEOUT_S, look_again)
        if self._host is not None and self._host.state.outcome is None:
            state = self._host.state
            latest = Write(state.version, ledger(state), state.successors, state.places)
            self._leading.keep(latest, state.tenure, self._host.written)
            self._leading.take(ResignationWanted("its node leaves", leaves=True))

    @property
    def is_needed(self) -> bool:
        if self._leading.is_retiring:
            return not self._leading.is_over
        state = self._host.state if self._host is not None else None
        if state is not None and state.outcome_told and not state.retired:
            return True
        # What has to be written first may never be: the register may be out of reach.
        still_time = self._leaves_until is not None and linux.now() < self._leaves_until
        is_unwritten = state is not None and state.outcome is not None
        return (is_unwritten or self._leading.is_resigning) and still_time

    def close(self) -> None:
        self._stop_seeking()
        self._drop_tether()
        self._client.close()
        if self._host is not None:
            self._host.close()
        self._server.close()
        self._leading.close()

    # What leadership decides.

    def lead(self, effect: Lead) -> None:
        owner, now = self._owner, linux.now()
        beginning = elected(owner.config, owner.node, effect)
        owner.journal.began(now, beginning)
        state = beginning.state(owner.config, now)
        host = CoordinatorHost(state, surroundings(owner), self._leading)
        host.post, host.keys = self._server, self._spaces
        self._reception.host = host
        self._spaces.open(state.round_number)  # Its keys were the last leader's, and are lost.
        self._server.closed_because = ""
        known = f", and goes on from round {state.round_number}" if state.round_number else ""
        owner.say(f"this node is the coordinator, on {self._place}{known}")
        self._stop_seeking()
        self._client.close()
        owner.post(CoordinatorReached(hosting=True))
        host.begin()

    def renewed(self) -> None:
        if self._host is not None:
            self._host.speak_again()
            self._share_tethers()

    def step_down(self, reason: str) -> None:
        is_over = self._host is not None and self._host.state.outcome is not None
        if not is_over:
            self._owner.say(f"this node is no longer the coordinator: {reason}")
        if self._host is not None:
            self._host.close()
            self._reception.host = None
        self._server.closed_because = NOT_LEADING
        if not is_over:  # Else some may still need the round's keys, until this node goes.
            self._server.dismiss()
        self._share_tethers()
        self._owner.post(CoordinatorLost(reason))

    def _share_tethers(self) -> None:
        """Have the spawner hold the tethers of those who would take over."""
        successors = self._host.state.successors if self._host is not None else ()
        wanted = frozenset(successors) & self._reception.tethers
        if wanted == self._reception.shared:
            return
        self._reception.shared = wanted
        found = [self._server.share_tether(node) for node in sorted(wanted)]
        self._owner.share_tethers([descriptor for descriptor in found if descriptor is not None])

    def call(self, effect: Call) -> None:
        if self._host is not None:
            self._stop_seeking()
            self._owner.post(CoordinatorReached(hosting=True))
        elif effect.endpoints:
            self._dial(effect.endpoints)
        else:
            hosts = ", ".join(dict.fromkeys(map(host_of, effect.nodes)))
            self._lose(f"the register does not say where {hosts} can be reached", False)

    def _dial(self, endpoints: tuple[Endpoint, ...]) -> None:
        self._client.dial(endpoints, DIAL_TIMEOUT_S, self._on_refused)

    def _on_refused(self, error: UsageError) -> None:
        # The files for TLS: somebody may be replacing them while the job runs.
        self._lose(error.message, self._heard == Tenure())

    def nobody_found(self, reason: str, permanent: bool) -> None:
        if self._seeking is not None:
            self._lose(reason, permanent)

    def learn_outcome(self, outcome: Outcome, tenure: Tenure) -> None:
        if self._heard == Tenure():
            name = self._owner.config.run_id
            self._owner.say(
                f"job {name} has already finished, before this node came; use another --rdzv-id, "
                "or try again in a minute"
            )
        else:
            self._leading.retire()  # In case whoever wrote it is dead.
        self._owner.post(Told(CloseJob(outcome), tenure))

    # What our connection says.

    def on_connected(self, server_nonce: bytes, local_address: str) -> None:
        self._stop_seeking()
        # The old tether tells of whoever led before, and must not get another's name.
        self._drop_tether()
        self._leader = ""
        self._owner.post(CoordinatorReached())

    def on_lost(self, reason: str, permanent: bool) -> None:
        """Of those that were dialled, or of the coordinator that we had."""
        # Whoever was welcomed once has the right token: it is a stranger at an old place who
        # refuses us for good.
        self._lose(reason, permanent and self._heard == Tenure())

    def on_message(self, instance: int, epoch: int, message: ToNode) -> None:
        tenure = Tenure(instance, epoch)
        self._owner.post(Told(message, tenure))
        if isinstance(message, Welcomed) and tenure >= self._heard:
            self._heard, self._leader = tenure, message.leader
            if self._tether is not None and not self._tether.leader:
                self._tether.leader = message.leader
            leader, successors, places = message.leader, message.successors, message.places
            self._leader_place = places.get(leader, self._leader_place)
            self._leading.take(Pointed(leader, successors, places, tenure))

    def on_tether(self, fd: int) -> None:
        self._drop_tether()
        if self._believes_an_end:
            loop, own = self._owner.loop, os.dup(fd)
            self._tether = TetherEnd(loop, own, self._leader, self._on_leader_gone)
        self._owner.on_tether(fd)

    def _on_leader_gone(self, leader: str) -> None:
        if leader:
            self._leading.take(LeaderTetherEnded(leader))

    def _lose(self, reason: str, permanent: bool) -> None:
        self._stop_seeking()
        self._owner.post(CoordinatorLost(reason, permanent))

    def _stop_seeking(self) -> None:
        if self._seeking is not None:
            self._seeking.cancel()
            self._seeking = None

    def _drop_tether(self) -> None:
        if self._tether is not None:
            self._tether.close()
            self._tether = None


class Reception:
    """Passes on what nodes say to the coordinator, while there is one here."""

    def __init__(self, on_change: Callable[[], None]) -> None:
        """`on_change` is called when a node has a new tether."""
        self._on_change = on_change
        self.host: CoordinatorHost | None = None
        self.tethers: set[str] = set()
        """Nodes that have a tether to us."""
        self.shared: frozenset[str] = frozenset()
        """Those of them whose tether our spawner holds too."""

    def on_message(self, node: str, message: FromNode) -> None:
        if self.host is not None:
            self.host.receive(node, message)

    def on_lost(self, node: str, reason: str) -> None:
        if self.host is not None:
            self.host.on_lost(node, reason)

    def on_tether(self, node: str) -> None:
        self.tethers.add(node)
        self.shared -= {node}  # A newer one than the one that is held.
        self._on_change()

    def on_tether_ended(self, node: str, clean: bool) -> None:
        self.tethers.discard(node)
        if self.host is not None:
            self.host.on_tether_ended(node, clean)


def _places(config: JobConfig) -> Iterator[Endpoint]:
    """The hosts and ports in the endpoint, if that is what it has."""
    for word in config.rendezvous.endpoint.split(","):
        with contextlib.suppress(UsageError, ValueError):
            yield Endpoint.parse(word)
