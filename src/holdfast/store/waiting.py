"""Clients that wait in the store: for which keys, and within which limits.

Rules
1. A client that waits for several keys waits for one after the other, in their order. When it has
   seen the last, those that were deleted meanwhile are waited for too.
2. A wait has at most `KEYS_MOST` keys (`require_few`), and all that wait hold `WAITING_BYTES` at
   most. Those who wait for the very same keys share one list of them, of which each but the first
   counts a fraction: a thousand agents that wait for a thousand keys are nothing unusual.

Why one key after the other: what a wait costs is then the list of its keys, and a look at each.
"""

from __future__ import annotations

from collections.abc import Container

from msgspec import Struct, field

from holdfast.store import sentences
from holdfast.transport.connection import FramedConnection

KEYS_MOST = 1 << 14
WAITING_BYTES = 128 << 20
BYTES_PER_KEY_WAITED_FOR = 64
"""Counted for each key in a list beside its own length: what it costs to hold it there."""
BYTES_PER_KEY_SHARED = 16
"""Counted for each key in a list that another wait holds: what it costs to look at it."""


class CannotDo(Exception):
    """A request that cannot be done, with the reason."""


class Waiter(Struct, eq=False):
    """A connection that waits until all keys are there; `at` is the one it waits for now."""

    connection: FramedConnection
    keys: tuple[str, ...]
    wants_values: bool
    deletions: int
    cost: int = 0
    at: int = 0


class Waiters(Struct, eq=False):
    """All who wait in one key space."""

    by_key: dict[str, dict[Waiter, None]] = field(default_factory=dict)
    bytes_held: int = 0
    _lists: dict[tuple[str, ...], tuple[tuple[str, ...], int]] = field(default_factory=dict)
    """Each list of keys that is waited for, and by how many."""

    def begin(self, waiter: Waiter, there: Container[str]) -> None:
        """Wait for the first key that is not there; raises `CannotDo` where too many wait."""
        keys, sharing = self._lists.get(waiter.keys, (waiter.keys, 0))
        cost = BYTES_PER_KEY_SHARED * len(keys)
        if not sharing:
            cost = sum(map(size_of, keys)) + BYTES_PER_KEY_WAITED_FOR * len(keys)
        if self.bytes_held + cost > WAITING_BYTES:
            raise CannotDo(sentences.too_many_waiting(WAITING_BYTES))
        self._lists[keys] = (keys, sharing + 1)
        self.bytes_held += cost
        waiter.keys, waiter.cost = keys, cost
        waiter.connection.state = waiter
        self._wait_for_next(waiter, there)

    def found(self, key: str, there: Container[str], deletions: int) -> list[Waiter]:
        """A key is there: return the waiters that have all of their keys now, and remove them."""
        done = []
        for waiter in self.by_key.pop(key, {}):
            if self._wait_for_next(waiter, there):
                continue
            if waiter.deletions != deletions:
                waiter.at, waiter.deletions = 0, deletions
                if self._wait_for_next(waiter, there):
                    continue
            self._let_go_of(waiter)
            done.append(waiter)
        return done

    def _wait_for_next(self, waiter: Waiter, there: Container[str]) -> bool:
        """Wait for the next of its keys that is not there; False where none is missing."""
        for at in range(waiter.at, len(waiter.keys)):
            key = waiter.keys[at]
            if key not in there:
                waiter.at = at
                self.by_key.setdefault(key, {})[waiter] = None
                return True
        return False

    def give_up(self, waiter: Waiter) -> None:
        """It does not wait any more."""
        key = waiter.keys[waiter.at]
        others = self.by_key.get(key)
        if others is None or waiter not in others:
            return
        del others[waiter]
        if not others:
            del self.by_key[key]
        self._let_go_of(waiter)

    def _let_go_of(self, waiter: Waiter) -> None:
        keys, sharing = self._lists.pop(waiter.keys)
        if sharing > 1:
            self._lists[keys] = (keys, sharing - 1)
        self.bytes_held -= waiter.cost

    def end(self) -> list[FramedConnection]:
        """Forget all waiters, and return them."""
        told = [waiter.connection for waiters in self.by_key.values() for waiter in waiters]
        self.by_key.clear()
        self._lists.clear()
        self.bytes_held = 0
        return told


def size_of(key: str) -> int:
    """Size of the text itself, at most."""
    return len(key) if key.isascii() else 4 * len(key)


def require_few(keys: tuple[str, ...]) -> None:
    """Raises `CannotDo` where they are more than one request may have."""
    if len(keys) > KEYS_MOST:
        raise CannotDo(sentences.too_many_keys(len(keys), KEYS_MOST))
