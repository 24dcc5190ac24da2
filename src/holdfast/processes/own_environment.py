"""Secrets in the environment that this process was started with: taken out, where all can look.

`/proc/PID/environ` shows the memory that the kernel filled at the start, to every process of the
same user, whatever the variables are set to later. So the secrets are overwritten there.

Kept free of imports that take time: the spawner, which must not have them, is started after it.
"""

from __future__ import annotations

import os

SECRETS = ("HOLDFAST_TOKEN", "HOLDFAST_REGISTER_PASSWORD")
"""What the agent has in its environment and nobody below it is given."""


def take_secrets() -> dict[str, str]:
    """The secrets of this process, which are in its environment no more."""
    taken = {name: os.environ.pop(name) for name in SECRETS if name in os.environ}
    if taken:
        try:
            _overwrite({os.fsencode(name) for name in taken})
        except (OSError, ValueError, IndexError):
            pass  # A system that hides `/proc` from us hides it from others of this user, too.
    return taken


def _overwrite(names: set[bytes]) -> None:
    """Put nothing in the place of these variables, where the kernel shows them."""
    with open("/proc/self/stat", "rb") as file:
        # The name of the process, in parentheses, may hold anything.
        fields = file.read().rpartition(b")")[2].split()
    begin, end = int(fields[47]), int(fields[48])
    memory = os.open("/proc/self/mem", os.O_RDWR | os.O_CLOEXEC)
    try:
        at = begin
        for entry in os.pread(memory, end - begin, begin).split(b"\0"):
            if entry.partition(b"=")[0] in names:
                os.pwrite(memory, bytes(len(entry)), at)
            at += len(entry) + 1
    finally:
        os.close(memory)
