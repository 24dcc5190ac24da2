"""Several jobs behind one endpoint: each carries its own coordinator, one of them holds the port.

Rules
1. Whoever carries a job's coordinator on this machine has the *claim* on that job and port. There
   is one, so a second node that is to host finds it taken, and dials like any other.
2. Whoever holds the port has its *door*. A connection whose opening names another job is handed
   in, with its opening, where that job's claim is: it is the very socket, and nobody stands in
   between from then on.
3. A carrier that finds the port taken lodges behind its door. When the door closes, it takes the
   port itself, or lodges with whoever was faster. Connections that it has are not affected.
4. Only processes of the same user have to do with each other here, by the kernel's word. Where a
   name is taken by anybody else, or by somebody who does not answer, the port alone decides who
   hosts: names are there for sharing it, and no stranger keeps a job from hosting by them.
5. TLS begins before the opening, and the job it is for is not known then: with it, a job needs a
   port of its own.
6. A process that is forked from this one keeps neither claim nor door.

How it works: claim and door are names of Unix sockets without a file, which the kernel gives to
one process at a time, for as long as it lives, and which mean this machine's network, as a port
does. (A file would be left behind by a kill, and would be another one in each container that has a
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
from holdfast.runtime.loop import Cancellable, Loop
from holdfast.transport.frames import HANDSHAKE_LIMIT
from holdfast.transport.own_endpoint import is_loopback, try_to_host
from holdfast.transport.resolving import Address

if TYPE_CHECKING:
    from holdfast.transport.server import Server

BACKLOG = 512
TRY_AGAIN_S = 0.2
"""Between the end of a door and the next look, where another program has taken the port."""
LOOKS_AT_A_NAME = 100
"""At one that is taken and where nobody listens: its holder may be about to, or have just ended."""
STRANGERS_TOLD = 4
NAME_SHOWN = 200
ANY, LOOPBACK = "any", "loopback"
"""From where a door can be reached: other machines too, or this one only."""

_ours: weakref.WeakSet[socket.socket] = weakref.WeakSet()


def _let_go() -> None:
    for sock in list(_ours):
        sock.close()


os.register_at_fork(after_in_child=_let_go)


class NameOfAnother(OSError):
    """A name is taken, and not by this user as far as can be seen."""

    def __init__(self, holder: str) -> None:
        super().__init__(errno.EADDRINUSE, holder)
        self.holder = holder
        """The process that has it, in words."""


class EndpointShare:
    """This process carries a job's coordinator at an endpoint. On the loop's thread only."""

    def __init__(
        self,
        endpoint: Endpoint,
        job: str,
        claim: socket.socket | None,
        addresses: list[Address] | None,
    ) -> None:
        self._endpoint, self._job = endpoint, job
        self._addresses = addresses
        self._claim = claim
        self.name_taken_by = ""
        """The other process that has the name of its claim or its door, in words; else empty."""
        self._listening: socket.socket | None = None
        self._door: Door | None = None
        self._watch: socket.socket | None = None
        """A line to the door of whoever holds the port; it ends when that one does."""
        self._again: Cancellable | None = None
        self._loop: Loop | None = None
        self._inlets: set[socket.socket] = set()

    def take_port(self, is_host: bool | None, may_lodge: bool) -> bool:
        """Take the port, or a place behind its door; whether that was possible.

        Raises `UsageError` as `try_to_host` does.
        """
        self._is_host = is_host
        problem: UsageError | None = None
        try:
            self._door = Door.take(self._endpoint, self._job) if may_lodge else None
        except NameOfAnother as taken:
            may_lodge, self.name_taken_by = False, taken.holder
        if self._door is not None or not may_lodge:
            try:
                self._listening = try_to_host(self._endpoint, is_host, self._addresses)
            except UsageError as error:
                problem = self._with_whose_name(error)
            if self._listening is not None:
                return True
            self._close_door()
        self._watch = _knock(self._endpoint) if may_lodge else None
        if self._watch is None and problem is not None:
            raise problem
        return self._watch is not None

    def _with_whose_name(self, error: UsageError) -> UsageError:
        if not self.name_taken_by:
            return error
        return UsageError(f"{error}; {self._not_shared()}", error.hint)

    def _not_shared(self) -> str:
        return f"it is not shared with other jobs: {self.name_taken_by} has the name for that"

    @property
    def is_lodging(self) -> bool:
        return self._watch is not None

    def serve(self, loop: Loop, server: Server, say: Callable[[str], None]) -> None:
        """Let the server have all connections that are for its job."""
        self._loop, self._server, self._say = loop, server, say
        if self._claim is not None:
            loop.add_reader(self._claim.fileno(), self._on_claim_visited, self._claim)
        self._settle()

    def _settle(self) -> None:
        assert self._loop is not None, "a share that serves has a loop"
        if self._listening is not None:
            self._server.listen(self._listening)
            self._listening = None
            if self.name_taken_by:
                self._say(f"{self._endpoint} is this job's alone; {self._not_shared()}")
            if self._door is not None:
                self._door.open(self._loop, self._say)
                self._server.neighbours = self._door
        elif self._watch is not None:
            self._loop.add_reader(self._watch.fileno(), self._on_word_of_door, self._watch)

    # Connections that are handed in.

    def _on_claim_visited(self, claim: socket.socket) -> None:
        inlet = _accepted(claim)
        if inlet is not None and self._loop is not None:
            self._inlets.add(inlet)
            self._loop.add_reader(inlet.fileno(), self._on_handed_in, inlet)

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

    def _drop(self, inlet: socket.socket) -> None:
        self._inlets.discard(inlet)
        _close(inlet, self._loop)

    # Behind another's door.

    def _on_word_of_door(self, watch: socket.socket) -> None:
        said = _heard(watch)
        if said:
            self._greet_the_holder(watch, _readable(said))
        elif said is not None:
            self._stop_watching()
            self._move()

    def _greet_the_holder(self, watch: socket.socket, holder: str) -> None:
        """Each job hears of the other: one of them may have the wrong name."""
        self._say(
            f"{self._endpoint} also serves job {holder}, which passes on what is for this one "
            f"({self._job}); is --rdzv-id right?"
        )
        try:
            watch.send(self._job.encode()[:HANDSHAKE_LIMIT])
        except OSError:
            pass  # It is about to end, and we shall see.

    def _move(self) -> None:
        """The door has closed: take the port, or find the next door."""
        assert self._loop is not None, "a share that serves has a loop"
        self._again = None
        try:
            is_settled = self.take_port(self._is_host, may_lodge=True)
        except UsageError:
            is_settled = False
        if not is_settled:
            self._again = self._loop.call_later(TRY_AGAIN_S, self._move)
            return
        if not self.is_lodging:
            self._say(f"this node holds {self._endpoint} itself now")
        self._settle()

    def _stop_watching(self) -> None:
        if self._watch is not None:
            _close(self._watch, self._loop)
            self._watch = None

    def _close_door(self) -> None:
        if self._door is not None:
            self._door.close()
            self._door = None

    def close(self) -> None:
        """Give up claim, door and place; the server closes its connections itself."""
        if self._again is not None:
            self._again.cancel()
        for inlet in tuple(self._inlets):
            self._drop(inlet)
        self._stop_watching()
        self._close_door()
        if self._listening is not None:
            self._listening.close()
            self._listening = None
        if self._claim is not None:
            _close(self._claim, self._loop)
            self._claim = None


def take_share(
    endpoint: Endpoint,
    job: str,
    is_host: bool | None,
    may_lodge: bool,
    addresses: list[Address] | None = None,
) -> EndpointShare | None:
    """The right to carry a job's coordinator at an endpoint; None where it is another's.

    `may_lodge` is whether several jobs may share the port. `addresses` are the endpoint's: without
    them its name is looked up, now and whenever the port is to be taken. Raises `UsageError` when
    hosting is demanded or due, and the port cannot be had.
    """
    claim, taken_by = None, ""
    if endpoint.port:
        try:
            claim = _name_taken(_claim_on(endpoint.port, job))
        except OSError as error:
            # Somebody else's name, or a system without such names: the port alone decides.
            may_lodge = False
            taken_by = error.holder if isinstance(error, NameOfAnother) else ""
        else:
            if claim is None:
                return None  # A node of the same job carries it, on this machine.
    share = EndpointShare(endpoint, job, claim, addresses)
    share.name_taken_by = taken_by
    try:
        if share.take_port(is_host, may_lodge and bool(endpoint.port)):
            return share
    except BaseException:
        share.close()
        raise
    share.close()
    return None


class Door:
    """Held by whoever holds the port. Those behind it see it close when that one ends."""

    def __init__(self, sock: socket.socket, endpoint: Endpoint, job: str) -> None:
        self._socket, self._endpoint, self._job = sock, endpoint, job
        self._loop: Loop | None = None
        self._strangers: set[str] = set()
        """Jobs that somebody has asked for here in vain."""
        self._lodgers: set[socket.socket] = set()

    @classmethod
    def take(cls, endpoint: Endpoint, job: str) -> Door | None:
        """None where another of this user has it. Raises `NameOfAnother`."""
        sock = _name_taken(_door_of(endpoint))
        return None if sock is None else cls(sock, endpoint, job)

    def open(self, loop: Loop, say: Callable[[str], None]) -> None:
        """Let others lodge behind it."""
        self._loop, self._say = loop, say
        loop.add_reader(self._socket.fileno(), self._on_knock)

    def hand_over(self, job: str, descriptor: int, opening: bytes) -> bool:
        """Hand a connection in where a job has its claim; whether there is one.

        The descriptor stays the caller's.
        """
        line = _connected(_claim_on(self._endpoint.port, job))
        if line is None:
            self._say_of_stranger(job)
            return False
        try:
            socket.send_fds(line, [opening], [descriptor])
        except OSError:
            return False
        finally:
            line.close()
        return True

    def _say_of_stranger(self, job: str) -> None:
        """Once for each job, and for a few only: anybody can ask for anything."""
        if job in self._strangers or len(self._strangers) >= STRANGERS_TOLD:
            return
        self._strangers.add(job)
        named = _readable(job.encode())
        self._say(f"a node of job {named} dials {self._endpoint}; is its --rdzv-id right?")

    def _on_knock(self) -> None:
        lodger = _accepted(self._socket)
        if lodger is None or self._loop is None:
            return
        try:
            lodger.send(self._job.encode()[:HANDSHAKE_LIMIT])
        except OSError:
            lodger.close()
            return
        self._lodgers.add(lodger)
        self._loop.add_reader(lodger.fileno(), self._on_word_of_lodger, lodger)

    def _on_word_of_lodger(self, lodger: socket.socket) -> None:
        """First its job, then the end."""
        said = _heard(lodger)
        if said:
            also = f"{self._endpoint} also serves job {_readable(said)} from now on"
            self._say(f"{also}; is its --rdzv-id right?")
        elif said is not None:
            self._on_lodger_left(lodger)

    def _on_lodger_left(self, lodger: socket.socket) -> None:
        self._lodgers.discard(lodger)
        _close(lodger, self._loop)

    def close(self) -> None:
        for lodger in tuple(self._lodgers):
            self._on_lodger_left(lodger)
        _close(self._socket, self._loop)


def _heard(line: socket.socket) -> bytes | None:
    """What was said, which is empty at the end; None where nothing is there yet."""
    try:
        return line.recv(HANDSHAKE_LIMIT)
    except BlockingIOError:
        return None
    except OSError:
        return b""


def _close(sock: socket.socket, loop: Loop | None) -> None:
    """Close it, where there is a loop not without that loop's knowledge."""
    if loop is not None:
        loop.remove_reader(sock.fileno())
    sock.close()


