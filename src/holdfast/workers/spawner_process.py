"""Starting the spawner, before anything else.

Kept free of imports that take time: the spawner's interpreter starts while the agent is
still importing.
"""

from __future__ import annotations

import os
import signal
import socket
import sys

_SCRIPT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "spawner_entry.py")


class SpawnerProcess:
    """A spawner that was started: its pid, and our end of its socket."""

    def __init__(self, pid: int, sock: socket.socket) -> None:
        self.pid = pid
        self.socket = sock


def fill_standard_streams() -> None:
    """Where 0, 1 or 2 were closed by whoever started us, nothing else may take their place."""
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            # The lowest number that is free is taken, and that is this one.
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)
    # Python has no streams then, and what is printed to none of them goes to the other.
    sys.stdout = sys.stdout or os.fdopen(1, "w", closefd=False)
    sys.stderr = sys.stderr or os.fdopen(2, "w", closefd=False)


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
