"""The coordinator's end of every connection: who is there, what they say, how they end.

Rules
- Nobody is heard before the handshake is through; nobody who breaks a rule disturbs others:
  it is refused with the reason, disconnected and counted (`rejected`).
- A node has one control connection. A newer one replaces the older, silently; the end of
  the one that counts is told exactly once, as `on_lost`.
- Nothing is ever written on a tether. Its end is *clean* only for an orderly FIN with nothing
  said before it. A node may have several tethers, because processes that it started
  before a reconnection still hold the older one: the end is told when the last of them is
  over, and is clean only if each of those was and the latest connection's is among them:
  a node lets go of the old one when it has a new one, which may arrive later than that.
- A tether that this side lets go of is reset, never ended in order: an orderly end tells the
  node at the other end that all processes here are gone. Others on this machine may hold a
  tether too (`share_tether`); it lasts as long as one of them does.
- A server that is `closed_because` of something says so to every node that dials it.
- A node is told nothing on a connection before its own first word on it: what was decided
  before that word was read is answered by it, and must not follow it (rule 3 of `core.desk`).
- A connection for another job is handed to its `neighbours`, if there are any who take it.
- No decision of the protocol is made here, and no name is resolved.

How it works: every connection starts at `_on_opening`; what it opened as decides which
method gets its frames. A node is known by its control connection from the moment its proof
was accepted, and its first message follows.
"""

from __future__ import annotations

import os
import socket
from collections import Counter
from typing import TYPE_CHECKING, Protocol

from msgspec import Struct
from msgspec.structs import replace

from holdfast.control.auth import Security
from holdfast.control.connection import Connection, Ending, Loop, Stream
from holdfast.control.frames import FRAME_LIMIT, ProtocolError, encode_order, from_node
from holdfast.control.handshake import NONCE_BYTES, Opening, ServerSide, job_of
from holdfast.control.listener import (
    PATIENCE_WHEN_FULL_S,
    Handshakes,
    Listener,
    connection_limit,
    listening_socket,
)
from holdfast.core.messages import FromNode, ToNode
from holdfast.core.model import Endpoint, Tenure

if TYPE_CHECKING:
    from holdfast.control.sharing import Neighbours
    from holdfast.control.tls import Arrival

TICKET_BYTES = 16
_SURE, _UNSURE = b"\0", b"\1"


class Handlers(Protocol):
    """What the coordinator wants to know. None of it is called from within `send`."""

    def on_message(self, node: str, message: FromNode) -> None: ...
    def on_lost(self, node: str, reason: str) -> None: ...
    def on_tether(self, node: str) -> None: ...
    def on_tether_ended(self, node: str, clean: bool) -> None: ...


class StoreService(Protocol):
    """Who serves connections of the kind "store": `require` says why not, if not."""

    def require(self, round: int) -> None: ...
    def admit(self, connection: Connection, round: int) -> None: ...
    def ended(self, connection: Connection) -> None: ...


class Tethers(Struct):
    """The tethers of one node."""

    open: set[Connection]
    latest: Connection
    all_clean: bool = True


