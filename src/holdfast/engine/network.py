"""The ports that lead to other nodes, for real: sockets, and a register or an endpoint's host.

The register is asked in a thread of its own.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from functools import partial

from msgspec import Struct

from holdfast.core.policy.config import JobConfig
from holdfast.core.protocol.errors import UsageError
from holdfast.core.protocol.model import Endpoint
from holdfast.engine.ports import Closable, Exchange, Ports
from holdfast.engine.secrets import Secrets, security_of
from holdfast.registers.register import Register, RegisterSettings
from holdfast.runtime import descriptors
from holdfast.runtime.disk import Disk
from holdfast.runtime.loop import Loop
from holdfast.store.key_spaces import KeySpaces
from holdfast.transport.addresses import address_towards
from holdfast.transport.auth import ConnectionSecurity
from holdfast.transport.client import Client, LineHandlers
from holdfast.transport.dialling import Identity
from holdfast.transport.server import AdminService, ExchangeHandlers, Server
from holdfast.transport.tether_end import TetherEnd

CALL_SHARE, ENDPOINT_SHARE = 0.85, 0.27
"""How much of a term one call of the register may take, and one endpoint of it."""


class RealExchange(Server):
    """A server of one job, with the keys of its rounds."""

    def __init__(self, loop: Loop, who: Identity, handlers: ExchangeHandlers) -> None:
        self.keys = KeySpaces()
        super().__init__(loop, who.job, who.security, handlers, self.keys)
        self.own_node = who.node


class RealNetwork:
    """How one node of one job reaches the others, and is reached."""

    def __init__(
        self, loop: Loop, config: JobConfig, node: str, security: ConnectionSecurity, disk: Disk
    ) -> None:
        self._loop, self._config, self._disk = loop, config, disk
        self.admin: AdminService | None = None
        """Who answers outsiders, if anybody does."""
        self._who = Identity(config.run_id, node, security)

    def line(self, handlers: LineHandlers) -> Client:
        return Client(self._loop, self._who, self._disk, handlers)

    def exchange(self, handlers: ExchangeHandlers) -> RealExchange:
        descriptors.expect_nodes(self._config.max_nodes)
        exchange = RealExchange(self._loop, self._who, handlers)
        exchange.admin = self.admin
        return exchange

    def listen(self, exchange: Exchange) -> Endpoint:
        """On a port of its own, at the address by which the register's machines would see us."""
        assert isinstance(exchange, RealExchange), "an exchange of another network"
        port = int(self._config.rendezvous.options.get("coordinator_port", 0))
        try:
            exchange.listen(("", port))
        except OSError as error:
            raise UsageError(
                f"cannot listen on port {port}: {error.strerror}",
                "leave coordinator_port out, and each node takes a free one",
            ) from None
        address = self._config.local_address or address_towards(_places(self._config))
        return Endpoint(address, exchange.addresses[0].port)

    def watch_end(self, tether: int, on_gone: Callable[[], None]) -> Closable:
        return TetherEnd(self._loop, os.dup(tether), on_gone)


def _places(config: JobConfig) -> Iterator[Endpoint]:
    """The hosts and ports in the register's endpoint, if that is what it has."""
    for word in config.rendezvous.endpoint.split(","):
        with contextlib.suppress(UsageError, ValueError):
            yield Endpoint.parse(word)


class Means(Struct):
    """What a node meets others with."""

    loop: Loop
    disk: Disk
    secrets: Secrets
    register: Register | None = None
    """Used in place of the one that the configuration names."""


def add_network(
    ports: Ports, config: JobConfig, node: str, means: Means, admin: AdminService | None = None
) -> None:
    """Fill in the ports that lead to other nodes, and that let outsiders in, to `admin`."""
    # What the coordinator needs when a node or a worker is lost: the loop must not import it then.
    import holdfast.core.features.quarantine
    import holdfast.core.policy.kinds  # noqa: F401 - for the core, which imports both when needed

    security = security_of(config, means.secrets.token)
    network = RealNetwork(means.loop, config, node, security, means.disk)
    network.admin = admin
    ports.network = network
    if means.register is None and config.rendezvous.is_embedded:
        from holdfast.engine.endpoint_host import EndpointClaim, RecordFile

        ports.claim = EndpointClaim(means.loop, config, node, security, ports.say)
        if config.max_nodes > 1:  # Else its coordinator dies with it.
            ports.record = RecordFile(config, means.disk, ports.say)
        return
    from holdfast.registers.opening import open_register
    from holdfast.registers.register_thread import RegisterThread

    descriptors.expect_nodes(config.max_nodes)  # Every node may have to lead.
    make: Callable[[], Register] = partial(open_register, settings_of(config, means.secrets))
    if means.register is not None:
        given = means.register
        make = lambda: given  # noqa: E731
    ports.register = RegisterThread(means.loop, make, config.leases.term_s)


def settings_of(config: JobConfig, secrets: Secrets) -> RegisterSettings:
    """How the job's register is reached, and how long that may take."""
    from holdfast.registers.register import Credentials

    leases, rendezvous = config.leases, config.rendezvous
    return RegisterSettings(
        backend=rendezvous.backend,
        endpoint=rendezvous.endpoint,
        run_id=config.run_id,
        options=rendezvous.options,
        credentials=Credentials(secrets.user, secrets.password),
        call_timeout_s=CALL_SHARE * leases.term_s,
        endpoint_timeout_s=ENDPOINT_SHARE * leases.term_s,
        holder_ttl_s=leases.takeover_s,
        keep_s=config.timeouts.join_s + leases.hold_s,
    )


def registered_backends() -> tuple[str, ...]:
    """The backends that this process registered by name: for the command line."""
    from holdfast.registers.opening import registered

    return registered()
