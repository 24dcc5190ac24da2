"""An agent's end of the control connection, and of the tether beside it.

Rules
- After `dial`, exactly one of `on_connected`, `on_line_lost` and `on_unusable` is called; after
  `on_connected`, `on_line_lost` follows exactly once, unless `close` or another `dial` comes
  first. After it nothing more comes from that connection. None of it is called from within
  `dial` or `send`.
- The files for TLS are read beside the loop, at every dial: somebody may be replacing them while
  the job runs, and a lease may depend on how soon the coordinator is reached again.
- The tether is opened by itself after `on_connected`, with the ticket that came with the
  welcome; with TLS there is none. `on_own_tether` hands out a descriptor that the callee owns; this
  side keeps none, so the tether lasts exactly as long as the processes that it was handed to.
- A tether that cannot be opened is tried again while the connection lasts, a few times;
  without one the node's death is noticed when its lease ends, and not sooner.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Protocol

from msgspec import Struct
from msgspec.structs import replace

from holdfast.core.protocol.errors import UsageError
from holdfast.core.protocol.messages import FromNode, ToNode
from holdfast.core.protocol.model import Endpoint, Term
from holdfast.runtime.disk import Disk
from holdfast.runtime.loop import Cancellable, Loop
from holdfast.transport.auth import TlsFiles
from holdfast.transport.connection import Ending, FramedConnection
from holdfast.transport.dialling import DialFailed, Dialling, Identity, Won, begin_connecting
from holdfast.transport.frames import ProtocolError, encode, orders
from holdfast.transport.handshake import SECRET_BYTES, read_refusal, tether_opening
from holdfast.transport.resolving import Address

if TYPE_CHECKING:
    import ssl

TETHER_ATTEMPTS = 5
TETHER_RETRY_S = 1.0
FILES_WAIT = "no coordinator can be dialled until then"


class LineHandlers(Protocol):
    """Callbacks for a node's line to the coordinator."""

    def on_connected(self, local_address: str) -> None: ...
    def on_line_lost(self, reason: str, permanent: bool) -> None: ...
    def on_unusable(self, error: UsageError) -> None:
        """The files that a connection needs cannot be used."""
        ...

    def on_told(self, term: Term, message: ToNode) -> None: ...
    def on_own_tether(self, tether: int) -> None:
        """A tether is up; the listener owns it."""
        ...


class Client:
    """One node's connection to the coordinator. Dial again after it was lost."""

    def __init__(self, loop: Loop, who: Identity, disk: Disk, handlers: LineHandlers) -> None:
        self._loop, self._disk, self._handlers = loop, disk, handlers
        self._identity = replace(who, secret=os.urandom(SECRET_BYTES))
        self._number = 0
        """Of dials and ends: what was read for an earlier one is of no use."""
        self._dialling: Dialling | None = None
        self._connection: FramedConnection | None = None
        self._tether: Tether | None = None

    def dial(self, endpoints: Sequence[Endpoint], timeout_s: float) -> None:
        """Connect to one of the endpoints. A connection that is there is closed, silently."""
        self.close()
        number, files = self._number, self._identity.security.tls
        if files is None:
            self._begin(endpoints, timeout_s, None)
            return

        def go_on(found: FilesRead) -> None:
            if number != self._number:
                return
            if found.problem is not None:
                self._handlers.on_unusable(found.problem)
            else:
                self._begin(endpoints, timeout_s, found.context)

        place = files.certificate or files.authority or ""
        self._disk.lane("certificates", place, FILES_WAIT).do(partial(_read, files), go_on)

    def _begin(
        self, endpoints: Sequence[Endpoint], timeout_s: float, tls: ssl.SSLContext | None
    ) -> None:
        self._dialling = Dialling(self._loop, self._identity, self._on_won, self._on_failed)
        self._dialling.start(endpoints, timeout_s, tls)

    def send(self, message: FromNode) -> None:
        """Send to the coordinator. Lost if there is no connection.

        Raises `MessageTooLarge` where no frame can hold the message.
        """
        if self._connection is not None:
            self._connection.send(encode(message))

    def close(self) -> None:
        """End the connection, or the dialling, silently. The tether stays with its owners."""
        self._number += 1
        for part in (self._dialling, self._connection, self._tether):
            if part is not None:
                part.close()
        self._dialling = self._connection = self._tether = None

    def _on_won(self, won: Won) -> None:
        self._dialling = None
        self._connection = won.connection
        won.connection.on_frame, won.connection.on_ended = self._on_order, self._on_ended
        self._handlers.on_connected(won.local_address)
        if self._connection is won.connection and self._identity.security.tls is None:
            opening = tether_opening(self._identity.job, self._identity.node, won.ticket)
            self._tether = Tether(self._loop, won.address, opening, self._handlers)

    def _on_failed(self, failed: DialFailed) -> None:
        self._dialling = None
        self._handlers.on_line_lost(failed.reason, failed.permanent)

    def _on_order(self, connection: FramedConnection, payload: bytes | bytearray) -> None:
        try:
            order = orders.decode(payload)
        except ProtocolError as error:
            refusal = read_refusal(payload) or error
            connection.close()
            self._lose(refusal.reason, refusal.permanent)
            return
        self._handlers.on_told(Term(order.instance, order.epoch), order.message)

    def _on_ended(self, connection: FramedConnection, ending: Ending) -> None:
        self._lose(ending.reason, permanent=False)

    def _lose(self, reason: str, permanent: bool) -> None:
        self.close()
        self._handlers.on_line_lost(reason, permanent)


class FilesRead(Struct, frozen=True):
    """The result of reading the files for TLS."""

    context: ssl.SSLContext | None = None
    problem: UsageError | None = None


def _read(files: TlsFiles) -> FilesRead:
    """For a lane: it waits for a disk."""
    from holdfast.transport.tls import client_context

    try:
        return FilesRead(client_context(files))
    except UsageError as error:
        return FilesRead(problem=error)


class Tether:
    """Connects, says its one word, and hands the descriptor out."""

    def __init__(
        self, loop: Loop, address: Address, opening: bytes, handlers: LineHandlers
    ) -> None:
        self._loop, self._address = loop, address
        self._opening, self._handlers = opening, handlers
        self._attempts = 0
        self._socket: socket.socket | None = None
        self._retry: Cancellable | None = None
        self._connect()

    def _connect(self) -> None:
        self._attempts += 1
        try:
            self._socket = begin_connecting(self._address)
        except OSError:
            self._try_later()
            return
        self._loop.add_writer(self._socket.fileno(), self._on_connected, self._socket)

    def _on_connected(self, sock: socket.socket) -> None:
        self._loop.remove_writer(sock.fileno())
        self._socket = None
        try:
            # A new connection takes a few hundred bytes at once; less is a failure like any.
            sent = sock.send(self._opening)
        except OSError:
            sent = 0
        if sent == len(self._opening):
            self._handlers.on_own_tether(sock.detach())
        else:
            sock.close()
            self._try_later()

    def _try_later(self) -> None:
        if self._attempts < TETHER_ATTEMPTS:
            self._retry = self._loop.call_later(TETHER_RETRY_S, self._connect)

    def close(self) -> None:
        if self._retry is not None:
            self._retry.cancel()
        if self._socket is not None:
            self._loop.remove_writer(self._socket.fileno())
            self._socket.close()
            self._socket = None
