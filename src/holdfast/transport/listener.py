"""Accepting connections, and what limits them before they have said who they are.

Rules
- Accepting goes in batches, so that a flood of newcomers delays nobody who is connected.
- How many there may be is the process's budget (`descriptors`). When those are used up, or no
  descriptor is left at all, accepting pauses, the oldest that have not come as far as their first
  word make room, and it resumes.
- A handshake has `HANDSHAKE_TIMEOUT_S`, however slowly its bytes drip in, and after it the first
  word has `GREETING_TIMEOUT_S`.
- A process that is forked from this one does not listen: nobody there would accept, and the port
  would not be free when this one has ended.
"""

from __future__ import annotations

import errno
import os
import socket
import time
import weakref
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

from holdfast.runtime.loop import Cancellable, Loop
from holdfast.transport import sentences
from holdfast.transport.connection import configure
from holdfast.transport.frames import ProtocolError

BACKLOG = 8192
ACCEPTED_AT_ONCE = 256
PAUSE_S = 0.2
HANDSHAKE_TIMEOUT_S = 10.0
GREETING_TIMEOUT_S = 10.0
PATIENCE_WHEN_FULL_S = 1.0
"""The least age of a connection without a handshake that makes room for a newcomer."""
NOT_OURS = (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT, errno.EINVAL)
"""Errors for an address that this machine does not have."""

_SLOW = ProtocolError("slow handshake", sentences.SLOW, permanent=False)
_MUTE = ProtocolError("mute", sentences.MUTE, permanent=False)
_EXHAUSTED = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


_listening: weakref.WeakSet[Listener] = weakref.WeakSet()


def _let_go() -> None:
    for listener in list(_listening):
        listener.let_go()


os.register_at_fork(after_in_child=_let_go)


def listening_socket(host: str, port: int, is_shared: bool = False) -> socket.socket:
    """A socket that listens on a numeric address; on all of both families, where that is empty.

    `is_shared` is whether other processes of this user may listen there too. Raises OSError where
    that cannot be, and OverflowError for a port that is none.
    """
    sock = bound_socket(host, port, is_shared)
    try:
        sock.listen(BACKLOG)
    except OSError:
        sock.close()
        raise
    return sock


def bound_socket(host: str, port: int, is_shared: bool = False) -> socket.socket:
    """The same, which does not listen yet."""
    if not host:
        try:
            return bound_socket("::", port, is_shared)
        except OSError as error:
            if error.errno not in NOT_OURS:
                raise
        host = "0.0.0.0"  # A kernel without IPv6.
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if is_shared:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        if family == socket.AF_INET6:
            # Only the wildcard can serve both families; elsewhere it has no effect.
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        sock.bind((host, port))
    except (OSError, OverflowError):
        sock.close()
        raise
    return sock


class Listener:
    """Accepts on one socket for its owner."""

    def __init__(
        self,
        loop: Loop,
        sock: socket.socket,
        on_accepted: Callable[[socket.socket], None],
        has_room: Callable[[], bool],
    ) -> None:
        self._loop, self._socket = loop, sock
        self._on_accepted, self._has_room = on_accepted, has_room
        self._pause: Cancellable | None = None
        sock.setblocking(False)
        configure(sock)
        sock.listen(BACKLOG)
        self._number = sock.fileno()
        loop.add_reader(self._number, self._accept)
        _listening.add(self)

    def let_go(self) -> None:
        """In a fork. The loop is the other process's, in the kernel too, and is left alone."""
        self._socket.close()

    @property
    def address(self) -> tuple[str, int]:
        host, port = self._socket.getsockname()[:2]
        return host, port

    def _accept(self) -> None:
        for _ in range(ACCEPTED_AT_ONCE):
            if not self._has_room():
                self._rest()
                return
            try:
                sock, _address = self._socket.accept()
            except (BlockingIOError, InterruptedError):
                return
            except OSError as error:
                # Anything else is the error of a connection that is gone by now.
                if error.errno in _EXHAUSTED:
                    self._rest()
                return
            sock.setblocking(False)
            self._on_accepted(sock)

    def _rest(self) -> None:
        self._loop.remove_reader(self._number)
        self._pause = self._loop.call_later(PAUSE_S, self._resume)

    def _resume(self) -> None:
        self._pause = None
        self._loop.add_reader(self._number, self._accept)

    def close(self) -> None:
        if self._pause is not None:
            self._pause.cancel()
        self._loop.remove_reader(self._number)
        self._socket.close()


class Refusable(Protocol):
    """A connection that owes something."""

    def refuse(self, error: ProtocolError) -> None: ...


R = TypeVar("R", bound=Refusable)


class Overdue(Generic[R]):
    """Connections that owe us something, oldest first, and one timer for all of them."""

    def __init__(self, loop: Loop, timeout_s: Callable[[], float], error: ProtocolError) -> None:
        self._loop, self._timeout_s, self._error = loop, timeout_s, error
        self._owing: dict[R, float] = {}
        self._timer: Cancellable | None = None

    def watch(self, connection: R) -> None:
        """Refuse it in time, unless it is settled by then."""
        self._owing[connection] = time.monotonic()
        if self._timer is None:
            self._timer = self._loop.call_later(self._timeout_s(), self._on_timer)

    def settled(self, connection: R) -> None:
        """It has paid, or has gone."""
        self._owing.pop(connection, None)

    def _on_timer(self) -> None:
        self._timer = None
        self.give_up_older_than(self._timeout_s())
        if self._owing:
            remaining = next(iter(self._owing.values())) + self._timeout_s() - time.monotonic()
            self._timer = self._loop.call_later(max(remaining, 0.0), self._on_timer)

    def give_up_older_than(self, age_s: float) -> None:
        horizon = time.monotonic() - age_s
        while self._owing:
            connection, since = next(iter(self._owing.items()))
            if since > horizon:
                return
            del self._owing[connection]
            connection.refuse(self._error)

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._owing.clear()


def handshakes(loop: Loop) -> Overdue[Refusable]:
    """Connections that have not told and proved their kind yet."""
    return Overdue(loop, lambda: HANDSHAKE_TIMEOUT_S, _SLOW)


def greetings(loop: Loop) -> Overdue[Refusable]:
    """Admitted connections that have not sent their first message, which follows the welcome."""
    return Overdue(loop, lambda: GREETING_TIMEOUT_S, _MUTE)
