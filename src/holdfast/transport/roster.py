"""Which connection of a node counts, and what the end of its tethers proves. Pure.

Rules
1. A node has one control connection. A newer one replaces the older; only the end of the one that
   counts is told.
2. A node is told nothing on a connection before its own first word on it: what was decided before
   that word was read is answered by it, and must not follow it.
3. A node may have several tethers, because processes that it started before a reconnection still
   hold the older one. The end is told when the last of them is over, and proves that the node is
   gone only if each of them ended in order and the latest connection's is among them: a node lets
   go of the old one when it has a new one, which may arrive later than that.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Generic, TypeVar

from msgspec import Struct

C = TypeVar("C")


class Roster(Generic[C]):
    """The nodes that are there, by their connections of whatever kind."""

    def __init__(self) -> None:
        self._controls: dict[str, C] = {}
        self._tethers: dict[str, _Tethers[C]] = {}
        self._heard: set[str] = set()
        """Nodes that have said something on their latest connection."""
        self._untethered: set[str] = set()
        """Nodes whose latest connection has brought no tether yet."""

    @property
    def nodes(self) -> frozenset[str]:
        """Nodes with a control connection now."""
        return frozenset(self._controls)

    def __contains__(self, node: str) -> bool:
        return node in self._controls

    # Control connections.

    def admit(self, node: str, connection: C) -> C | None:
        """It counts from now on; returns the one that it replaces."""
        older = self._controls.get(node)
        self._controls[node] = connection
        self._heard.discard(node)
        self._untethered.add(node)
        return older

    def counts(self, node: str, connection: C) -> bool:
        return self._controls.get(node) is connection

    def spoke(self, node: str) -> None:
        """It has said something on the connection that counts."""
        self._heard.add(node)

    def controls(self) -> list[C]:
        return list(self._controls.values())

    def control(self, node: str) -> C | None:
        return self._controls.get(node)

    def listener(self, node: str) -> C | None:
        """The connection on which the node may be told something."""
        return self._controls.get(node) if node in self._heard else None

    def ended(self, node: str, connection: C) -> bool:
        """A control connection is over; whether that is to be told."""
        if not self.counts(node, connection):
            return False
        del self._controls[node]
        return True

    # Tethers.

    @property
    def tethered(self) -> frozenset[str]:
        """Nodes with a tether now."""
        return frozenset(self._tethers)

    def tethers(self, node: str) -> int:
        """The number of its tethers."""
        found = self._tethers.get(node)
        return len(found.open) if found is not None else 0

    def tether(self, node: str, connection: C) -> None:
        """A tether, brought by the node's latest connection."""
        self._untethered.discard(node)
        found = self._tethers.get(node)
        if found is None:
            self._tethers[node] = _Tethers([connection], connection)
        else:
            found.open.append(connection)
            found.latest = connection

    def latest_tether(self, node: str) -> C | None:
        found = self._tethers.get(node)
        return found.latest if found is not None and found.latest in found.open else None

    def tether_ended(self, node: str, connection: C, clean: bool) -> bool | None:
        """Whether its end proves that nothing of the node is left; None where nothing is told."""
        found = self._tethers.get(node)
        if found is None or connection not in found.open:
            return None
        found.open.remove(connection)
        found.all_clean = found.all_clean and clean
        if found.open:
            return None
        del self._tethers[node]
        return found.all_clean and node not in self._untethered

    # Letting go.

    def drop(self, node: str) -> tuple[C | None, Collection[C]]:
        """Forget a node; its control connection and its tethers are to be closed."""
        control = self._controls.pop(node, None)
        tethers = self._tethers.pop(node, None)
        return control, tethers.open if tethers is not None else ()

    def clear(self) -> None:
        self._controls.clear()
        self._tethers.clear()


class _Tethers(Struct, Generic[C]):
    """The tethers of one node."""

    open: list[C]
    latest: C
    all_clean: bool = True
