"""A store in etcd, over its v2 API: every key is a document of its own.

A register already has what a store needs (compare-and-set, and a wait for what is not there yet),
so a key is a register (`registers.etcd_v2`), and nothing else speaks to etcd here. What a
register holds is unique, by which a writer knows its own: a few random bytes lead each value.
Keys live for two hours after they were last written. `delete_key` and `num_keys` are not offered.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any
from urllib.parse import quote, urlsplit

from msgspec.structs import replace

from holdfast.registers.etcd_v2 import EtcdV2Register
from holdfast.registers.register import (
    Credentials,
    RegisterRefused,
    RegisterSettings,
    RegisterUnreachable,
)
from holdfast.store.client import Span, StoreError, StoreTimeoutError, Value, seconds_of

__all__ = ["EtcdStore"]

KEEP_S = 7200.0
TIMEOUT_S = 300.0
CALL_S = 10.0
NONCE_BYTES = 8


def settings_of(client: Any, prefix: str, name: str, keep_s: float = KEEP_S) -> RegisterSettings:
    """The register `prefix/name` of an etcd, given by a client of python-etcd or by settings."""
    given = client if isinstance(client, RegisterSettings) else _settings_of_client(client)
    options = {**given.options, "etcd_prefix": prefix.rstrip("/") or "/"}
    return replace(given, run_id=name, options=options, call_timeout_s=CALL_S, keep_s=keep_s)


def _settings_of_client(client: Any) -> RegisterSettings:
    """All servers that a client knows, and how it proves itself to them."""
    places = [urlsplit(uri).netloc for uri in (client.base_uri, *_other_uris(client))]
    files = getattr(client.http, "connection_pool_kw", {})
    found = {"cert": "cert_file", "key": "key_file", "cacert": "ca_certs"}
    options = {ours: str(files[theirs]) for ours, theirs in found.items() if files.get(theirs)}
    options["protocol"] = str(client.protocol)
    credentials = Credentials(client.username or "", client.password or "")
    return RegisterSettings("etcd-v2", ",".join(places), "", options, credentials)


def _other_uris(client: Any) -> list[str]:
    return list(getattr(client, "_machines_cache", ()))


class EtcdStore:
    """The keys below one prefix."""

    def __init__(
        self, etcd_client: Any, etcd_store_prefix: str, timeout: Span | None = None
    ) -> None:
        self.client, self.prefix = etcd_client, etcd_store_prefix.rstrip("/") + "/"
        self._timeout_s = TIMEOUT_S
        if timeout is not None:
            self.set_timeout(timeout)

    def set(self, key: str, value: Value) -> None:
        self._change(key, lambda _: _bytes(value))

    def get(self, key: str) -> bytes:
        return self._awaited(key, time.monotonic() + self._timeout_s)

    def add(self, key: str, value: int) -> int:
        return int(self._change(key, lambda old: b"%d" % (int(old or b"0") + value)))

    def append(self, key: str, value: Value) -> None:
        self._change(key, lambda old: (old or b"") + _bytes(value))

    def wait(self, keys: Sequence[str], timeout: Span | None = None) -> None:
        deadline = time.monotonic() + (self._timeout_s if timeout is None else seconds_of(timeout))
        for key in keys:
            self._awaited(key, deadline)

    def check(self, keys: Sequence[str]) -> bool:
        return all(self._now(key) is not None for key in keys)

    def compare_set(self, key: str, expected_value: Value, desired_value: Value) -> bytes:
        expected, desired = _bytes(expected_value), _bytes(desired_value)

        def choose(old: bytes | None) -> bytes | None:
            return desired if (old or b"") == expected else None

        return self._change(key, choose, expected)

    def delete_key(self, key: str) -> bool:
        raise NotImplementedError("a store in etcd cannot remove keys: they expire by themselves")

    def num_keys(self) -> int:
        raise NotImplementedError("a store in etcd cannot count its keys")

    def multi_get(self, keys: Sequence[str]) -> list[bytes]:
        deadline = time.monotonic() + self._timeout_s
        return [self._awaited(key, deadline) for key in keys]

    def multi_set(self, keys: Sequence[str], values: Sequence[Value]) -> None:
        for key, value in zip(keys, values, strict=True):
            self.set(key, value)

    @property
    def timeout(self) -> timedelta:
        return timedelta(seconds=self._timeout_s)

    def set_timeout(self, timeout: Span) -> None:
        self._timeout_s = seconds_of(timeout)

    def has_extended_api(self) -> bool:
        return True

    @contextmanager
    def _register(self, key: str) -> Iterator[EtcdV2Register]:
        register = EtcdV2Register(settings_of(self.client, self.prefix, quote(key, safe="")))
        try:
            yield register
        except (RegisterUnreachable, RegisterRefused) as error:
            raise StoreError(f"etcd: {error}") from error
        finally:
            register.close()

    def _now(self, key: str) -> bytes | None:
        with self._register(key) as register:
            found = register.get_state()
        return None if found is None else found[0][NONCE_BYTES:]

    def _awaited(self, key: str, deadline: float) -> bytes:
        with self._register(key) as register:
            found = register.get_state()
            if found is None:
                found = register.wait_for_change(None, max(deadline - time.monotonic(), 0.0))
        if found is None:
            raise StoreTimeoutError(f"{key} was not set in time")
        return found[0][NONCE_BYTES:]

    def _change(
        self, key: str, choose: Callable[[bytes | None], bytes | None], absent: bytes = b""
    ) -> bytes:
        """Set what is chosen over the old value, however often others come first; what is there.

        Nothing chosen leaves it as it is; `absent` is returned where there is nothing then.
        """
        with self._register(key) as register:
            found = register.get_state()
            while True:
                old, token = (None, None) if found is None else (found[0][NONCE_BYTES:], found[1])
                desired = choose(old)
                if desired is None:
                    return absent if old is None else old
                unique = os.urandom(NONCE_BYTES) + desired
                content, now_token, has_set = register.set_state(unique, token)
                if has_set:
                    return desired
                found = None if now_token is None else (content, now_token)


def _bytes(value: Value) -> bytes:
    return value.encode() if isinstance(value, str) else bytes(value)
