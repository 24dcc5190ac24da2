"""Dialling: from a list of endpoints to one connection on which both sides proved themselves.

Rules
- Every address of every endpoint is tried, IPv4 and IPv6, one more every `STAGGER_S` or at
  once when one has failed. The first that completes the handshake wins; the rest is closed.
- Only one attempt at a time has given its proof, so the server admits the node only once.
- It ends exactly once: `on_won`, or `on_failed` with a reason that names each thing that
  failed. `close()` ends it silently.

How it works: a `DialAttempt` connects, goes through TLS if the job has it, opens, and waits at
its challenge until it is its turn to prove. `Dialling` starts them and hands out the turn.
"""

from __future__ import annotations

import errno
import os
import socket
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from msgspec import Struct

from holdfast.core.protocol.model import Endpoint
from holdfast.runtime.loop import Cancellable, Loop
from holdfast.transport import sentences
from holdfast.transport.auth import ConnectionSecurity
from holdfast.transport.connection import (
    Ending,
    FramedConnection,
    Stream,
    configure,
    words_for,
)
from holdfast.transport.frames import FRAME_LIMIT, ProtocolError
from holdfast.transport.handshake import ClientSide, Kind
from holdfast.transport.resolving import Address, Lookup, numeric

if TYPE_CHECKING:
    import ssl

    from holdfast.transport.tls import TlsHandshake

STAGGER_S = 0.2

Payload = bytes | bytearray


class Identity(Struct, frozen=True):
    """The node that dials, and its credentials."""

    job: str
    node: str
    security: ConnectionSecurity
    secret: bytes = b""
    """By which a coordinator knows the node again; in no log. An admin client has none."""
    kind: Kind = "control"
    """As what it dials: a node, or an admin client that only asks."""

    def __repr__(self) -> str:
        return f"Identity({self.job!r}, {self.node!r})"


class Won(Struct, frozen=True):
    """The connection that won, past its handshake, and what was learned in it."""

    connection: FramedConnection
    address: Address
    local_address: str
    ticket: bytes


class DialFailed(Struct, frozen=True):
    reason: str
    permanent: bool = False


def begin_connecting(address: Address) -> socket.socket:
    """A non-blocking socket on its way to an address; raises OSError if it cannot leave."""
    sock = socket.socket(address.family, socket.SOCK_STREAM)
    try:
        sock.setblocking(False)
        configure(sock)
        result = sock.connect_ex(address.sockaddr)
        if result not in (0, errno.EINPROGRESS):
            raise OSError(result, os.strerror(result))
    except OSError:
        sock.close()
        raise
    return sock


class DialAttempt:
    """One address being tried. Tells its owner of a challenge, a welcome or a failure."""

    def __init__(self, owner: Dialling, address: Address) -> None:
        self.address = address
        who = owner.identity
        self.handshake = ClientSide(who.job, who.node, who.kind, who.security, who.secret)
        self.connection: FramedConnection | None = None
        self.local_address = ""
        self._owner = owner
        self._loop = owner.loop
        self._tls: TlsHandshake | None = None
        self._socket = begin_connecting(address)
        self._number = self._socket.fileno()
        self._loop.add_writer(self._number, self._on_connected)

    def _on_connected(self) -> None:
        self._loop.remove_writer(self._number)
        try:
            self._require_connected()
        except OSError as error:
            self._fail_to_connect(words_for(error))
            return
        if self._owner.tls is None:
            self._open(self._socket)
        else:
            self._begin_tls(self._owner.tls)

    def _require_connected(self) -> None:
        result = self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if result:
            raise OSError(result, os.strerror(result))
        if self._socket.getsockname() == self._socket.getpeername():
            # With nobody there, the kernel can connect a port of this machine to itself.
            raise OSError(errno.ECONNREFUSED, os.strerror(errno.ECONNREFUSED))
        self.local_address = self._socket.getsockname()[0]

    def _begin_tls(self, context: ssl.SSLContext) -> None:
        from holdfast.transport.tls import TlsHandshake

        self._tls = TlsHandshake(
            self._loop,
            self._socket,
            context,
            on_ready=lambda _, stream: self._open(stream),
            on_failed=lambda _, error: self._fail_to_connect(error.reason),
            dialled=self.address.endpoint.address,
        )

    def _open(self, stream: Stream) -> None:
        self._tls = None
        self.connection = FramedConnection(self._loop, stream, self._on_challenge, self._on_ended)
        self.connection.send(self.handshake.opening())

    def _on_challenge(self, connection: FramedConnection, payload: bytes | bytearray) -> None:
        if self._accepts(self.handshake.read_challenge, payload):
            connection.on_frame = self._on_welcome
            self._owner.on_challenged(self)

    def _on_welcome(self, connection: FramedConnection, payload: bytes | bytearray) -> None:
        if self._accepts(self.handshake.read_welcome, payload):
            connection.allow_frames_up_to(FRAME_LIMIT)
            self._owner.on_welcomed(self)

    def _accepts(self, read: Callable[[Payload], None], payload: Payload) -> bool:
        """Read an answer; when it is a refusal or nonsense, the attempt has failed."""
        try:
            read(payload)
        except ProtocolError as error:
            self.close()
            named = f"{self.address}: {error.reason}"
            self._owner.on_attempt_failed(self, DialFailed(named, error.permanent))
            return False
        return True

    def prove(self) -> None:
        assert self.connection is not None
        self.connection.send(self.handshake.prove())

    def _on_ended(self, connection: FramedConnection, ending: Ending) -> None:
        self._owner.on_attempt_failed(self, DialFailed(f"{self.address}: {ending.reason}"))

    def _fail_to_connect(self, words: str) -> None:
        self.close()
        joint = " " if words.startswith("refused") else ": "
        self._owner.on_attempt_failed(self, DialFailed(f"{self.address}{joint}{words}"))

    def close(self) -> None:
        """Give up without a word."""
        if self.connection is not None:
            self.connection.close()
        elif self._tls is not None:
            self._tls.close()
        elif self._socket.fileno() >= 0:
            self._loop.remove_writer(self._number)
            self._socket.close()


