"""The floor: what this machine takes for what no launcher can avoid, printed as JSON.

A process that has torch imported forks children. `connect` counts from the moment at which
all of them run and are told to go, `fork_and_connect` from before the first fork; both until
the last of them has finished its first all-reduce over gloo.
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
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    ready_reader, ready_writer = os.pipe()
    go_reader, go_writer = os.pipe()
    done_reader, done_writer = os.pipe()
    begun = time.monotonic()
    children = []
    for rank in range(world_size):
        child = os.fork()
        if child == 0:
            if wait_until_all_run:
                os.write(ready_writer, b".")
                os.read(go_reader, 1)
            _join(rank, world_size, port)
            os.write(done_writer, b"%020.9f" % time.monotonic())
            os.read(go_reader, 1)
            os._exit(0)
        children.append(child)
    if wait_until_all_run:
        _read_exactly(ready_reader, world_size)
        begun = time.monotonic()
        os.write(go_writer, b"." * world_size)
    ended = max(float(_read_exactly(done_reader, 20)) for _ in children)
    os.write(go_writer, b"." * world_size)
    for child in children:
        os.waitpid(child, 0)
    for descriptor in (ready_reader, ready_writer, go_reader, go_writer, done_reader, done_writer):
        os.close(descriptor)
    return ended - begun


def _join(rank: int, world_size: int, port: int) -> None:
    where = f"tcp://127.0.0.1:{port}"
    distributed.init_process_group("gloo", init_method=where, rank=rank, world_size=world_size)
    distributed.all_reduce(torch.ones(1))


def _read_exactly(descriptor: int, size: int) -> bytes:
    got = b""
    while len(got) < size:
        got += os.read(descriptor, size - len(got))
    return got


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
