"""Starting the spawner, before anything else.

Kept free of imports that take time: the spawner's interpreter starts while the agent is
still importing.
"""

from __future__ import annotations

import os
import signal
import socket
import sys

_SCRIPT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "spawner", "spawner_entry.py")

_FOR_THE_AGENT = (
    *(signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT),
    *(signal.SIGUSR1, signal.SIGUSR2),
)
"""As in `stdlib_only.linux`, whose import would keep the spawner waiting."""


class SpawnerProcess:
    """A spawner that was started: its pid, and our end of its socket."""

    def __init__(self, pid: int, sock: socket.socket) -> None:
        self.pid = pid
        self.socket = sock

    def drop(self) -> None:
        """It is not needed after all: hang up, and wait for its end."""
        self.socket.close()
        try:
            os.waitpid(self.pid, 0)
        except ChildProcessError:
            pass  # This process has its children reaped by somebody else.


def fill_standard_streams() -> None:
    """Where our parent closed 0, 1 or 2, let nothing else take their place."""
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
    """Start one. With `zygote` it starts one right away, to save the time until it is asked to."""
    ours, theirs = socket.socketpair()
    with theirs, theirs.dup() as there:
        more = [sys.executable] if zygote else []
        return SpawnerProcess(run_spawner(theirs, there.fileno(), *more), ours)


def run_spawner(theirs: socket.socket, number: int, *arguments: str) -> int:
    """Start one that speaks through `theirs`, with these further arguments; returns its pid.

    It has the socket under `number`, which is taken here, by something else, so that nothing is
    inheritable here: what other threads start meanwhile would hold it too, and nobody would see
    the spawner's end by it. Signals are blocked there until it has a session of its own.
    """
    return os.posix_spawn(
        sys.executable,
        [sys.executable, "-I", "-S", "-X", "utf8", _SCRIPT, str(number), *arguments],
        os.environ,
        file_actions=[(os.POSIX_SPAWN_DUP2, theirs.fileno(), number)],
        setsigmask=_FOR_THE_AGENT,
    )
