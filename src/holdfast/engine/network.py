"""The network port, over real sockets: the line to a coordinator, and the exchange of one."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator

from holdfast.core.policy.config import JobConfig
from holdfast.core.protocol.errors import UsageError
from holdfast.core.protocol.model import Endpoint
from holdfast.engine.ports import Closable, Exchange
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

    def watch_end(self, tether: int, on_gone: Callable[[], None]) -> Closable | None:
        """With TLS no end is a proof: it is TCP that ends a tether, and it can be forged."""
        if self._who.security.tls is not None:
            return None
        return TetherEnd(self._loop, os.dup(tether), on_gone)


def _places(config: JobConfig) -> Iterator[Endpoint]:
    """The hosts and ports in the register's endpoint, if that is what it has."""
    for word in config.rendezvous.endpoint.split(","):
        with contextlib.suppress(UsageError, ValueError):
            yield Endpoint.parse(word)
