"""The host of an endpoint, for real: the claim to be the coordinator there, and its record on disk.

Whether the endpoint is this machine's is found out once, by binding (`transport.own_endpoint`); of
several nodes of a job on it one has the claim (`transport.sharing`). A job without token and
certificates does not dial another user of this machine who has taken the port: it would do as that
one says. Where an endpoint's name has addresses of other machines too, the machine with all of them
is meant.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec.structs import replace

from holdfast.core.policy.config import JobConfig
from holdfast.core.protocol.document import Document
from holdfast.core.protocol.errors import UsageError
from holdfast.core.protocol.model import Endpoint
from holdfast.engine import sentences
from holdfast.engine.network import RealExchange
from holdfast.engine.ports import Exchange
from holdfast.registers.job_record import JobRecord
from holdfast.runtime.disk import Disk
from holdfast.runtime.loop import Loop
from holdfast.runtime.private_folder import own_folder
from holdfast.transport.auth import ConnectionSecurity
from holdfast.transport.dialling import Identity
from holdfast.transport.resolving import Address, Lookup, numeric

if TYPE_CHECKING:
    from holdfast.transport.sharing import EndpointShare

RECORD_WAITS = "the running round goes on; new decisions of the coordinator wait for it"


class EndpointClaim:
    """The claim of one node to the endpoint of its job."""

    def __init__(
        self,
        loop: Loop,
        config: JobConfig,
        node: str,
        security: ConnectionSecurity,
        say: Callable[[str], None],
    ) -> None:
        self._loop, self._config, self._say = loop, config, say
        self._who = Identity(config.run_id, node, security)
        self._endpoint = Endpoint.parse(config.rendezvous.endpoint)
        self._is_here: bool | None = config.is_host
        """Whether the endpoint is on this machine; None while that is not known."""
        self._lookup: Lookup | None = None
        self._share: EndpointShare | None = None
        self._exchange: RealExchange | None = None

    @property
    def endpoint(self) -> Endpoint:
        if self._exchange is None or not self._exchange.addresses:
            return self._endpoint
        return replace(self._endpoint, port=self._exchange.addresses[0].port)

    def take(self, on_here: Callable[[], None], on_elsewhere: Callable[[], None]) -> None:
        """Find the endpoint's addresses, which may take a name server a while."""
        if self._is_here is False:
            on_elsewhere()
            return

        def on_addresses(endpoint: Endpoint, addresses: list[Address]) -> None:
            self._lookup = None
            self._take(addresses)
            (on_elsewhere if self._share is None else on_here)()

        addresses = numeric(self._endpoint)
        if addresses:
            on_addresses(self._endpoint, addresses)
        else:
            self._lookup = Lookup(self._loop, self._endpoint, on_addresses)

    def _take(self, addresses: list[Address]) -> None:
        from holdfast.transport.own_endpoint import location_of
        from holdfast.transport.sharing import take_share

        if self._is_here is None:
            found = location_of(addresses)
            self._is_here = found.is_here
            if found.is_here and found.elsewhere:
                self._is_here = False
                elsewhere = [str(other.sockaddr[0]) for other in found.elsewhere]
                self._say(sentences.meant_elsewhere(self._endpoint, elsewhere))
        config, has_no_tls = self._config, self._who.security.tls is None
        if self._is_here:
            self._share = take_share(
                self._endpoint, config.run_id, config.is_host, has_no_tls, addresses
            )
            if self._share is None and not self._knows_a_stranger():
                _require_no_stranger(self._endpoint, addresses)

    def _knows_a_stranger(self) -> bool:
        """Whether another user cannot pass for a coordinator of this job."""
        tls = self._who.security.tls
        return self._who.security.token is not None or (tls is not None and bool(tls.authority))

    def serve(self, exchange: Exchange) -> None:
        from holdfast.transport.own_endpoint import is_loopback

        assert isinstance(exchange, RealExchange), "an exchange of another network"
        assert self._share is not None, "a coordinator was opened without a claim"
        self._share.serve(self._loop, exchange, self._say)
        self._exchange = exchange
        self._say(sentences.leads(self.endpoint, is_loopback=is_loopback(self._endpoint)))

    def close(self) -> None:
        for part in (self._lookup, self._share):
            if part is not None:
                part.close()
        self._lookup = self._share = self._exchange = None


def _require_no_stranger(endpoint: Endpoint, addresses: list[Address]) -> None:
    from holdfast.transport.own_endpoint import stranger_at

    uid = stranger_at(endpoint, addresses)
    if uid is not None:
        raise UsageError(*sentences.port_of_stranger(uid, endpoint))


class RecordFile:
    """Of one job, on the host of its endpoint."""

    def __init__(self, config: JobConfig, disk: Disk, say: Callable[[str], None]) -> None:
        self._config, self._say = config, say
        self._folder = Path(config.snapshot_dir) if config.snapshot_dir else own_folder()
        self._lane = partial(disk.lane, "record", str(self._folder), RECORD_WAITS)
        self._record: JobRecord | None = None

    def read(self, then: Callable[[Document | None], None]) -> None:
        def on_read(found: tuple[JobRecord, Document | None]) -> None:
            self._record, written = found
            if self._record.unbelieved:
                self._say(sentences.without_record(self._record.unbelieved))
            then(written)

        self._lane().do(self._open, on_read)

    def _open(self) -> tuple[JobRecord, Document | None]:
        """What an earlier coordinator of this job left. Waits for the disk."""
        # Other jobs on this machine may have the same name, but not the same port.
        port = Endpoint.parse(self._config.rendezvous.endpoint).port
        record = JobRecord(self._folder, f"{port}-{self._config.run_id}")
        return record, record.read(self._config.timeouts.join_s)

    def write(self, document: Document, then: Callable[[str], None]) -> None:
        self._lane().do(partial(_written, self._opened, document), then)

    def touch(self) -> None:
        self._lane().do(self._opened.touch)

    def remove(self) -> None:
        self._lane().do(self._opened.remove)

    @property
    def _opened(self) -> JobRecord:
        assert self._record is not None, "it is read before it is written"
        return self._record


def _written(record: JobRecord, document: Document) -> str:
    """What went wrong, in words; empty if it is written."""
    record.write(document)
    return record.problem
