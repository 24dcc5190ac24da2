"""The coordinator's end of every connection: admitting nodes, their messages, their end.

Rules
- Nobody is heard before the handshake is through; nobody who breaks a rule disturbs others:
  it is refused with the reason, disconnected and counted (`rejected`).
- Which connection of a node counts, and what the end of its tethers proves, is in `roster`.
- Nothing is ever written on a tether. Its end is *clean* only for an orderly FIN with nothing
  said before it.
- A tether that this side lets go of is reset, never ended in order: an orderly end tells the
  node at the other end that all processes here are gone. Others on this machine may hold a
  tether too (`share_tether`); it lasts as long as one of them does.
- A server that is `closed_because` of something says so to every node that dials it.
- A name belongs to the node that was admitted with it first, which shows the same seal each time it
  comes. The name of this host's own node never comes from the network.
- With TLS there are no tethers (`tls`).
- A connection for another job is handed to that job's host on this machine (`sharing`).
- What peers cost is bounded (`buffers`, `listener`, `peers`): memory, the time until a handshake,
  a first word and a message come, connections of one address and of the store, a node's tethers.
- An admin client is no node: it asks (`admin.sessions`), also where no node is admitted, and holds
  nothing.
- No decision of the protocol is made here, and no name is resolved.

How it works: every connection starts at `_on_opening`; what it opened as decides which
method gets its frames. A node is known by its control connection from the moment its proof
was accepted, and its first message follows.
"""

from __future__ import annotations

import os
import socket
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Protocol

from holdfast.core.protocol.messages import FromNode, NodeGreeted, ToNode
from holdfast.core.protocol.model import Endpoint, Term
from holdfast.runtime import descriptors
from holdfast.runtime.loop import Loop
from holdfast.transport.auth import ConnectionSecurity, Proven, is_same
from holdfast.transport.buffers import PeerBuffers
from holdfast.transport.connection import Ending, FramedConnection, Stream
from holdfast.transport.frames import FRAME_LIMIT, ProtocolError, encode_order, from_node
from holdfast.transport.handshake import NONCE_BYTES, Opening, ServerSide, job_of
from holdfast.transport.listener import (
    PATIENCE_WHEN_FULL_S,
    Listener,
    greetings,
    handshakes,
    listening_socket,
)
from holdfast.transport.peers import Brake, Crowd, peer_of
from holdfast.transport.roster import Roster

if TYPE_CHECKING:
    from holdfast.transport.sharing import EndpointShare
    from holdfast.transport.tls import TlsHandshake

TICKET_BYTES = 16
SEALS_KEPT = 1 << 16
"""Names whose first user is known: more than nodes that a host could serve."""
TETHERS_OF_A_NODE = 16
CLIENTS_MOST = 64
SHARE_OF_STORE = 1 / 2
"""The share of connections that those to the store may take."""


class ExchangeHandlers(Protocol):
    """Callbacks of a coordinator, about admitted nodes. Never called from within `send`."""

    def on_message(self, node: str, message: FromNode) -> None: ...
    def on_lost(self, node: str, reason: str) -> None: ...
    def on_tether(self, node: str) -> None: ...
    def on_tether_ended(self, node: str, clean: bool) -> None: ...


class StoreService(Protocol):
    """Serves connections of the kind "store"; `require` gives the reason if they are refused."""

    def require(self, round: int) -> None: ...
    def admit(self, connection: FramedConnection, round: int) -> None: ...
    def ended(self, connection: FramedConnection) -> None: ...


class AdminService(Protocol):
    """Serves connections of the kind "admin": clients with requests about the job."""

    def admit(self, connection: FramedConnection) -> None: ...
    def ended(self, connection: FramedConnection) -> None: ...


