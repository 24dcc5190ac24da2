"""A register in a TCPStore of PyTorch's, which one machine serves.

Rules
1. The document is one key, `holdfast/<run id>`, as base64 text. The token is the stored value:
   every write is unique, so comparing values is as good as comparing versions.
2. A TCPStore lives in the process that hosts it, and dies with it, document and all. It is
   hosted by the node that says so (`is_host=true`), or else by one on the endpoint's machine that
   finds the port free; for as long as one of its registers in that process is not closed.
3. PyTorch is imported where a TCPStore is hosted, and nowhere else.

How it works: PyTorch's `compare_set(key, expected, desired)` returns what is there afterwards.
Three of its habits matter: an empty `expected` sets only where nothing is; a set that succeeds
returns `desired`; and where the key is absent although something was expected, it returns
`expected` itself. So a read is a comparison with something that no document can be, and a set
that returns what it expected has found nothing there.

Why PyTorch's own client is not used (as of 2.13): its constructor and its `compare_set` wait for a
server that is silent without an end, whatever timeout they are given, and every agent of the job
would pay for the import of PyTorch. So the few words that are needed are spoken here, to a real
TCPStore, next to PyTorch's clients, who find the document under its key.
"""

from __future__ import annotations

import binascii
import os
import socket
import struct
import time
from importlib import import_module
from typing import Any
from urllib.parse import quote
from weakref import WeakValueDictionary

from holdfast.core.policy.config import DEFAULT_PORT
from holdfast.core.policy.rendezvous_settings import read
from holdfast.core.protocol.errors import UsageError
from holdfast.core.protocol.model import Endpoint
from holdfast.registers.register import RegisterRefused, RegisterSettings, RegisterUnreachable

LONGEST_VALUE = 1 << 20
_ABSENT = b"?"
"""A value that no document has in base64: comparing with it only reads."""
_VALIDATE = struct.pack("<BI", 0, 0x3C85F7CE)
_COMPARE_SET = b"\2"
_LENGTH = struct.Struct("<Q")


class TorchStoreRegister:
    """One key of a TCPStore; and the store, if it is hosted here."""

    def __init__(self, settings: RegisterSettings) -> None:
        """Host the store if that is due; raises `UsageError` if it should and cannot be."""
        self._endpoint = Endpoint.parse(settings.endpoint, DEFAULT_PORT, least=1)
        self._key = f"/holdfast/{quote(settings.run_id, safe='')}".encode()
        self._timeout_s = min(settings.endpoint_timeout_s, settings.call_timeout_s / 2)
        self._connection: socket.socket | None = None
        """Made when it is needed."""
        self._store = _host(self._endpoint, read(settings.options, "is_host"))

    def get_state(self) -> tuple[bytes, bytes] | None:
        value = self._compare_set(_ABSENT, _ABSENT)
        return None if value == _ABSENT else (self._content(value), value)

    def set_state(
        self, state: bytes, token: bytes | None = None
    ) -> tuple[bytes, bytes | None, bool]:
        """As `Register` says; where nothing is, that is `(b"", None, False)`."""
        if not state:
            raise ValueError("an empty document means that there is none")
        desired = binascii.b2a_base64(state, newline=False)
        value = self._compare_set(token or b"", desired)
        if value == desired:
            return state, desired, True
        if value == token:
            return b"", None, False
        return self._content(value), value, False

    def _content(self, value: bytes) -> bytes:
        try:
            return binascii.a2b_base64(value, strict_mode=True)
        except binascii.Error:
            what = f"what the store at {self._endpoint} holds"
            raise RegisterRefused(f"{what} is damaged, or not a document of ours") from None

    def _compare_set(self, expected: bytes, desired: bytes) -> bytes:
        """The value afterwards.

        Raises `RegisterUnreachable` without an answer, `RegisterRefused` if it is no TCPStore.
        """
        try:
            return self._exchange(_COMPARE_SET + _parts(self._key, expected, desired))
        except (OSError, EOFError) as error:
            self._disconnect()
            reason = getattr(error, "strerror", None) or str(error) or "it hung up"
            what = f"the store at {self._endpoint} does not answer"
            raise RegisterUnreachable(f"{what}: {reason}") from None

    def close(self) -> None:
        self._disconnect()
        self._store = None

    def _exchange(self, words: bytes) -> bytes:
        deadline = time.monotonic() + self._timeout_s
        connection = self._connection = self._connection or self._connect(deadline)
        connection.settimeout(max(deadline - time.monotonic(), 0.001))
        connection.sendall(words)
        (length,) = _LENGTH.unpack(_receive(connection, _LENGTH.size, deadline))
        if length > LONGEST_VALUE:
            self._disconnect()
            raise RegisterRefused(f"{self._endpoint} is not a TCPStore that Holdfast knows")
        return _receive(connection, length, deadline)

    def _connect(self, deadline: float) -> socket.socket:
        timeout_s = max(deadline - time.monotonic(), 0.001)
        place = (self._endpoint.address, self._endpoint.port)
        connection = socket.create_connection(place, timeout_s)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.sendall(_VALIDATE)
        return connection

    def _disconnect(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


_hosted: WeakValueDictionary[str, Any] = WeakValueDictionary()
"""The TCPStores that this process hosts. Each lasts as long as one of its registers holds it: one
that is replaced, because a call of it hangs, must not end the store."""


def _host(endpoint: Endpoint, is_host: bool | None) -> Any:
    """The TCPStore that is hosted here, a new one if that is due; None if it is not."""
    if is_host is False:
        return None
    from holdfast.transport.own_endpoint import try_to_host

    store = _hosted.get(str(endpoint))
    if store is None and (listening := try_to_host(endpoint, is_host)) is not None:
        store = _hosted[str(endpoint)] = _serve(endpoint, listening)
    return store


def _serve(endpoint: Endpoint, listening: socket.socket) -> Any:
    """A TCPStore on a socket that listens already. It ends when nobody refers to it."""
    with listening:
        distributed = _torch()
        descriptor = os.dup(listening.fileno())
    return distributed.TCPStore(
        endpoint.address,
        endpoint.port,
        is_master=True,
        wait_for_workers=False,
        master_listen_fd=descriptor,
    )


def _parts(*parts: bytes) -> bytes:
    return b"".join(_LENGTH.pack(len(part)) + part for part in parts)


def _receive(connection: socket.socket, length: int, deadline: float) -> bytes:
    """So many bytes; raises EOFError if the other side ends before, TimeoutError if it is late."""
    received = b""
    while len(received) < length:
        connection.settimeout(max(deadline - time.monotonic(), 0.001))
        chunk = connection.recv(length - len(received))
        if not chunk:
            raise EOFError
        received += chunk
    return received


def _torch() -> Any:
    try:
        return import_module("torch.distributed")
    except ImportError:
        raise UsageError(
            "PyTorch is needed where a TCPStore is hosted, and is not installed here",
            "without store_type, c10d means Holdfast's own coordinator, which needs no PyTorch",
        ) from None