def _readable(said: bytes) -> str:
    """The name of a job, as it can be printed."""
    name = said.decode("utf-8", "replace")[:NAME_SHOWN]
    return name if name.isprintable() else repr(name)


# Names, and sockets that have them.


def _door_of(endpoint: Endpoint) -> str:
    """A port of loopback is not reached from elsewhere: it has a door of its own."""
    return _name(str(endpoint.port), "door", LOOPBACK if is_loopback(endpoint) else ANY)


def _claim_on(port: int, job: str) -> str:
    return _name(str(port), "job", hashlib.sha256(job.encode()).hexdigest()[:32])


def _name(*parts: str) -> str:
    return "/".join(("\0holdfast", str(os.getuid()), *parts))


def _knock(endpoint: Endpoint) -> socket.socket | None:
    """A line to whoever holds the port, if that one passes on what is for us."""
    found = _connected(_door_of(endpoint))
    if found is None and is_loopback(endpoint):
        found = _connected(_name(str(endpoint.port), "door", ANY))
    return found


def _name_taken(name: str) -> socket.socket | None:
    """A socket that listens under a name; None where another of this user does.

    Raises `NameOfAnother`, or another `OSError` where there are no such names.
    """
    for _ in range(LOOKS_AT_A_NAME):
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        sock.setblocking(False)
        try:
            sock.bind(name)
            sock.listen(BACKLOG)
        except OSError as error:
            sock.close()
            if error.errno != errno.EADDRINUSE:
                raise
        else:
            _ours.add(sock)
            return sock
        if _is_held_by_this_user(name):
            return None
        os.sched_yield()
    raise NameOfAnother("a program that does not answer")


def _is_held_by_this_user(name: str) -> bool:
    """False where nobody listens (any more). Raises `NameOfAnother`."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as sock:
        sock.setblocking(False)
        try:
            sock.connect(name)
        except OSError:
            return False
        holder = peer_of(sock)
    if not holder.is_of_this_user:
        raise NameOfAnother(f"another user (uid {holder.uid})")
    return True


def _connected(name: str) -> socket.socket | None:
    """A line to whoever has the name; None where nobody of this user has."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    sock.setblocking(False)
    try:
        sock.connect(name)
        if peer_of(sock).is_of_this_user:
            _ours.add(sock)
            return sock
    except OSError:
        pass  # Nobody is there, or nobody who answers.
    sock.close()
    return None


def _accepted(listening: socket.socket) -> socket.socket | None:
    try:
        sock, _ = listening.accept()
    except OSError:
        return None
    sock.setblocking(False)
    if not peer_of(sock).is_of_this_user:
        sock.close()
        return None
    _ours.add(sock)
    return sock
