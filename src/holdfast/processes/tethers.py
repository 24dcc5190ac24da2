"""What this node holds, so that its end means that nothing of the node is left.

Tethers are connections. The note is a file on this machine, locked as long as anybody holds it; all
that hold the node's own tether hold it too.

Its own is held by everything here, workers included. Those of other nodes to us, where we
carry the coordinator, by agent and spawner only: with these gone, the kernel has killed the
workers.
"""

from __future__ import annotations

import os
from collections.abc import Callable


class Tethers:
    """Owns the descriptors that it is given."""

    def __init__(self, copied: Callable[[int], None], close_file: Callable[[int], None]) -> None:
        """Files are not closed on the loop: `copied` is told of each copy of one that is given
        away, and `close_file` closes it."""
        self._copied, self._close_file = copied, close_file
        self._own: int | None = None
        self._shared: list[int] = []
        self._note: int | None = None

    def hold(self, descriptor: int) -> None:
        """This is the node's own one from now on."""
        if self._own is not None:
            os.close(self._own)
        self._own = descriptor

    def hold_lock(self, descriptor: int) -> None:
        """The node's note, from now on."""
        self._note = descriptor

    def share(self, descriptors: list[int]) -> None:
        """These are the ones of other nodes, in place of those before."""
        for descriptor in self._shared:
            os.close(descriptor)
        self._shared = descriptors

    def for_worker(self) -> list[int]:
        """Copies for a worker."""
        copies = [] if self._own is None else [os.dup(self._own)]
        if self._note is not None:
            copies.append(os.dup(self._note))
            self._copied(copies[-1])
        return copies

    def for_spawner(self) -> list[int]:
        """Copies for the spawner."""
        return [*self.for_worker(), *map(os.dup, self._shared)]

    def close(self) -> None:
        if self._own is not None:
            os.close(self._own)
        if self._note is not None:
            self._close_file(self._note)
        self._own = self._note = None
        self.share([])
