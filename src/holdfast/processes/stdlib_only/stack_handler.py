"""In a worker, before its program begins: have its stacks written at a signal, and at a crash.

It is done in C by `faulthandler`, in the signal's own handler: it needs no ptrace and no GIL, so it
works while an extension computes, waits or sleeps with the GIL held.

Rules
1. The program sees nothing of it but one descriptor, far above those that programs use, and closed
   on exec. `faulthandler` is not in `sys.modules` unless it was. What the program does with
   `faulthandler` itself (enable, timers, other signals) is its own and stays so: where it is
   enabled already, crashes are written where that says.
2. The signal is a real-time one that nobody uses (`SIGRTMAX-3`), and is only ever sent to a process
   that catches it: it would end any other.
3. Nothing here can break a start. Whatever fails is given up silently.

Loaded by path, by the zygote and by the hook of cold workers: standard library only, and any Python
from 3.8 on.
"""

import os
import sys

VARIABLE = "HOLDFAST_STACKS"
"""`SIGNAL@PATH`, the path being that of a file to append to, by the agent's descriptor in /proc."""
FIRST, LAST = 960, 1000
"""Where the descriptor is to be, so that no program comes upon its number."""


def take_variable() -> None:
    """Register what the environment asks for, and take that out of it."""
    place = os.environ.pop(VARIABLE, "")
    number, _, path = place.partition("@")
    if not number.isdecimal() or not path:
        return
    try:
        _register(int(number), path)
    except (OSError, RuntimeError, ValueError, ImportError):
        pass  # Rule 3: the agent sees that the signal is not caught, and does not send it.


def _register(number: int, path: str) -> None:
    descriptor = _out_of_the_way(os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC))
    was_there = "faulthandler" in sys.modules
    import faulthandler

    faulthandler.register(number, descriptor, all_threads=True, chain=False)
    if not faulthandler.is_enabled():
        faulthandler.enable(descriptor, all_threads=True)
    if not was_there:
        del sys.modules["faulthandler"]


def _out_of_the_way(descriptor: int) -> int:
    """Move it to a number that is free and far up; where the limit is lower, it stays."""
    for number in range(FIRST, LAST):
        try:
            os.fstat(number)
        except OSError:
            try:
                os.dup2(descriptor, number, inheritable=False)
            except OSError:
                return descriptor
            os.close(descriptor)
            return number
    return descriptor
