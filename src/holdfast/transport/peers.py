"""Limits for the connections of one address.

Rules
1. From one address at most `SHARE_OF_ONE_ADDRESS` of the connections that there is room for are let
   in, so that others can come whatever it does. That is most of them: all nodes may be behind one
   address. Those that have not proved themselves do not count: they make room for each other.
2. After `WRONG_TOKENS_FREE` wrong tokens from an address, a client that proves itself from there
   waits for the answer, longer with each, up to `BRAKE_MOST_S`. A right token waits as long as any
   one: else silence would tell that it was wrong. So the longest wait is well below the time that
   a node has to come back in (`Leases.reconnect_s`). After `FORGOTTEN_AFTER_S` all is forgiven.
3. An IPv6 network of 64 bits counts as one address: its owner has all of it.
4. At most `ADDRESSES_MOST` addresses are remembered; the one that erred longest ago is forgotten.
"""

from __future__ import annotations

import socket
import time
from collections import Counter

from holdfast.transport.frames import ProtocolError

SHARE_OF_ONE_ADDRESS = 7 / 8
WRONG_TOKENS_FREE = 3
BRAKE_FIRST_S = 0.1
BRAKE_MOST_S = 0.5
FORGOTTEN_AFTER_S = 60.0
ADDRESSES_MOST = 1024


def peer_of(sock: socket.socket) -> str:
    """The address that a connection comes from, as far as it is told apart from others."""
    try:
        address = str(sock.getpeername()[0])
    except (OSError, IndexError):
        return ""  # It has gone already.
    if sock.family != socket.AF_INET6 or address.startswith("::ffff:"):
        return address.removeprefix("::ffff:")
    packed = socket.inet_pton(socket.AF_INET6, address.partition("%")[0])
    return socket.inet_ntop(socket.AF_INET6, packed[:8] + bytes(8))


class Crowd:
    """The number of admitted connections of each address."""

    def __init__(self) -> None:
        self._connections: Counter[str] = Counter()

    def has_room_for(self, address: str, limit: int) -> bool:
        """Whether the address is below its share of `limit`."""
        return self._connections[address] < limit * SHARE_OF_ONE_ADDRESS

    def require_room_for(self, address: str, limit: int) -> None:
        """Raise `ProtocolError` where it has its share of `limit`."""
        if not self.has_room_for(address, limit):
            reason = f"{self._connections[address]} connections come from {address} already"
            raise ProtocolError("no room", reason, permanent=False)

    def add(self, address: str) -> None:
        self._connections[address] += 1

    def remove(self, address: str) -> None:
        self._connections[address] -= 1
        if self._connections[address] <= 0:
            del self._connections[address]


class Brake:
    """The delay of the answer to a proof, by address."""

    def __init__(self) -> None:
        self._wrong: dict[str, tuple[int, float]] = {}
        """The number of wrong tokens, and the time of the last one; the oldest first."""

    def wrong_token(self, address: str) -> None:
        count = self._count(address)
        self._wrong.pop(address, None)
        self._wrong[address] = (count + 1, time.monotonic())
        if len(self._wrong) > ADDRESSES_MOST:
            del self._wrong[next(iter(self._wrong))]

    def delay_s(self, address: str) -> float:
        beyond = self._count(address) - WRONG_TOKENS_FREE
        return min(BRAKE_FIRST_S * 2.0 ** min(beyond, 10), BRAKE_MOST_S) if beyond >= 0 else 0.0

    def _count(self, address: str) -> int:
        count, last = self._wrong.get(address, (0, 0.0))
        return count if time.monotonic() < last + FORGOTTEN_AFTER_S else 0
