"""Memory that an agent shares with its workers, and that none of them can make smaller.

Who maps a file that somebody cuts off gets SIGBUS at the next look, and an agent would end with it.
"""

from __future__ import annotations

import fcntl
import os

SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL


def sealed_memory(name: str, size: int) -> int:
    """The descriptor of so many bytes without a name in a file system. Raises `OSError`."""
    descriptor = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.ftruncate(descriptor, size)
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, SEALS)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor
