"""A line in which addresses take turns, however many clients each of them has."""

from __future__ import annotations

from collections import OrderedDict, deque
from typing import Generic, TypeVar

P = TypeVar("P")


class FairTurns(Generic[P]):
    """Clients that wait, in order within one address; nobody is in it twice."""

    def __init__(self) -> None:
        self._lines: OrderedDict[str, deque[P]] = OrderedDict()
        self._waiting: set[P] = set()

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def add(self, client: P, address: str) -> None:
        if client not in self._waiting:
            self._waiting.add(client)
            self._lines.setdefault(address, deque()).append(client)

    def take(self) -> P | None:
        """The next client; its address goes to the end of the line."""
        if not self._lines:
            return None
        address, line = self._lines.popitem(last=False)
        client = line.popleft()
        self._waiting.discard(client)
        if line:
            self._lines[address] = line
        return client
