"""A process that serves PyTorch's store for one round: `python store_host.py HOST PORT`.

Forked from the zygote, which has the user's PyTorch imported, together with the workers of
its round, and killed with them. The socket, which the agent has bound and made listen
already, is its standard input.

Why it is there: when rank 0 serves the store itself, any worker that happens to connect
before rank 0 listens is refused, and PyTorch then sleeps for most of a second before it
tries again. A socket that listens before the first worker runs refuses nobody; a client
that connects before this process accepts waits in the kernel for those milliseconds.
"""

from __future__ import annotations

import os
import signal
import sys
from importlib import import_module


def serve(host: str, port: int) -> None:
    """Serve until killed: a signal to the whole node is not for this, and others may be saving."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, signal.SIG_IGN)
    distributed = import_module("torch.distributed")
    store = distributed.TCPStore(
        host, port, None, True, wait_for_workers=False, master_listen_fd=os.dup(0)
    )
    while store is not None:
        signal.pause()


if __name__ == "__main__":
    serve(sys.argv[1], int(sys.argv[2]))
