"""The floor: what this machine takes for what no launcher can avoid, printed as JSON.

A process that has torch imported forks children. `connect` counts from the moment at which
all of them run and are told to go, `fork_and_connect` from before the first fork; both until
the last of them has finished its first all-reduce over gloo.

Only once rank 0 has its store open do the others connect to it. Whoever comes too early gets
a refusal and waits for a good part of a second, and a floor has no bad luck in it.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import time

import torch
import torch.distributed as distributed

WORLDS = (2, 4, 8)
FORKS = 20


class Channel:
    """A pipe between the parent and all of its children."""

    def __init__(self) -> None:
        self._reader, self._writer = os.pipe()

    def write(self, data: bytes) -> None:
        os.write(self._writer, data)

    def read(self, size: int) -> bytes:
        got = b""
        while len(got) < size:
            got += os.read(self._reader, size - len(got))
        return got

    def close(self) -> None:
        os.close(self._reader)
        os.close(self._writer)


def fork_and_exit() -> float:
    """Seconds from before a fork until the child, which ends at once, was reaped."""
    begun = time.monotonic()
    child = os.fork()
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)
    return time.monotonic() - begun


def connect(world_size: int, *, wait_until_all_run: bool) -> float:
    """Seconds until every one of so many forked children has finished its first all-reduce."""
    ready, go, store_open, done = Channel(), Channel(), Channel(), Channel()
    port = _free_port()
    begun = time.monotonic()
    children = []
    for rank in range(world_size):
        child = os.fork()
        if child == 0:
            if wait_until_all_run:
                ready.write(b".")
                go.read(1)
            _join(rank, world_size, port, store_open)
            done.write(b"%020.9f" % time.monotonic())
            go.read(1)
            os._exit(0)
        children.append(child)
    if wait_until_all_run:
        ready.read(world_size)
        begun = time.monotonic()
        go.write(b"." * world_size)
    ended = max(float(done.read(20)) for _ in children)
    go.write(b"." * world_size)
    for child in children:
        os.waitpid(child, 0)
    for channel in (ready, go, store_open, done):
        channel.close()
    return ended - begun


def _join(rank: int, world_size: int, port: int, store_open: Channel) -> None:
    if rank > 0:
        store_open.read(1)
    store = distributed.TCPStore(
        "127.0.0.1", port, world_size, is_master=rank == 0, wait_for_workers=False
    )
    if rank == 0:
        store_open.write(b"." * (world_size - 1))
    distributed.init_process_group("gloo", store=store, rank=rank, world_size=world_size)
    distributed.all_reduce(torch.ones(1))


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def main() -> None:
    repeats = int(sys.argv[1])
    found = {"fork_and_exit": [fork_and_exit() for _ in range(FORKS)]}
    for world_size in WORLDS:
        found[f"connect_{world_size}"] = []
        found[f"fork_and_connect_{world_size}"] = []
        for _ in range(repeats):
            running = connect(world_size, wait_until_all_run=True)
            forked = connect(world_size, wait_until_all_run=False)
            found[f"connect_{world_size}"].append(running)
            found[f"fork_and_connect_{world_size}"].append(forked)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
