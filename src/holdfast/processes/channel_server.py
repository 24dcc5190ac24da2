"""The agent's end of the channel on which workers speak to it (see `worker.channel`).

Rules
1. Only this user and root are heard. The kernel says who connects, not the message.
2. What is too long or is not a JSON object is dropped, and nobody else notices.
3. No client can hold up the loop: a few packets are taken from each in turn.
4. What `on_message` returns is the answer, or will give it when it is known. Nobody waits for a
   client that does not take it, and one that has gone meanwhile gets none. One whose answer carries
   a descriptor is told news from then on (`tell_news`), unless the descriptor was made for it.
5. There is room for as many of them as the agent has descriptors for (`runtime.descriptors`), and
   for a share of that of one process; then new connections are closed.
6. What a process said before its end can be had before that end is told (`take_all`): the news of
   it comes by another way, and may overtake.

The listener has a random name in the abstract namespace: no file to clean up, and none
that another user could have put there first.
"""

from __future__ import annotations

import os
import socket
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from holdfast.runtime import descriptors
from holdfast.runtime.local_peer import LocalPeer, peer_of
from holdfast.worker.channel import PACKET_LIMIT, address_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.runtime.loop import Cancellable, Loop


PACKETS_PER_TURN = 64
PACKETS_AT_THE_END = 1024
"""More than a socket holds: a process that has ended says nothing more."""
BACKLOG = 1024
ACCEPTED_AT_ONCE = 64
"""So that a client that connects again and again, as any user can, does not keep others out."""
PAUSE_S = 1.0
SHARE_OF_ONE_PROCESS = 1 / 4


class Answer(msgspec.Struct, frozen=True):
    """What a client gets, with a copy of a descriptor."""

    packet: bytes
    descriptor: int
    is_handed_over: bool = False
    """The client alone is to have it, and it is all that the client wants."""


if TYPE_CHECKING:
    Later = Callable[[Callable[[bytes | Answer], None]], None]
    """Called with the function that takes the answer."""


class ChannelServer:
    """Hands every message to `on_message(peer, message)`, on the loop it was given."""

    def __init__(
        self,
        loop: Loop,
        on_message: Callable[[LocalPeer, dict[str, Any]], bytes | Answer | Later | None],
    ) -> None:
        self.name = f"@holdfast-{os.getpid()}-{os.urandom(8).hex()}"
        self._loop = loop
        self._on_message = on_message
        self._clients: dict[socket.socket, LocalPeer] = {}
        """With the process that each belongs to."""
        self._subscribed: set[socket.socket] = set()
        self._pause: Cancellable | None = None
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._listener.setblocking(False)
        self._listener.bind(address_of(self.name))
        self._listener.listen(BACKLOG)
        self._listen()

    def close(self) -> None:
        """Disconnect everyone. May be called twice."""
        if self._pause is not None:
            self._pause.cancel()
        if self._listener.fileno() >= 0:
            self._loop.remove_reader(self._listener)
            self._listener.close()
        for client in list(self._clients):
            self._drop(client)

    def take_all(self) -> None:
        """Hand over whatever has been said by now."""
        while self._pause is None and self._accept():
            pass
        for client, peer in list(self._clients.items()):
            self._read(client, peer, PACKETS_AT_THE_END)

    def tell_news(self, packet: bytes) -> None:
        """To all clients that have got a descriptor."""
        for client in list(self._subscribed):
            with suppress(OSError):
                client.send(packet, socket.MSG_NOSIGNAL)

    def _listen(self) -> None:
        self._pause = None
        self._loop.add_reader(self._listener, self._accept_some)

    def _accept_some(self) -> None:
        for _ in range(ACCEPTED_AT_ONCE):
            if not self._accept():
                return

    def _accept(self) -> bool:
        """Whether anybody was there."""
        if self._listener.fileno() < 0:
            return False  # closed by what was called before this, in the same turn of the loop
        try:
            client, _ = self._listener.accept()
        except (BlockingIOError, ConnectionAbortedError):
            return False  # The client has gone again.
        except OSError:
            # No descriptors are left. The listener would stay readable, so look away.
            self._loop.remove_reader(self._listener)
            self._pause = self._loop.call_later(PAUSE_S, self._listen)
            return False
        peer = peer_of(client)
        if not (peer.is_of_this_user or peer.is_of_root) or not self._has_room_for(peer.pid):
            client.close()
            return True
        client.setblocking(False)
        self._clients[client] = peer
        self._loop.add_reader(client, self._read, client, peer)
        return True

    def _has_room_for(self, pid: int) -> bool:
        most = descriptors.most("channel")
        if len(self._clients) < most * SHARE_OF_ONE_PROCESS:
            return True
        of_it = sum(one.pid == pid for one in self._clients.values())
        return len(self._clients) < most and of_it < most * SHARE_OF_ONE_PROCESS

    def _read(
        self, client: socket.socket, peer: LocalPeer, packets: int = PACKETS_PER_TURN
    ) -> None:
        for _ in range(packets):
            if client not in self._clients:
                return  # a message made the agent close the channel
            try:
                packet = client.recv(PACKET_LIMIT + 1)
            except BlockingIOError:
                return
            except OSError:
                packet = b""
            if not packet:
                self._drop(client)
                return
            message = _decode(packet)
            answer = self._on_message(peer, message) if message is not None else None
            if isinstance(answer, bytes | Answer):
                self._answer(client, answer)
            elif answer is not None:
                answer(partial(self._answer, client))

    def _answer(self, client: socket.socket, answer: bytes | Answer) -> None:
        if isinstance(answer, Answer):
            self._answer_with_descriptor(client, answer)
        elif client in self._clients:  # Else it has gone meanwhile.
            with suppress(OSError):
                client.send(answer, socket.MSG_NOSIGNAL)

    def _answer_with_descriptor(self, client: socket.socket, answer: Answer) -> None:
        if client in self._clients:
            if not answer.is_handed_over:
                self._subscribed.add(client)
            with suppress(OSError):
                passed = [answer.descriptor]
                socket.send_fds(client, [answer.packet], passed, socket.MSG_NOSIGNAL)
        if answer.is_handed_over:
            os.close(answer.descriptor)

    def _drop(self, client: socket.socket) -> None:
        self._clients.pop(client, None)
        self._subscribed.discard(client)
        self._loop.remove_reader(client)
        client.close()


def _decode(packet: bytes) -> dict[str, Any] | None:
    """The object in a packet, or None. A longer packet arrives one byte too long."""
    if len(packet) > PACKET_LIMIT:
        return None
    try:
        message = msgspec.json.decode(packet)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    return message if isinstance(message, dict) else None
