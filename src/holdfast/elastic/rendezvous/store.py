"""The store that the agents of a job share, with the calls of PyTorch's stores.

Rules
- Values go in as bytes or text and come out as bytes. Times are seconds or a `timedelta`.
- Every call blocks the thread that makes it, and no other. A wait for a key is a wait at the
  server, which answers when the key is there.
- The errors are those of `store.client`, and RuntimeErrors as those of PyTorch's stores are.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from holdfast.store.client import (
    DEFAULT_TIMEOUT_S,
    CoordinatorStore,
    Span,
    StoreError,
    StoreOverError,
    StoreTimeoutError,
    Value,
)

__all__ = ["CoordinatorStore", "PrefixStore", "StoreError", "StoreOverError", "StoreTimeoutError"]


class PrefixStore:
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
        return bytes(self._store.get(self._key(key)))

    def add(self, key: str, value: int) -> int:
        return int(self._store.add(self._key(key), value))

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
        return bytes(self._store.compare_set(self._key(key), expected_value, desired_value))

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
        own: timedelta = getattr(self._store, "timeout", timedelta(seconds=DEFAULT_TIMEOUT_S))
        return own

    def set_timeout(self, timeout: Span) -> None:
        if hasattr(self._store, "set_timeout"):
            self._store.set_timeout(timeout)

    def has_extended_api(self) -> bool:
        """Whether it has `append`, `multi_get` and `multi_set`: always."""
        return True

    def _key(self, key: str) -> str:
        return f"{self._prefix}/{key}"

    def _keys(self, keys: Sequence[str]) -> list[str]:
        return [self._key(key) for key in keys]
