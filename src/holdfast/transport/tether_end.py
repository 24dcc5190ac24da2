"""Our end of a tether, watched for the end of everything at the other.

An orderly end (FIN) says that all processes that held the other end are gone: one that drops a
tether for another reason resets it. A reset, or silence, says nothing.
"""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Callable

from holdfast.runtime.loop import Loop


class TetherEnd:
    """Calls back once, when all that held the other end is gone."""

    def __init__(self, loop: Loop, descriptor: int, on_gone: Callable[[], None]) -> None:
        """Owns the descriptor from now on."""
        self._loop, self._on_gone = loop, on_gone
        self._socket: socket.socket | None = socket.socket(fileno=descriptor)
        loop.add_reader(descriptor, self._on_readable)

    def _on_readable(self) -> None:
        assert self._socket is not None, "it is read only while it is open"
        try:
            is_over = self._socket.recv(1, socket.MSG_DONTWAIT) == b""
        except BlockingIOError:
            return
        except OSError:
            is_over = False
        self.close()
        if is_over:
            self._on_gone()

    def close(self) -> None:
        if self._socket is None:
            return
        self._loop.remove_reader(self._socket.fileno())
        # Only our descriptor: the others on this node hold the tether on.
        os.close(self._socket.detach())
        self._socket = None


def reset_tether(descriptor: int) -> None:
    """Let go of a tether without saying that nothing of this node is left."""
    with socket.socket(fileno=descriptor) as tether:
        tether.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
