"""Several jobs behind one endpoint: each has its own coordinator, and all listen on its port.

Rules
1. The host of a job's coordinator has the *claim* on that job and port. There is one on a machine,
   so a second node that is to host finds it taken, and dials like any other.
2. Hosts bind the port with `SO_REUSEPORT`. The kernel deals connections out among them, and lets
   only processes of one user share a port.
3. A connection whose opening names another job is handed, with its opening, to the process that
   has that job's claim: it is the very socket, and nobody stands in between from then on.
4. Claims of other users do not count. Where another user, or a program that does not answer, has
   the name of a claim, the job's port is not shared.
5. TLS begins before the opening, and the job it is for is not known then: with it, a job needs a
   port of its own.
6. A process that is forked from this one keeps no claim.

How it works: a claim is the name of a Unix socket without a file, which the kernel gives to one
process at a time, for as long as it lives, and which means this machine's network, as a port does.
(A file would be left behind by a kill, and would be another one in each container that has a
`/tmp` of its own, where the port is the same.) Any user can take any name first; hence rule 4.
"""

from __future__ import annotations

import errno
import hashlib
import os
import socket
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING

from holdfast.core.protocol.errors import UsageError
from holdfast.core.protocol.model import Endpoint
from holdfast.runtime.local_peer import peer_of
from holdfast.runtime.loop import Loop
from holdfast.transport import sentences
from holdfast.transport.frames import HANDSHAKE_LIMIT
from holdfast.transport.own_endpoint import cannot_listen, try_to_host
from holdfast.transport.resolving import Address

if TYPE_CHECKING:
    from holdfast.transport.server import Server

BACKLOG = 512

_claims: weakref.WeakSet[socket.socket] = weakref.WeakSet()


def _close_claims() -> None:
    for sock in list(_claims):
        sock.close()


os.register_at_fork(after_in_child=_close_claims)


class NameTaken(OSError):
    """The name of a claim is taken, and not by this user as far as can be seen."""

    def __init__(self, holder: str) -> None:
        super().__init__(errno.EADDRINUSE, holder)
        self.holder = holder
        """The process that has it, in words."""


class EndpointShare:
    """The right to host a job's coordinator at an endpoint. On the loop's thread only."""

    def __init__(
        self,
        endpoint: Endpoint,
        job: str,
        listening: socket.socket,
        claim: socket.socket | None,
        note: str,
    ) -> None:
        self._endpoint, self._job = endpoint, job
        self._listening, self._claim = listening, claim
        self._note = note
        self._is_serving = False
        self._inlets: set[socket.socket] = set()
        """Lines on which connections are handed in."""

    def serve(self, loop: Loop, server: Server, say: Callable[[str], None]) -> None:
        """Let the server have all connections for its job. Raises `UsageError` if it cannot."""
        self._loop, self._server = loop, server
        try:
            server.listen(self._listening)
        except OSError as error:
            raise cannot_listen(self._endpoint, error) from None
        self._is_serving = True
        if self._note:
            say(self._note)
        if self._claim is not None:
            server.neighbours = self
            loop.add_reader(self._claim.fileno(), self._on_claim_visited, self._claim)

    # Connections for other jobs.

    def hand_over(self, job: str, descriptor: int, opening: bytes) -> bool:
        """Hand a connection to the host of a job; whether there is one here.

        The descriptor stays the caller's.
        """
        try:
            with _connected(_claim_on(self._endpoint.port, job)) as line:
                socket.send_fds(line, [opening], [descriptor])
        except OSError:
            return False
        return True

    # Connections that are handed in.

    def _on_claim_visited(self, claim: socket.socket) -> None:
        try:
            inlet, _ = claim.accept()
        except OSError:
            return
        inlet.setblocking(False)
        self._inlets.add(inlet)
        if peer_of(inlet).is_of_this_user:
            self._loop.add_reader(inlet.fileno(), self._on_handed_in, inlet)
        else:
            self._drop(inlet)

    def _on_handed_in(self, inlet: socket.socket) -> None:
        try:
            opening, descriptors, _, _ = socket.recv_fds(inlet, HANDSHAKE_LIMIT, 1)
        except BlockingIOError:
            return
        except OSError:
            opening, descriptors = b"", []
        self._drop(inlet)
        for descriptor in descriptors:
            self._server.adopt(socket.socket(fileno=descriptor), opening)

    def _drop(self, sock: socket.socket) -> None:
        self._inlets.discard(sock)
        if self._is_serving:
            self._loop.remove_reader(sock.fileno())
        sock.close()

    def close(self) -> None:
        """Give up the claim; the server closes its connections itself."""
        for sock in tuple(self._inlets):
            self._drop(sock)
        if not self._is_serving:
            self._listening.close()
        if self._claim is not None:
            self._drop(self._claim)
            self._claim = None


def take_share(
    endpoint: Endpoint,
    job: str,
    is_host: bool | None,
    may_share: bool,
    addresses: list[Address] | None = None,
) -> EndpointShare | None:
    """The right to host a job's coordinator at an endpoint; None where it is another's.

    `may_share` is whether other jobs may listen on the port too. `addresses` are the endpoint's:
    without them its name is looked up. Raises `UsageError` when hosting is demanded or due, and
    the port cannot be had.
    """
    claim, others, note = None, None, ""
    if endpoint.port:
        try:
            claim = _taken(_claim_on(endpoint.port, job))
        except NameTaken as taken:
            note = sentences.not_shared(endpoint, taken.holder)
        except OSError:
            pass  # A system without such names.
        else:
            if claim is None:
                return None  # A node of the same job hosts it, on this machine.
            others = _other_jobs(endpoint.port, job) if may_share else None
    if others:
        note = sentences.serves_others(endpoint, others)
    listening = None
    try:
        listening = try_to_host(endpoint, is_host, addresses, others)
    except UsageError as error:
        raise UsageError(f"{error}; {note}" if note else str(error), error.hint) from None
    finally:
        if listening is None and claim is not None:
            claim.close()
    return None if listening is None else EndpointShare(endpoint, job, listening, claim, note)


# Claims, which are names of Unix sockets.


def _claim_on(port: int, job: str) -> str:
    return _claims_on(port) + hashlib.sha256(job.encode()).hexdigest()[:32]


def _claims_on(port: int) -> str:
    return f"\0holdfast/{os.getuid()}/{port}/job/"


def _other_jobs(port: int, job: str) -> int:
    """How many other jobs of this user are hosted on a port, or about to be."""
    prefix, own = (name.replace("\0", "@") for name in (_claims_on(port), _claim_on(port, job)))
    try:
        with open("/proc/net/unix", encoding="utf-8", errors="replace") as file:
            names = {line.split()[-1] for line in file}
    except OSError:
        return 0
    return len({name for name in names if name.startswith(prefix)} - {own})


def _unix_socket() -> socket.socket:
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    sock.setblocking(False)
    return sock


def _taken(name: str) -> socket.socket | None:
    """A socket that listens under a name; None where another of this user does.

    Raises `NameTaken`, or another `OSError` where there are no such names.
    """
    sock = _unix_socket()
    try:
        sock.bind(name)
        sock.listen(BACKLOG)
    except OSError as error:
        sock.close()
        if error.errno != errno.EADDRINUSE:
            raise
        _connected(name).close()
        return None
    _claims.add(sock)
    return sock


def _connected(name: str) -> socket.socket:
    """A line to the process of this user that has a name. Raises `NameTaken`."""
    sock = _unix_socket()
    try:
        sock.connect(name)
    except OSError:
        sock.close()
        raise NameTaken(sentences.HOLDER_SILENT) from None
    if (holder := peer_of(sock)).is_of_this_user:
        return sock
    sock.close()
    raise NameTaken(sentences.holder(holder.uid))
