"""The guardian: a process between a spawner and its parent, that only waits.

When a spawner is killed, what its workers started comes up to the next subreaper above. The
agent of `holdfast run` is one and cleans up. A process that merely uses our library must not be
made one: it would get orphans that are none of ours. So a guardian is, and cleans up in its
place; it then ends as the spawner did.

    caller ── guardian ── spawner ── workers

When the guardian is killed, a pipe that only it holds ends, by which the spawner ends too, with
all that is below it. Standard library only: for the spawner.
"""

from __future__ import annotations

import contextlib
import os
import signal

from holdfast.processes.stdlib_only import linux


def run_under_guardian() -> int:
    """Go on as the child of a guardian; returns a descriptor that ends when it does."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # Else the kernel may reap, and not tell.
    linux.set_subreaper()
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(writing)
        return reading
    try:
        os.close(reading)  # First, so that one is free by which the others can be listed.
        guard(pid, writing)
    finally:
        os._exit(1)


def guard(spawner: int, writing: int) -> None:
    """Wait for the spawner's end, kill what it left, and end in the same way."""
    linux.set_title("holdfast-guard")
    linux.close_all_but(writing)  # The spawner's socket among them: its end must be seen.
    _, status = os.waitpid(spawner, 0)
    linux.kill_all_below(os.getpid())
    code = os.waitstatus_to_exitcode(status)
    if code >= 0:
        os._exit(code)
    with contextlib.suppress(OSError):
        signal.signal(-code, signal.SIG_DFL)
    os.kill(os.getpid(), -code)