class Server:
    """Serves one job. All calls and callbacks are on the loop's thread."""

    def __init__(
        self,
        loop: Loop,
        job: str,
        security: Security,
        handlers: Handlers,
        store: StoreService | None = None,
    ) -> None:
        self._loop, self._handlers, self._store = loop, handlers, store
        self.nonce = _SURE + os.urandom(NONCE_BYTES - 1)
        """By which two hosts of one endpoint tell who gives way (`looking`)."""
        self.rejected: Counter[str] = Counter()
        self.closed_because = ""
        """Why nodes are not admitted now, if they are not."""
        self.neighbours: Neighbours | None = None
        self._job = job
        self._side = ServerSide(job, security, self.nonce)
        self._tls = None
        if security.tls is not None:
            from holdfast.control.tls import server_context

            self._tls = server_context(security.tls)
        self._listeners: list[Listener] = []
        self._handshakes = Handshakes(loop)
        self._limit = connection_limit()
        self._connections: set[Connection] = set()
        self._arrivals: set[Arrival] = set()
        self._controls: dict[str, Connection] = {}
        self._tethers: dict[str, Tethers] = {}
        self._tickets: dict[bytes, str] = {}
        self._heard: set[str] = set()
        """Nodes that have said something on their latest connection."""
        self._untethered: set[str] = set()
        """Nodes whose latest connection has brought no tether yet."""

    # What the owner does.

    def listen(self, where: socket.socket | tuple[str, int]) -> None:
        """Accept on a socket, or on a numeric address and port; raises OSError if it cannot."""
        sock = where if isinstance(where, socket.socket) else listening_socket(*where)
        self._listeners.append(Listener(self._loop, sock, self._on_accepted, self._has_room))

    def adopt(self, sock: socket.socket, opening: bytes) -> None:
        """Serve a connection whose opening somebody else has read."""
        sock.setblocking(False)
        connection = self._begin(sock)
        try:
            self._on_opening(connection, opening)
        except ProtocolError as error:
            connection.refuse(error)

    def give_way_to_the_sure(self) -> None:
        """This host may not be the one that is meant. To be said before anybody is served."""
        self.nonce = _UNSURE + self.nonce[1:]
        self._side = replace(self._side, identity=self.nonce)

    @property
    def addresses(self) -> tuple[Endpoint, ...]:
        return tuple(Endpoint(*listener.address) for listener in self._listeners)

    @property
    def nodes(self) -> frozenset[str]:
        """Who has a control connection now."""
        return frozenset(self._controls)

    def is_connected(self, node: str) -> bool:
        return node in self._controls

    def send(self, node: str, tenure: Tenure, message: ToNode) -> bool:
        """Send to a node under a tenure; whether it has a connection on which it has spoken.

        Raises `MessageTooLarge` where no frame can hold the message.
        """
        connection = self._controls.get(node)
        if connection is None or node not in self._heard:
            return False
        connection.send(encode_order(tenure, message))
        return True

    def drop(self, node: str) -> None:
        """Close all connections of a node; nothing more is told about them."""
        control = self._controls.pop(node, None)
        if control is not None:
            self._tickets.pop(control.state, None)
            self._discard(control)
        tethers = self._tethers.pop(node, None)
        for tether in tethers.open if tethers is not None else ():
            self._discard(tether)

    def share_tether(self, node: str) -> int | None:
        """A descriptor of the node's tether that somebody else on this machine can hold."""
        tethers = self._tethers.get(node)
        if tethers is None or tethers.latest not in tethers.open:
            return None
        return tethers.latest.duplicate()

    def dismiss(self) -> None:
        """Close all connections, silently, and go on listening."""
        for connection in list(self._connections):
            self._discard(connection)
        self._controls.clear()
        self._tethers.clear()
        self._tickets.clear()

    def close(self) -> None:
        """Close everything; nothing is told."""
        for listener in self._listeners:
            listener.close()
        self._listeners.clear()
        self._handshakes.close()
        self.dismiss()
        for arrival in self._arrivals:
            arrival.close()
        self._arrivals.clear()

    # Newcomers.

    def _has_room(self) -> bool:
        if len(self._connections) + len(self._arrivals) < self._limit:
            return True
        self.rejected["no room"] += 1
        self._handshakes.give_up_older_than(PATIENCE_WHEN_FULL_S)
        return False

    def _on_accepted(self, sock: socket.socket) -> None:
        if self._tls is None:
            self._begin(sock)
            return
        from holdfast.control.tls import Arrival

        arrival = Arrival(self._loop, sock, self._tls, self._on_arrived, self._on_not_arrived)
        self._arrivals.add(arrival)
        self._handshakes.watch(arrival)

    def _on_arrived(self, arrival: Arrival, stream: Stream, is_secure: bool) -> None:
        self._arrivals.discard(arrival)
        connection = self._begin(stream)
        if not is_secure:
            connection.on_frame = self._on_insecure_opening

    def _on_not_arrived(self, arrival: Arrival, error: ProtocolError) -> None:
        self._arrivals.discard(arrival)
        self.rejected[error.kind] += 1

    def _begin(self, stream: Stream) -> Connection:
        connection = Connection(self._loop, stream, self._on_opening, self._on_stranger_ended)
        self._connections.add(connection)
        self._handshakes.watch(connection)
        return connection

    def _on_stranger_ended(self, connection: Connection, ending: Ending) -> None:
        self._forget(connection, ending)

    def _forget(self, connection: Connection, ending: Ending) -> None:
        self._connections.discard(connection)
        if ending.kind:
            self.rejected[ending.kind] += 1

    def _discard(self, connection: Connection) -> None:
        if connection.kind in ("control", "store"):
            connection.close()
        else:
            connection.reset()  # A tether, or one that has not said yet that it is.
        self._connections.discard(connection)

    # The handshake.

    def _on_insecure_opening(self, connection: Connection, payload: bytes | bytearray) -> None:
        """Without TLS, where TLS is demanded, only a tether may come."""
        opening = self._side.read_opening(payload)
        if opening.kind != "tether":
            raise ProtocolError("tls", "this coordinator demands TLS")
        self._admit_tether(connection, opening)

    def _on_opening(self, connection: Connection, payload: bytes | bytearray) -> None:
        if self._is_handed_over(connection, payload):
            return
        opening = self._side.read_opening(payload)
        if opening.kind == "tether":
            self._admit_tether(connection, opening)
            return
        if self.closed_because:
            raise ProtocolError("closed", self.closed_because, permanent=False)
        nonce = os.urandom(NONCE_BYTES)
        connection.state = (opening, nonce)
        connection.on_frame = self._on_proof
        connection.send(self._side.challenge(nonce))

    def _is_handed_over(self, connection: Connection, payload: bytes | bytearray) -> bool:
        if self.neighbours is None or (job := job_of(payload)) in ("", self._job):
            return False
        descriptor = connection.duplicate()
        try:
            is_taken = self.neighbours.hand_over(job, descriptor, bytes(payload))
        finally:
            os.close(descriptor)
        if is_taken:
            connection.close()  # Ours alone: the other's descriptor keeps it.
            self._connections.discard(connection)
        return is_taken

    def _on_proof(self, connection: Connection, payload: bytes | bytearray) -> None:
        opening, nonce = connection.state
        proven = self._side.read_proof(payload, opening, nonce)
        if opening.kind == "store":
            self._require_store(opening.round)
        ticket = os.urandom(TICKET_BYTES) if opening.kind == "control" else b""
        connection.state = ticket
        connection.allow_frames_up_to(FRAME_LIMIT)
        connection.send(self._side.welcome(proven, ticket))
        if opening.kind == "control":
            self._admit_control(connection, opening.node)
        else:
            self._admit_store(connection, opening)

    # Control connections.

    def _admit_control(self, connection: Connection, node: str) -> None:
        older = self._controls.get(node)
        if older is not None:
            self._tickets.pop(older.state, None)
            self._discard(older)
        connection.kind, connection.node = "control", node
        connection.on_frame, connection.on_ended = self._on_word, self._on_control_ended
        self._controls[node] = connection
        self._tickets[connection.state] = node
        self._heard.discard(node)
        self._untethered.add(node)

    def _on_word(self, connection: Connection, payload: bytes | bytearray) -> None:
        message = from_node.decode(payload)
        self._heard.add(connection.node)
        self._handlers.on_message(connection.node, message)

    def _on_control_ended(self, connection: Connection, ending: Ending) -> None:
        self._forget(connection, ending)
        self._tickets.pop(connection.state, None)
        if self._controls.get(connection.node) is connection:
            del self._controls[connection.node]
            self._handlers.on_lost(connection.node, ending.reason)

    # Tethers.

    def _admit_tether(self, connection: Connection, opening: Opening) -> None:
        connection.kind, connection.node = "tether", opening.node
        if self._tickets.get(opening.ticket) != opening.node:
            raise ProtocolError("ticket", "the tether's ticket is not valid")
        del self._tickets[opening.ticket]
        self._untethered.discard(opening.node)
        connection.on_frame, connection.on_ended = self._on_tether_spoke, self._on_tether_ended
        tethers = self._tethers.get(opening.node)
        if tethers is None:
            self._tethers[opening.node] = Tethers({connection}, connection)
        else:
            tethers.open.add(connection)
            tethers.latest = connection
        self._handlers.on_tether(opening.node)

    def _on_tether_spoke(self, connection: Connection, payload: bytes | bytearray) -> None:
        raise ProtocolError("garbage", "a tether has nothing to say")

    def _on_tether_ended(self, connection: Connection, ending: Ending) -> None:
        self._forget(connection, ending)
        tethers = self._tethers.get(connection.node)
        if tethers is None or connection not in tethers.open:
            return
        tethers.open.discard(connection)
        tethers.all_clean = tethers.all_clean and ending.clean
        if not tethers.open:
            del self._tethers[connection.node]
            is_proof = tethers.all_clean and connection.node not in self._untethered
            self._handlers.on_tether_ended(connection.node, is_proof)

    # Store connections.

    def _require_store(self, round: int) -> None:
        if self._store is None:
            raise ProtocolError("store", "this coordinator serves no store")
        self._store.require(round)

    def _admit_store(self, connection: Connection, opening: Opening) -> None:
        assert self._store is not None, "it was asked for before the welcome"
        connection.kind, connection.node = "store", opening.node
        connection.on_ended = self._on_store_ended
        self._store.admit(connection, opening.round)

    def _on_store_ended(self, connection: Connection, ending: Ending) -> None:
        self._forget(connection, ending)
        if self._store is not None:
            self._store.ended(connection)
