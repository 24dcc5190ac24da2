"""Admin sessions: connections of programs that send requests to the job, on any of its agents.

A client connects through the channel of an agent on its machine, where the kernel identifies its
user, or over the network with the job's token (`transport.server`). Both are then the same: a
connection that carries requests in, and answers out as they become known.

    client ─▶ RequestMade           (its own numbers, any number of them at a time)
            ◀─ PassResponse …           (one for each node that answers)
            ◀─ CloseRequest         (no further answer comes)

Rules
1. A session that ended is forgotten, with its requests.
2. The output that a client does not read is bounded (`transport.connection`); beyond that it is
   disconnected.
3. A command is recorded with the certain part of its sender: for a client from the channel the
   user, from the kernel; for one from the network its address, with its own words marked as such.
4. The channel admits as many clients as the agent has descriptors for.
5. Nothing here wakes an agent without sessions, and nothing is loaded in it.
"""

from __future__ import annotations

import errno
import socket
from collections.abc import Callable
from functools import partial

from msgspec.structs import replace

from holdfast.admin import sentences
from holdfast.core.protocol.bounds import NAME_MOST, clean, cut
from holdfast.core.protocol.messages import CloseRequest, PassResponse, RequestMade
from holdfast.core.protocol.requests import (
    DrainWanted,
    RestartWanted,
    SaveWanted,
    ScaleWanted,
    StopWanted,
    pack,
    read_request,
)
from holdfast.engine.requests import Requests
from holdfast.runtime import descriptors
from holdfast.runtime.loop import Loop
from holdfast.transport.connection import Ending, FramedConnection
from holdfast.transport.frames import FRAME_LIMIT, Decoder, encode

COMMANDS = (DrainWanted, RestartWanted, StopWanted, ScaleWanted, SaveWanted)
"""Requests that name their user."""
_asked: Decoder[RequestMade] = Decoder(RequestMade)


class AdminSessions:
    """All admin sessions of one node."""

    def __init__(self, loop: Loop, requests: Requests) -> None:
        self._loop, self._requests = loop, requests
        self._sessions: dict[FramedConnection, AdminSession] = {}
        self._local: set[FramedConnection] = set()
        """Those that came through the channel."""

    def admit_here(self, name: str) -> int:
        """A client of this name came through the channel. Returns the descriptor that it gets.

        Raises `OSError` where there is no room for it.
        """
        most = descriptors.most("admin")
        if len(self._local) >= most:
            raise OSError(errno.EUSERS, f"{most} others look at this job already")
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        connection = FramedConnection(self._loop, ours, _not_yet, self._on_ended)
        self._local.add(connection)
        connection.allow_frames_up_to(FRAME_LIMIT)
        self._admit(connection, lambda _: name)
        return theirs.detach()

    def admit(self, connection: FramedConnection) -> None:
        """Take a connection on which a client may send requests now. Its owner says when it has
        ended."""
        address = connection.address or "an address that is not known"
        self._admit(connection, partial(sentences.remote_client, address))

    def _admit(self, connection: FramedConnection, name: Callable[[str], str]) -> None:
        session = self._sessions[connection] = AdminSession(connection, self._requests, name)
        connection.on_frame = session.on_frame

    def ended(self, connection: FramedConnection) -> None:
        self._local.discard(connection)
        session = self._sessions.pop(connection, None)
        if session is not None:
            self._requests.drop(session)

    def _on_ended(self, connection: FramedConnection, ending: Ending) -> None:
        self.ended(connection)

    def close(self) -> None:
        for connection in self._sessions:
            connection.close()
        self._sessions.clear()
        self._local.clear()


class AdminSession:
    """One session, as the sender of its requests."""

    def __init__(
        self, connection: FramedConnection, requests: Requests, name: Callable[[str], str]
    ) -> None:
        """`name` is what it is called, given what it calls itself."""
        self._connection, self._requests, self._name = connection, requests, name

    def on_frame(self, connection: FramedConnection, payload: bytes | bytearray) -> None:
        asked = _asked.decode(payload)
        self._requests.ask(self, replace(asked, request=self._in_its_name(asked.request)))

    def _in_its_name(self, packed: bytes) -> bytes:
        """The same request; a command with the name of the user who gives it."""
        request = read_request(packed)
        if not isinstance(request, COMMANDS):
            return packed
        return pack(replace(request, by=cut(clean(self._name(request.by)), NAME_MOST)))

    def on_answer(self, number: int, node: str, answer: bytes) -> None:
        self._connection.send(encode(PassResponse(number, node, answer)))

    def on_settled(self, settled: CloseRequest) -> None:
        self._connection.send(encode(settled))


def _not_yet(connection: FramedConnection, payload: bytes | bytearray) -> None:
    raise AssertionError("it has an owner before it is read")
