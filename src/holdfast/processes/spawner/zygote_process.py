"""Starting the interpreter of a zygote: the first thing that a spawner does.

Kept free of imports that take time, as `spawner_process.py` is, and for the same reason: the
zygote's interpreter starts while the spawner is still importing. Standard library only:
the spawner loads this file by path.
"""

from __future__ import annotations

import os

from holdfast.processes.stdlib_only import private_names

_PROCESSES = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
_SCRIPT = os.path.join(_PROCESSES, "zygote", "zygote.py")


def start(
    interpreter: str,
    options: tuple[str, ...] | list[str] = ("-u",),
    environment: dict[str, str] | None = None,
) -> tuple[int, int]:
    """Start one in a session of its own, with nothing to read or write.

    Returns its pid, and the descriptor of our end of its socket.

    The options are those that a cold worker's interpreter would have. What only the interpreter
    or the loader read, and only at their start, they find in `environment`, if it is given.
    No signal is blocked or ignored, whatever is in this process: shells without job control start
    what is to run in the background with some ignored, and cold workers do not have that either.
    """
    signals = private_names.plain_signals()
    ours, theirs = private_names.socket_pair()
    os.set_inheritable(theirs.fileno(), True)
    pid = os.posix_spawn(
        interpreter,
        [interpreter, *options, _SCRIPT, str(theirs.fileno())],
        os.environ if environment is None else environment,
        file_actions=[(os.POSIX_SPAWN_OPEN, n, os.devnull, os.O_RDWR, 0) for n in range(3)],
        setsid=True,
        setsigmask=(),
        setsigdef=signals.valid_signals() - {signals.SIGKILL, signals.SIGSTOP},
    )
    theirs.close()
    return pid, ours.detach()
