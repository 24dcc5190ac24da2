"""A small job without any framework: the workers add up their numbers, step by step.

Rank 0 listens on MASTER_ADDR:MASTER_PORT, the others connect, and each step every worker
sends its number and receives the sum, as an all-reduce does. The last finished step is
kept in a file, so a restarted group goes on where the old one was.

    holdfast run --nproc-per-node 4 --max-restarts 2 examples/training.py
"""

import os
import socket
import struct
import sys
import time

import holdfast

STEPS = 12
STEP_S = 0.15
RANK = int(os.environ["RANK"])
WORLD_SIZE = int(os.environ["WORLD_SIZE"])
NUMBER = struct.Struct("!q")


def connect() -> list[socket.socket]:
    """Rank 0: a connection to everyone else. The others: one to rank 0."""
    address = (os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
    if RANK == 0:
        with socket.create_server(address) as server:
            return [server.accept()[0] for _ in range(WORLD_SIZE - 1)]
    while True:
        try:
            return [socket.create_connection(address)]
        except ConnectionRefusedError:
            time.sleep(0.005)  # Rank 0 is not listening yet.


def read(peer: socket.socket) -> int:
    data = peer.recv(NUMBER.size, socket.MSG_WAITALL)
    if len(data) < NUMBER.size:
        raise ConnectionError("connection closed by peer")
    number: int = NUMBER.unpack(data)[0]
    return number


def all_reduce(peers: list[socket.socket], number: int) -> int:
    if RANK == 0:
        total = number + sum(read(peer) for peer in peers)
        for peer in peers:
            peer.sendall(NUMBER.pack(total))
        return total
    peers[0].sendall(NUMBER.pack(number))
    return read(peers[0])


def main(checkpoint: str) -> None:
    first = 1
    if os.path.isfile(checkpoint):
        with open(checkpoint) as file:
            first = int(file.read()) + 1
    peers = connect()
    for step in range(first, STEPS + 1):
        time.sleep(STEP_S)  # The work.
        total = all_reduce(peers, RANK + step)
        holdfast.progress(step)
        print(f"rank {RANK} pid {os.getpid()} step {step} sum {total}", flush=True)
        if RANK == 0 and checkpoint:
            with open(checkpoint + ".part", "w") as file:
                file.write(str(step))
            os.replace(checkpoint + ".part", checkpoint)


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "")