class Dialling:
    """One dial: many attempts, one end."""

    def __init__(
        self,
        loop: Loop,
        identity: Identity,
        on_won: Callable[[Won], None],
        on_failed: Callable[[DialFailed], None],
    ) -> None:
        self.loop, self.identity = loop, identity
        self.tls: ssl.SSLContext | None = None
        self._on_won, self._on_failed = on_won, on_failed
        self._lookups: dict[Endpoint, Lookup] = {}
        self._untried: deque[Address] = deque()
        self._attempts: list[DialAttempt] = []
        self._challenged: deque[DialAttempt] = deque()
        self._proving: DialAttempt | None = None
        self._failures: list[DialFailed] = []
        self._stagger: Cancellable | None = None
        self._timeout: Cancellable | None = None
        self._is_over = False

    def start(
        self, endpoints: Sequence[Endpoint], timeout_s: float, tls: ssl.SSLContext | None
    ) -> None:
        """Begin; never calls back from within."""
        self.tls = tls
        self._timeout = self.loop.call_later(timeout_s, self._on_timeout, timeout_s)
        for endpoint in dict.fromkeys(endpoints):
            addresses = numeric(endpoint)
            if addresses:
                self._untried.extend(addresses)
            else:
                self._lookups[endpoint] = Lookup(self.loop, endpoint, self._on_found)
        self._stagger = self.loop.call_soon(self._try_next)

    def _on_found(self, endpoint: Endpoint, addresses: list[Address]) -> None:
        del self._lookups[endpoint]
        if addresses:
            self._untried.extend(addresses)
        else:
            self._failures.append(DialFailed(sentences.unresolved(endpoint.address)))
        if self._stagger is None:
            self._try_next()

    def _try_next(self) -> None:
        """Start the next attempt, and set the time for the one after it."""
        if self._stagger is not None:
            self._stagger.cancel()
            self._stagger = None
        while self._untried:
            address = self._untried.popleft()
            try:
                self._attempts.append(DialAttempt(self, address))
            except OSError as error:
                self._failures.append(DialFailed(f"{address}: {words_for(error)}"))
                continue
            self._stagger = self.loop.call_later(STAGGER_S, self._try_next)
            return
        if not self._attempts and not self._lookups:
            self._end_in_failure()

    # What attempts tell.

    def on_challenged(self, attempt: DialAttempt) -> None:
        if self._proving is None:
            self._proving = attempt
            attempt.prove()
        else:
            self._challenged.append(attempt)

    def on_welcomed(self, attempt: DialAttempt) -> None:
        connection = attempt.connection
        assert connection is not None
        self._attempts.remove(attempt)
        self.close()
        self._on_won(
            Won(
                connection=connection,
                address=attempt.address,
                local_address=attempt.local_address,
                ticket=attempt.handshake.ticket,
            )
        )

    def on_attempt_failed(self, attempt: DialAttempt, failure: DialFailed) -> None:
        if self._is_over:
            return
        self._failures.append(failure)
        self._attempts.remove(attempt)
        if attempt in self._challenged:
            self._challenged.remove(attempt)
        if attempt is self._proving:
            self._proving = None
            if self._challenged:
                self.on_challenged(self._challenged.popleft())
        self._try_next()

    # The end.

    def _on_timeout(self, timeout_s: float) -> None:
        unresolved = [sentences.unresolved(endpoint.address) for endpoint in self._lookups]
        silent = [sentences.silent(attempt.address) for attempt in self._attempts]
        late = [sentences.within(one, timeout_s) for one in unresolved + silent]
        self._failures += map(DialFailed, late)
        self._end_in_failure()

    def _end_in_failure(self) -> None:
        failures = self._failures or [DialFailed(sentences.NO_ENDPOINT)]
        reason = "; ".join(dict.fromkeys(failure.reason for failure in failures))
        self.close()
        self._on_failed(DialFailed(reason, any(failure.permanent for failure in failures)))

    def close(self) -> None:
        """Give up, silently."""
        self._is_over = True
        for timer in (self._stagger, self._timeout):
            if timer is not None:
                timer.cancel()
        for lookup in self._lookups.values():
            lookup.close()
        for attempt in self._attempts:
            attempt.close()
        self._lookups.clear()
        self._attempts.clear()
        self._untried.clear()
        self._challenged.clear()
