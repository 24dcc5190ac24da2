"""Steps over plain sockets: all ranks add up with rank 0, which notes each step. No PyTorch.

    socket_steps.py FOLDER

`FOLDER/steps` has round, world size and step of the last step that was made, and the next round
goes on from there. Once `FOLDER/enough` is there, all ranks end well after the same step.
"""

from __future__ import annotations

import os
import socket
import struct
import sys
import time
from pathlib import Path

import holdfast

STEP_S = 0.05
FOLDER = Path(sys.argv[1])
ROUND, RANK, WORLD = (int(os.environ[name]) for name in ("HOLDFAST_ROUND", "RANK", "WORLD_SIZE"))
PLACE = (os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
WORD = struct.Struct("!qq")
WELCOME = b"w"


def exactly(connection: socket.socket, size: int) -> bytes:
    received = b""
    while len(received) < size:
        more = connection.recv(size - len(received))
        if not more:
            raise ConnectionError("another worker is gone")
        received += more
    return received


def gather() -> list[socket.socket]:
    """Rank 0: a connection to each of the others."""
    with socket.create_server(
        ("::", PLACE[1]), family=socket.AF_INET6, dualstack_ipv6=True
    ) as server:
        others = [server.accept()[0] for _ in range(WORLD - 1)]
    for other in others:
        other.sendall(WELCOME)
    return others


def reach_the_first() -> socket.socket:
    """Whoever holds the port before rank 0 serves it may accept, and drop the connection."""
    while True:
        try:
            first = socket.create_connection(PLACE)
            if first.recv(len(WELCOME)) == WELCOME:
                return first
            first.close()
        except OSError:
            pass
        time.sleep(STEP_S)


def last_step() -> int:
    try:
        return int((FOLDER / "steps").read_text().split()[2])
    except FileNotFoundError:
        return 0


def lead() -> None:
    others, step, is_enough = gather(), last_step(), False
    note = os.open(FOLDER / "steps", os.O_WRONLY | os.O_CREAT)
    while not is_enough:
        assert {WORD.unpack(exactly(other, WORD.size))[0] for other in others} <= {ROUND}
        step, is_enough = step + 1, (FOLDER / "enough").exists()
        os.pwrite(note, b"%10d %10d %10d\n" % (ROUND, WORLD, step), 0)
        for other in others:
            other.sendall(WORD.pack(step, is_enough))
        holdfast.progress(step)
        time.sleep(STEP_S)


def follow() -> None:
    first, is_enough = reach_the_first(), 0
    while not is_enough:
        first.sendall(WORD.pack(ROUND, RANK))
        step, is_enough = WORD.unpack(exactly(first, WORD.size))
        holdfast.progress(step)


if __name__ == "__main__":
    if RANK == 0:
        lead()
    else:
        follow()
