"""Starting the spawner, before anything else.

Kept free of imports that take time: the spawner's interpreter starts while the agent is
still importing.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
from typing import NamedTuple

_SCRIPT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "spawner.py")


class SpawnerProcess(NamedTuple):
    """A spawner that was started: its pid, and our end of its socket."""

    pid: int
    socket: socket.socket


def start_spawner(*, zygote: bool) -> SpawnerProcess:
    """Start one, with signals blocked until it has a session of its own.

    With `zygote` it starts one right away, to save the time until it is asked to.
    """
    ours, theirs = socket.socketpair()
    os.set_inheritable(theirs.fileno(), True)
    command = [sys.executable, "-I", "-S", "-X", "utf8", _SCRIPT, str(theirs.fileno())]
    if zygote:
        command.append(sys.executable)
    shielded = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT]
    pid = os.posix_spawn(sys.executable, command, os.environ, setsigmask=shielded)
    theirs.close()
    return SpawnerProcess(pid, ours)
