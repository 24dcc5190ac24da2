"""Meeting through a store: everybody's data to everybody, and a barrier.

Rules
1. Any object will do that has `set`, `get` or `multi_get`, `add` and `wait(keys)`, where `get`
   waits for its key. With `timeout` and `set_timeout` the time that is allowed here applies to
   it for as long as a call takes, and its own afterwards, also after an error.
2. Keys are never removed: a prefix serves one meeting. A barrier counts arrivals under
   `<prefix>/num_members`; the last to arrive sets `<prefix>/last_member`, and goes on: the
   server of the store may be gone a moment later. The keys and their values are PyTorch's, so
   that agents of both can meet in one store.
3. What the store raises goes on to the caller. A barrier that knows its rank first tries to
   find out who is missing; it then raises an error of the same class that names them.

How the missing are found: everybody whose wait was in vain sets `<prefix><rank>/TRACE`. Rank 0
looks for each of these, sets `<prefix>/TRACING_GATE` and names the absent; the others wait for
that, since rank 0 usually serves the store, and point to rank 0.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

from holdfast.core.protocol.errors import HoldfastError

__all__ = ["barrier", "get_all", "store_timeout", "synchronize"]

Store = Any
IS_SET = "<val_ignored>"
MOST_NAMED = 16
IN_VAIN = (RuntimeError, OSError, LookupError, HoldfastError)
"""Errors of a wait: of PyTorch's stores, of those over etcd, and of our own."""


@contextmanager
def store_timeout(store: Store, timeout: float) -> Iterator[None]:
    """Allow a store's calls that many seconds within the block."""
    if not hasattr(store, "set_timeout"):
        yield
        return
    before = store.timeout
    store.set_timeout(timedelta(seconds=timeout))
    try:
        yield
    finally:
        store.set_timeout(before)


def get_all(store: Store, rank: int, prefix: str, world_size: int) -> list[bytes]:
    """The values of `<prefix>0`, `<prefix>1` … as soon as all are there, in that order.

    Rank 0 returns last: it usually serves the store that the others still read.
    """
    values = values_of(store, [f"{prefix}{peer}" for peer in range(world_size)])
    everybody_has_read = _arrive(store, world_size, f"{prefix}/finished")
    if rank == 0 and everybody_has_read is not None:
        store.wait([everybody_has_read])
    return values


def synchronize(
    store: Store,
    data: bytes,
    rank: int,
    world_size: int,
    key_prefix: str,
    timeout: float = 300,
) -> list[bytes]:
    """Give `data` to everybody, and return what everybody gave, by rank."""
    with store_timeout(store, timeout):
        store.set(f"{key_prefix}{rank}", data)
        return get_all(store, rank, key_prefix, world_size)


def barrier(
    store: Store,
    world_size: int,
    key_prefix: str,
    barrier_timeout: float = 300,
    rank: int | None = None,
    rank_tracing_decoder: Callable[[int], str] | None = None,
    trace_timeout: float = 10,
) -> None:
    """Return when `world_size` callers have come here.

    Where that takes too long, the store's error is raised. With `rank`, it names who is
    missing, in the words of `rank_tracing_decoder` if there is one.
    """
    if rank is None and rank_tracing_decoder is not None:
        raise AssertionError("a rank_tracing_decoder needs a rank")
    with store_timeout(store, barrier_timeout):
        everybody_is_here = _arrive(store, world_size, key_prefix)
        if everybody_is_here is None:
            return
        try:
            store.wait([everybody_is_here])
        except IN_VAIN as error:
            if rank is None:
                raise
            search = _Search(store, world_size, key_prefix, rank_tracing_decoder or str)
            missing = search.join(rank, trace_timeout)
            if missing is None:
                raise
            raise _naming(error, missing, f"{world_size=}, timeout={barrier_timeout}") from None


def values_of(store: Store, keys: Sequence[str]) -> list[bytes]:
    """The values of all keys, as soon as all have one, from any store."""
    if hasattr(store, "multi_get"):
        return list(store.multi_get(keys))
    return [store.get(key) for key in keys]


def _arrive(store: Store, world_size: int, key_prefix: str) -> str | None:
    """Count ourselves in; the key that is there once everybody is, unless everybody is now."""
    last_member = f"{key_prefix}/last_member"
    if store.add(f"{key_prefix}/num_members", 1) == world_size:
        store.set(last_member, IS_SET)
        return None
    return last_member


class _Search:
    """The search for those missing at a barrier."""

    def __init__(
        self, store: Store, world_size: int, key_prefix: str, name_of: Callable[[int], str]
    ) -> None:
        self._store = store
        self._world_size = world_size
        self._key_prefix = key_prefix
        self._name_of = name_of

    def join(self, rank: int, trace_timeout_s: float) -> list[str] | None:
        """The names of the missing; None where that cannot be found out."""
        try:
            self._store.set(f"{self._key_prefix}{rank}/TRACE", IS_SET)
            if rank != 0:
                self._store.wait([f"{self._key_prefix}/TRACING_GATE"])
                return [f"[<check rank 0 ({self._name_of(0)}) for missing rank info>]"]
            missing = self._missing(trace_timeout_s)
            self._store.set(f"{self._key_prefix}/TRACING_GATE", IS_SET)
        except IN_VAIN:
            return None  # the store itself is gone, or rank 0 is
        return [self._name_of(rank) for rank in missing]

    def _missing(self, trace_timeout_s: float) -> list[int]:
        """The first of the missing has time to come; after it, everybody had that time."""
        missing: list[int] = []
        patience = timedelta(seconds=trace_timeout_s)
        for rank in range(1, self._world_size):
            if len(missing) == MOST_NAMED:
                break
            try:
                self._store.wait([f"{self._key_prefix}{rank}/TRACE"], patience)
            except IN_VAIN:
                missing.append(rank)
                patience = timedelta(milliseconds=1)
        return missing


def _naming(error: Exception, missing: list[str], details: str) -> Exception:
    words = f"not everybody came to the barrier: missing_ranks=[{', '.join(missing)}] ({details})"
    try:
        return type(error)(words)
    except TypeError:  # a class of the store's own, made of something else
        error.add_note(words)
        return error