class Server:
    """Serves one job. All calls and callbacks are on the loop's thread."""

    def __init__(
        self,
        loop: Loop,
        job: str,
        security: ConnectionSecurity,
        handlers: ExchangeHandlers,
        store: StoreService | None = None,
    ) -> None:
        self._loop, self._handlers, self._store = loop, handlers, store
        self.rejected: Counter[str] = Counter()
        self.closed_because = ""
        """Why nodes are not admitted now, if they are not."""
        self.neighbours: EndpointShare | None = None
        """Hands connections for other jobs over, where the port is shared."""
        self.admin: AdminService | None = None
        self.own_node = ""
        """The node that this server lives on, which speaks to it without a connection."""
        self._job = job
        self._side = ServerSide(job, security, os.urandom(NONCE_BYTES))
        self._tls = None
        if security.tls is not None:
            from holdfast.transport.tls import server_context

            self._tls = server_context(security.tls)
        self._listeners: list[Listener] = []
        self._handshakes, self._greetings = handshakes(loop), greetings(loop)
        self._limit = descriptors.most("control")
        self.buffers = PeerBuffers(loop)
        self._crowd, self._brake = Crowd(), Brake()
        self._connections: set[FramedConnection] = set()
        self._arrivals: dict[TlsHandshake, str] = {}
        """Connections in TLS's own handshake, and where they come from."""
        self._admitted: Counter[str] = Counter()
        """The number of connections of each kind."""
        self._roster: Roster[FramedConnection] = Roster()
        self._tickets: dict[bytes, str] = {}
        self._seals: dict[str, bytes] = {}
        """The seal with which each name was used first."""

    # What the owner does.

    def listen(self, where: socket.socket | tuple[str, int]) -> None:
        """Accept on a socket, or as `listening_socket` says; raises OSError if it cannot."""
        sock = where if isinstance(where, socket.socket) else listening_socket(*where)
        self._listeners.append(Listener(self._loop, sock, self._on_accepted, self._has_room))

    def adopt(self, sock: socket.socket, opening: bytes) -> None:
        """Serve a connection whose opening somebody else has read."""
        sock.setblocking(False)
        connection = self._begin(sock, peer_of(sock))
        try:
            self._on_opening(connection, opening)
        except ProtocolError as error:
            connection.refuse(error)

    @property
    def addresses(self) -> tuple[Endpoint, ...]:
        return tuple(Endpoint(*listener.address) for listener in self._listeners)

    @property
    def nodes(self) -> frozenset[str]:
        """Nodes with a control connection now."""
        return self._roster.nodes

    def send(self, node: str, term: Term, message: ToNode) -> bool:
        """Send to a node under a term; whether it has a connection on which it has spoken.

        Raises `MessageTooLarge` where no frame can hold the message.
        """
        connection = self._roster.listener(node)
        if connection is None:
            return False
        connection.send(encode_order(term, message))
        return True

    def drop(self, node: str) -> None:
        """Close all connections of a node; nothing more is told about them."""
        control, tethers = self._roster.drop(node)
        if control is not None:
            self._tickets.pop(control.state, None)
            self._discard(control)
        for tether in tethers:
            self._discard(tether)

    def refuse(self, node: str, kind: str, reason: str) -> None:
        """Tell a node why, hang up on it, and count that. It may come again."""
        control = self._roster.control(node)
        if control is not None:
            control.refuse(ProtocolError(kind, reason, permanent=False))

    def share_tether(self, node: str) -> int | None:
        """A descriptor of the node's tether that somebody else on this machine can hold."""
        tether = self._roster.latest_tether(node)
        return tether.duplicate() if tether is not None else None

    def dismiss(self) -> None:
        """Close all connections, silently, and go on listening."""
        for connection in list(self._connections):
            self._discard(connection)
        self._roster.clear()
        self._tickets.clear()

    def close(self) -> None:
        """Close everything; nothing is told."""
        for listener in self._listeners:
            listener.close()
        self._listeners.clear()
        self._handshakes.close()
        self._greetings.close()
        self.dismiss()
        self.buffers.close()
        for arrival in self._arrivals:
            arrival.close()
        self._arrivals.clear()

    # Newcomers.

    def _has_room(self) -> bool:
        if len(self._connections) + len(self._arrivals) < self._limit:
            return True
        self.rejected["no room"] += 1
        self._handshakes.give_up_older_than(PATIENCE_WHEN_FULL_S)
        self._greetings.give_up_older_than(PATIENCE_WHEN_FULL_S)
        return False

    def _on_accepted(self, sock: socket.socket) -> None:
        address = peer_of(sock)
        if self._tls is None:
            self._begin(sock, address)
            return
        from holdfast.transport.tls import TlsHandshake

        arrival = TlsHandshake(self._loop, sock, self._tls, self._on_arrived, self._on_not_arrived)
        self._arrivals[arrival] = address
        self._handshakes.watch(arrival)

    def _on_arrived(self, arrival: TlsHandshake, stream: Stream) -> None:
        self._handshakes.settled(arrival)
        connection = self._begin(stream, self._arrivals.pop(arrival))
        if isinstance(stream, socket.socket):
            connection.on_frame = self._on_insecure_opening

    def _on_not_arrived(self, arrival: TlsHandshake, error: ProtocolError) -> None:
        self._handshakes.settled(arrival)
        self._arrivals.pop(arrival, None)
        self.rejected[error.kind] += 1

    def _begin(self, stream: Stream, address: str) -> FramedConnection:
        connection = FramedConnection(self._loop, stream, self._on_opening, self._forget)
        connection.buffers, connection.address = self.buffers, address
        self._connections.add(connection)
        self._handshakes.watch(connection)
        return connection

    def _forget(self, connection: FramedConnection, ending: Ending) -> None:
        self._let_go_of(connection)
        if ending.kind:
            self.rejected[ending.kind] += 1

    def _discard(self, connection: FramedConnection) -> None:
        if connection.kind in ("control", "store", "admin"):
            connection.close()
        else:
            connection.reset()  # A tether, or one that has not said yet that it is.
        self._let_go_of(connection)

    def _let_go_of(self, connection: FramedConnection) -> None:
        """It is closed: nothing of it is left here."""
        if connection not in self._connections:
            return
        self._connections.discard(connection)
        if connection.kind:
            self._crowd.remove(connection.address)
            self._admitted[connection.kind] -= 1
        self._handshakes.settled(connection)
        self._greetings.settled(connection)

    # The handshake.

    def _on_insecure_opening(
        self, connection: FramedConnection, payload: bytes | bytearray
    ) -> None:
        self._side.read_opening(payload)
        raise ProtocolError("tls", "this coordinator requires TLS")

    def _on_opening(self, connection: FramedConnection, payload: bytes | bytearray) -> None:
        if self._is_handed_over(connection, payload):
            return
        opening = self._side.read_opening(payload)
        if opening.kind == "tether":
            self._admit_tether(connection, opening)
            return
        if self.closed_because and opening.kind != "admin":
            raise ProtocolError("closed", self.closed_because, permanent=False)
        nonce = os.urandom(NONCE_BYTES)
        connection.state = (opening, nonce)
        connection.on_frame = self._on_proof
        connection.send(self._side.challenge(nonce))

    def _is_handed_over(self, connection: FramedConnection, payload: bytes | bytearray) -> bool:
        if self.neighbours is None or (job := job_of(payload)) in ("", self._job):
            return False
        try:
            descriptor = connection.duplicate()
        except OSError:
            raise ProtocolError("no room", "no descriptor is left", permanent=False) from None
        try:
            is_taken = self.neighbours.hand_over(job, descriptor, bytes(payload))
        finally:
            os.close(descriptor)
        if is_taken:
            connection.close()  # Ours alone: the other's descriptor keeps it.
            self._let_go_of(connection)
        return is_taken

    def _on_proof(self, connection: FramedConnection, payload: bytes | bytearray) -> None:
        opening, nonce = connection.state
        delay_s = self._brake.delay_s(connection.address)
        try:
            proven, seal = self._side.read_proof(payload, opening, nonce)
        except ProtocolError as error:
            self._brake.wrong_token(connection.address)
            answer: Callable[[], None] = partial(connection.refuse, error)
        else:
            answer = partial(self._admit, connection, opening, proven, seal)
        if delay_s:
            connection.on_frame = self._on_spoke_out_of_turn
            self._loop.call_later(delay_s, answer)
        else:
            answer()

    def _on_spoke_out_of_turn(
        self, connection: FramedConnection, payload: bytes | bytearray
    ) -> None:
        raise ProtocolError("garbage", "something was said before the welcome")

    def _admit(
        self, connection: FramedConnection, opening: Opening, proven: Proven, seal: bytes
    ) -> None:
        if not connection.is_open:
            return  # It did not wait for the answer.
        try:
            self._crowd.require_room_for(connection.address, self._limit)
            if opening.kind == "control":
                self._require_name(opening.node, seal)
            if opening.kind == "store":
                self._require_store(opening.round)
            if opening.kind == "admin":
                self._require_admin()
        except ProtocolError as error:
            connection.refuse(error)
            return
        ticket = os.urandom(TICKET_BYTES) if opening.kind == "control" else b""
        connection.state = ticket
        connection.allow_frames_up_to(FRAME_LIMIT)
        connection.send(self._side.welcome(proven, ticket))
        self._handshakes.settled(connection)
        self._greetings.watch(connection)
        if opening.kind == "control":
            self._admit_control(connection, opening.node)
        elif opening.kind == "admin":
            self._admit_client(connection, opening)
        else:
            self._admit_store(connection, opening)

    def _count(self, connection: FramedConnection, kind: str, node: str) -> None:
        """It is known from here on for what it came, and it counts."""
        connection.kind, connection.node = kind, node
        self._crowd.add(connection.address)
        self._admitted[kind] += 1

    # Control connections.

    def _require_name(self, node: str, seal: bytes) -> None:
        """Raises `ProtocolError` where the name is another's."""
        known = self._seals.get(node)
        if node == self.own_node or (known is not None and not is_same(seal, known)):
            # Not for good: the node with that name may be gone under the next coordinator.
            raise ProtocolError("name", f"the name {node} is another node's", permanent=False)
        if known is None and len(self._seals) >= SEALS_KEPT:
            self._forget_a_seal()
        self._seals[node] = seal

    def _forget_a_seal(self) -> None:
        """The oldest of those who are not here, if there is one."""
        absent = (node for node in self._seals if node not in self._roster)
        oldest = next(absent, None)
        if oldest is not None:
            del self._seals[oldest]

    def _admit_control(self, connection: FramedConnection, node: str) -> None:
        older = self._roster.admit(node, connection)
        if older is not None:
            self._tickets.pop(older.state, None)
            self._discard(older)
        self._count(connection, "control", node)
        connection.on_frame, connection.on_ended = self._on_word, self._on_control_ended
        if self._tls is None:
            self._tickets[connection.state] = node

    def _on_word(self, connection: FramedConnection, payload: bytes | bytearray) -> None:
        message = from_node.decode(payload)
        if isinstance(message, NodeGreeted):
            self._greetings.settled(connection)
        self._roster.spoke(connection.node)
        self._handlers.on_message(connection.node, message)

    def _on_control_ended(self, connection: FramedConnection, ending: Ending) -> None:
        self._forget(connection, ending)
        self._tickets.pop(connection.state, None)
        if self._roster.ended(connection.node, connection):
            self._handlers.on_lost(connection.node, ending.reason)

    # Tethers.

    def _admit_tether(self, connection: FramedConnection, opening: Opening) -> None:
        self._count(connection, "tether", opening.node)
        if self._tickets.get(opening.ticket) != opening.node:
            raise ProtocolError("ticket", "the tether's ticket is not valid")
        if self._roster.tethers(opening.node) >= TETHERS_OF_A_NODE:
            raise ProtocolError("no room", "the node has too many tethers")
        del self._tickets[opening.ticket]
        self._handshakes.settled(connection)
        connection.on_frame, connection.on_ended = self._on_tether_spoke, self._on_tether_ended
        self._roster.tether(opening.node, connection)
        self._handlers.on_tether(opening.node)

    def _on_tether_spoke(self, connection: FramedConnection, payload: bytes | bytearray) -> None:
        raise ProtocolError("garbage", "a tether has nothing to say")

    def _on_tether_ended(self, connection: FramedConnection, ending: Ending) -> None:
        self._forget(connection, ending)
        is_proof = self._roster.tether_ended(connection.node, connection, ending.clean)
        if is_proof is not None:
            self._handlers.on_tether_ended(connection.node, is_proof)

    # Store connections.

    def _require_store(self, round: int) -> None:
        if self._store is None:
            raise ProtocolError("store", "this coordinator serves no store")
        self._store.require(round)
        if (taken := self._admitted["store"]) >= self._limit * SHARE_OF_STORE:
            reason = f"the store has {taken} connections, and room for no more"
            raise ProtocolError("no room", reason, permanent=False)

    def _admit_store(self, connection: FramedConnection, opening: Opening) -> None:
        assert self._store is not None, "it was asked for before the welcome"
        self._count(connection, "store", opening.node)
        connection.on_ended = self._on_store_ended
        self._store.admit(connection, opening.round)
        connection.on_frame = partial(self._on_first_request, connection.on_frame)

    def _on_first_request(
        self,
        serve: Callable[[FramedConnection, bytes | bytearray], None],
        connection: FramedConnection,
        payload: bytes | bytearray,
    ) -> None:
        self._greetings.settled(connection)
        connection.on_frame = serve
        serve(connection, payload)

    def _on_store_ended(self, connection: FramedConnection, ending: Ending) -> None:
        self._forget(connection, ending)
        if self._store is not None:
            self._store.ended(connection)

    # Admin clients.

    def _require_admin(self) -> None:
        if self.admin is None:
            raise ProtocolError("admin", "this job answers no requests")
        if (taken := self._admitted["admin"]) >= CLIENTS_MOST:
            reason = f"{taken} others look at this job already: try again later"
            raise ProtocolError("no room", reason, permanent=False)

    def _admit_client(self, connection: FramedConnection, opening: Opening) -> None:
        assert self.admin is not None, "it was asked for before the welcome"
        self._count(connection, "admin", opening.node)
        self._greetings.settled(connection)  # There are few, and they may look for long.
        connection.on_ended = self._on_client_ended
        self.admin.admit(connection)

    def _on_client_ended(self, connection: FramedConnection, ending: Ending) -> None:
        self._forget(connection, ending)
        if self.admin is not None:
            self.admin.ended(connection)
