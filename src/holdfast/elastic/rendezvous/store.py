"""The store that the agents of a job share, with the calls of PyTorch's stores.

Rules
- Values go in as bytes or text and come out as bytes. Times are seconds or a `timedelta`.
- Every call blocks the thread that makes it, and no other. A wait for a key is a wait at the
  server, which answers when the key is there.
- The errors are those of `store.client`, and RuntimeErrors as those of PyTorch's stores are.

How it works: `CoordinatorStore` is the client of `store.client`; only times are told in the words
of PyTorch.
"""

from __future__ import annotations

import weakref
from abc import ABC, abstractmethod
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from holdfast.core.protocol.model import Endpoint
from holdfast.store.client import (
    DEFAULT_TIMEOUT_S,
    StoreClient,
    StoreError,
    StoreOverError,
    StoreTimeoutError,
    Value,
)
from holdfast.transport.auth import OPEN, ConnectionSecurity

__all__ = [
    "CoordinatorStore",
    "PrefixStore",
    "Store",
    "StoreError",
    "StoreOverError",
    "StoreTimeoutError",
]

Span = timedelta | float
DEFAULT_TIMEOUT = timedelta(seconds=DEFAULT_TIMEOUT_S)


class Store(ABC):
    """The calls that every store has."""

    @abstractmethod
    def set(self, key: str, value: Value) -> None:
        """Set a key, whatever it held."""

    @abstractmethod
    def get(self, key: str) -> bytes:
        """The value of a key, as soon as it has one; `StoreTimeoutError` if not in time."""

    @abstractmethod
    def add(self, key: str, value: int) -> int:
        """Add to a number, which is 0 where there is none; the sum."""

    @abstractmethod
    def append(self, key: str, value: Value) -> None:
        """Put a value behind what the key holds."""

    @abstractmethod
    def wait(self, keys: Sequence[str], timeout: Span | None = None) -> None:
        """Return when all keys are there; `StoreTimeoutError` if not in time."""

    @abstractmethod
    def check(self, keys: Sequence[str]) -> bool:
        """Whether all keys are there now."""

    @abstractmethod
    def compare_set(self, key: str, expected_value: Value, desired_value: Value) -> bytes:
        """Set a key if it holds what is expected; what it holds then.

        A key that is not there is made if nothing is expected. Otherwise it stays away, and
        what was expected is returned.
        """

    @abstractmethod
    def delete_key(self, key: str) -> bool:
        """Remove a key; whether it was there."""

    @abstractmethod
    def num_keys(self) -> int:
        """The number of keys, of every prefix."""

    @abstractmethod
    def multi_get(self, keys: Sequence[str]) -> list[bytes]:
        """The values of all keys, as soon as all have one."""

    @abstractmethod
    def multi_set(self, keys: Sequence[str], values: Sequence[Value]) -> None:
        """Set all keys at once."""

    @property
    @abstractmethod
    def timeout(self) -> timedelta:
        """The time-out of a call, unless it says otherwise."""

    @abstractmethod
    def set_timeout(self, timeout: Span) -> None:
        """Set how long a call may take."""

    def has_extended_api(self) -> bool:
        """Whether it has `append`, `multi_get` and `multi_set`: always."""
        return True


class CoordinatorStore(StoreClient, Store):
    """One round's keys at the job's coordinator."""

    def __init__(
        self,
        endpoint: Endpoint,
        job: str,
        security: ConnectionSecurity = OPEN,
        round: int = 1,
        timeout: Span = DEFAULT_TIMEOUT_S,
    ) -> None:
        super().__init__(endpoint, job, security, round, _seconds(timeout))
        weakref.finalize(self, self._lines.close_idle)  # Agents drop the store of an old round.

    def wait(self, keys: Sequence[str], timeout: Span | None = None) -> None:
        allowed_s = self._timeout_s if timeout is None else _seconds(timeout)
        if allowed_s > 0:
            super().wait(keys, allowed_s)
        elif not self.check(keys):
            raise StoreTimeoutError(f"these keys are not all set: {', '.join(keys)}")

    @property
    def timeout(self) -> timedelta:
        return timedelta(seconds=self._timeout_s)

    def set_timeout(self, timeout: Span) -> None:
        self._timeout_s = _seconds(timeout)


class PrefixStore(Store):
    """Another store, of ours, of PyTorch's or of anybody's, with `prefix/` before every key.

    One that has no calls for many keys is asked for one after the other, and the time of one
    that has no timeout cannot be set. What else it does not have cannot be called here either.
    """

    def __init__(self, prefix: str, store: Any) -> None:
        self._prefix = prefix
        self._store = store

    @property
    def underlying_store(self) -> Any:
        """The store that has the keys, under their longer names."""
        return self._store

    def set(self, key: str, value: Value) -> None:
        self._store.set(self._key(key), value)

    def get(self, key: str) -> bytes:
        value: bytes = self._store.get(self._key(key))
        return value

    def add(self, key: str, value: int) -> int:
        total: int = self._store.add(self._key(key), value)
        return total

    def append(self, key: str, value: Value) -> None:
        self._store.append(self._key(key), value)

    def wait(self, keys: Sequence[str], timeout: Span | None = None) -> None:
        if timeout is None:
            self._store.wait(self._keys(keys))
        else:
            self._store.wait(self._keys(keys), timeout)

    def check(self, keys: Sequence[str]) -> bool:
        return bool(self._store.check(self._keys(keys)))

    def compare_set(self, key: str, expected_value: Value, desired_value: Value) -> bytes:
        held: bytes = self._store.compare_set(self._key(key), expected_value, desired_value)
        return held

    def delete_key(self, key: str) -> bool:
        return bool(self._store.delete_key(self._key(key)))

    def num_keys(self) -> int:
        return int(self._store.num_keys())

    def multi_get(self, keys: Sequence[str]) -> list[bytes]:
        if not hasattr(self._store, "multi_get"):
            return [self.get(key) for key in keys]
        return list(self._store.multi_get(self._keys(keys)))

    def multi_set(self, keys: Sequence[str], values: Sequence[Value]) -> None:
        if hasattr(self._store, "multi_set"):
            self._store.multi_set(self._keys(keys), values)
            return
        for key, value in zip(keys, values, strict=True):
            self.set(key, value)

    @property
    def timeout(self) -> timedelta:
        own: timedelta = getattr(self._store, "timeout", DEFAULT_TIMEOUT)
        return own

    def set_timeout(self, timeout: Span) -> None:
        if hasattr(self._store, "set_timeout"):
            self._store.set_timeout(timeout)

    def _key(self, key: str) -> str:
        return f"{self._prefix}/{key}"

    def _keys(self, keys: Sequence[str]) -> list[str]:
        return [self._key(key) for key in keys]


def _seconds(span: Span) -> float:
    return span.total_seconds() if isinstance(span, timedelta) else float(span)
