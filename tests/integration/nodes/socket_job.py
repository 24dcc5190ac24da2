"""Training without PyTorch, over sockets: see `training.py`.

Rank 0 listens where the launcher says, all others connect to it. As with gloo, who waits for
one that died fails when its connection breaks, and who waits for one that is silent waits.
Connections end with the process, not while it still ends: else the others could fail, and be heard
of, before it.
"""

from __future__ import annotations

import os
import socket
import struct
import time

from training import PULSE_S, train

RANK = int(os.environ["RANK"])
WORLD = int(os.environ["WORLD_SIZE"])
PLACE = (os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
WELCOME = b"w"


class SocketGroup:
    """A star, with rank 0 in the middle."""

    def __init__(self) -> None:
        self._others = self._gather() if RANK == 0 else [self._reach_the_first()]
        self._held = [os.dup(other.fileno()) for other in self._others]

    def _gather(self) -> list[socket.socket]:
        place = ("::", PLACE[1])
        with socket.create_server(place, family=socket.AF_INET6, dualstack_ipv6=True) as server:
            others = [server.accept()[0] for _ in range(WORLD - 1)]
        for other in others:
            other.sendall(WELCOME)
        return others

    def _reach_the_first(self) -> socket.socket:
        """Whatever is in between may accept the connection before rank 0 is there, and drop it."""
        while True:
            try:
                first = socket.create_connection(PLACE)
                if first.recv(len(WELCOME)) == WELCOME:
                    return first
                first.close()
            except OSError:
                pass
            time.sleep(PULSE_S)

    def add_up(self, *values: int) -> list[int]:
        form = struct.Struct(f"!{len(values)}q")
        if RANK != 0:
            (first,) = self._others
            first.sendall(form.pack(*values))
            return list(form.unpack(receive(first, form.size)))
        brought = [form.unpack(receive(other, form.size)) for other in self._others]
        sums = [sum(column) for column in zip(values, *brought, strict=True)]
        for other in self._others:
            other.sendall(form.pack(*sums))
        return sums

    def leave(self) -> None:
        for other in self._others:
            other.close()
        for descriptor in self._held:
            os.close(descriptor)


def receive(connection: socket.socket, size: int) -> bytes:
    received = b""
    while len(received) < size:
        more = connection.recv(size - len(received))
        if not more:
            raise ConnectionError("another worker is gone")
        received += more
    return received


if __name__ == "__main__":
    train(SocketGroup)
