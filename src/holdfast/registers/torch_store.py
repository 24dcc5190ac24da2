"""A register in one of PyTorch's own stores: a TCPStore that one machine serves, or a FileStore.

Rules
1. The document is one key, `holdfast/<run id>`, as base64 text. The token is the stored value:
   every write is unique, so comparing values is as good as comparing versions.
2. A TCPStore lives in the process that hosts it, and dies with it, document and all. It is
   hosted by the node that says so (`is_host=true`), or else by one on the endpoint's machine that
   finds the port free; for as long as one of its registers in that process is not closed.
3. PyTorch is imported where a TCPStore is hosted, and nowhere else.
4. A write that was sent twice and is not found counts as unknown: others may have set theirs
   over ours between the two.

How it works. PyTorch's `compare_set(key, expected, desired)` returns what is there afterwards.
Three of its habits matter: an empty `expected` sets only where nothing is; a set that succeeds
returns `desired`; and where the key is absent although something was expected, it returns
`expected` itself. So a read is a comparison with something that no document can be, and a set
that returns what it expected has found nothing there.

Why PyTorch's own clients are not used (as of 2.13). Of a TCPStore: its constructor and its
`compare_set` wait for a server that is silent without an end, whatever timeout they are given.
Of a FileStore: its constructor and its destructor wait for the lock of the file while they hold
Python's, so that one paused process would stop every agent; and where a writer was killed in
the middle of its append, they never return. And every agent of the job would pay for the
import of PyTorch. So the few words that are needed are spoken here, to a real TCPStore and in
the file of a real FileStore, next to PyTorch's clients, who find the document under its key.

A FileStore's file is locked for the moment of a call, and every write is appended to it: it
grows by some 60 MB per day. The backend `file` does without both, and should be preferred.
"""

from __future__ import annotations

import binascii
import errno
import fcntl
import os
import socket
import struct
import time
from importlib import import_module
from typing import Any, BinaryIO, Protocol
from urllib.parse import quote

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
_REMOVED = b"-"
"""Before the key, in a FileStore, where it was removed."""
_LENGTH = struct.Struct("<Q")
_SHORT_LENGTH = struct.Struct("<I")
_REFUSED = (errno.EACCES, errno.EPERM, errno.EROFS, errno.EISDIR, errno.ENOTDIR, errno.ENOENT)


class ComparingStore(Protocol):
    """The common part of the two stores."""

    def compare_set(self, expected: bytes, desired: bytes) -> tuple[bytes, bool]:
        """The value afterwards, and whether the request was certainly sent only once."""
        ...

    def close(self) -> None: ...


class TorchStoreRegister:
    """One key of a PyTorch store."""

    def __init__(self, settings: RegisterSettings) -> None:
        """Host the store if that is due; raises `UsageError` if it should and cannot be."""
        key = f"/holdfast/{quote(settings.run_id, safe='')}"
        kind = FileClient if read(settings.options, "store_type") == "file" else TcpClient
        self._place = settings.endpoint
        self._store: ComparingStore = kind(settings, key)

    def get_state(self) -> tuple[bytes, bytes] | None:
        value, _ = self._store.compare_set(_ABSENT, _ABSENT)
        return None if value == _ABSENT else (self._content(value), value)

    def set_state(
        self, state: bytes, token: bytes | None = None
    ) -> tuple[bytes, bytes | None, bool]:
        """As `Register` says; where nothing is, that is `(b"", None, False)`."""
        if not state:
            raise ValueError("an empty document means that there is none")
        desired = binascii.b2a_base64(state, newline=False)
        value, is_certain = self._store.compare_set(token or b"", desired)
        if value == desired:
            return state, desired, True
        if not is_certain:
            raise RegisterUnreachable(f"{self._place} did not say whether it was set")
        if value == token:
            return b"", None, False
        return self._content(value), value, False

    def close(self) -> None:
        self._store.close()

    def _content(self, value: bytes) -> bytes:
        try:
            return binascii.a2b_base64(value, strict_mode=True)
        except binascii.Error:
            reason = f"what the store at {self._place} holds is damaged, or not a document of ours"
            raise RegisterRefused(reason) from None


# --- a TCPStore ---------------------------------------------------------------------------


class TcpClient:
    """One connection to a TCPStore, made when it is needed; and the store, if it is hosted here."""

    def __init__(self, settings: RegisterSettings, key: str) -> None:
        self._endpoint = Endpoint.parse(settings.endpoint, DEFAULT_PORT, least=1)
        self._key = key.encode()
        self._timeout_s = min(settings.endpoint_timeout_s, settings.call_timeout_s / 2)
        self._connection: socket.socket | None = None
        self._is_hosting = _host(self._endpoint, read(settings.options, "is_host"))

    def compare_set(self, expected: bytes, desired: bytes) -> tuple[bytes, bool]:
        """Ask, and once more where a connection of old proves to be dead.

        Raises `RegisterUnreachable` without an answer, `RegisterRefused` if it is no TCPStore.
        """
        words = _COMPARE_SET + _parts(self._key, expected, desired, length=_LENGTH)
        was_connected = self._connection is not None
        try:
            return self._exchange(words), True
        except (ConnectionError, EOFError) as error:
            self._disconnect()
            if not was_connected:
                raise self._unreachable(error) from None
        except OSError as error:
            self._disconnect()
            raise self._unreachable(error) from None
        try:
            return self._exchange(words), False
        except (OSError, EOFError) as error:
            self._disconnect()
            raise self._unreachable(error) from None

    def close(self) -> None:
        self._disconnect()
        if self._is_hosting:
            self._is_hosting = False
            _leave(self._endpoint)

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

    def _unreachable(self, error: Exception) -> RegisterUnreachable:
        reason = getattr(error, "strerror", None) or str(error) or "it hung up"
        return RegisterUnreachable(f"the store at {self._endpoint} does not answer: {reason}")


_hosted: dict[str, tuple[Any, int]] = {}
"""The TCPStores that this process hosts, each with the number of its registers here: one that
is replaced, because a call of it hangs, must not end the store."""


def _host(endpoint: Endpoint, is_host: bool | None) -> bool:
    """Host a TCPStore, or share the one that is hosted here, if that is due; whether it is."""
    if is_host is False:
        return False
    from holdfast.transport.own_endpoint import try_to_host

    store, registers = _hosted.get(str(endpoint), (None, 0))
    if store is None:
        listening = try_to_host(endpoint, is_host)
        if listening is None:
            return False
        store = _serve(endpoint, listening)
    _hosted[str(endpoint)] = store, registers + 1
    return True


def _leave(endpoint: Endpoint) -> None:
    """Let go of a store that is hosted here; it ends when the last register does so."""
    store, registers = _hosted.pop(str(endpoint))
    if registers > 1:
        _hosted[str(endpoint)] = store, registers - 1


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


def _parts(*parts: bytes, length: struct.Struct) -> bytes:
    return b"".join(length.pack(len(part)) + part for part in parts)


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


# --- a FileStore --------------------------------------------------------------------------


class FileClient:
    """The file of a FileStore: records of a key and a value, under one lock."""

    def __init__(self, settings: RegisterSettings, key: str) -> None:
        self._path = settings.endpoint
        self._key = key.encode()
        self._was_served = False
        self._inode = self._read_up_to = 0
        self._value: bytes | None = None
        """As of the file and the place in it up to which it was read."""

    def compare_set(self, expected: bytes, desired: bytes) -> tuple[bytes, bool]:
        """Compare and append under the lock, for which the call waits as long as it takes."""
        try:
            with self._locked() as file:
                end = self._catch_up(file)
                self._was_served = True
                if expected != (self._value or b"") or desired == expected:
                    return self._value or expected, True
                self._append(file, end, _parts(self._key, desired, length=_SHORT_LENGTH))
                return desired, True
        except OSError as error:
            reason = f"the FileStore {self._path} cannot be used: {error.strerror}"
            if error.errno in _REFUSED and not self._was_served:
                raise RegisterRefused(reason) from None
            raise RegisterUnreachable(reason) from None

    def close(self) -> None:
        """Nothing is held between calls."""

    def _locked(self) -> BinaryIO:
        """The file that has the name, for this process alone until it is closed."""
        while True:
            descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            file = open(descriptor, "r+b", buffering=0)  # noqa: SIM115
            try:
                fcntl.flock(file, fcntl.LOCK_EX)
                if os.path.samestat(os.fstat(descriptor), os.stat(self._path)):
                    return file
            except FileNotFoundError:
                pass  # Removed since it was opened.
            except BaseException:
                file.close()
                raise
            file.close()

    def _catch_up(self, file: BinaryIO) -> int:
        """Read what was appended since the last time; where the last whole record ends."""
        status = os.fstat(file.fileno())
        if status.st_ino != self._inode or status.st_size < self._read_up_to:
            self._inode, self._read_up_to, self._value = status.st_ino, 0, None
        content = _read_all(file, self._read_up_to, status.st_size)
        start = 0
        while (record := _record(content, start)) is not None:
            key, value, start = record
            if key == self._key:
                self._value = value
            elif key == _REMOVED + self._key:
                self._value = None
        self._read_up_to += start
        return self._read_up_to

    def _append(self, file: BinaryIO, end: int, record: bytes) -> None:
        """Over what a writer left unfinished, if one did, whose lock ended with its life."""
        file.truncate(end)
        file.seek(end)
        if file.write(record) != len(record):
            file.truncate(end)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def _read_all(file: BinaryIO, start: int, end: int) -> bytes:
    """All of it, since what is missing at the end would be taken for unfinished."""
    file.seek(start)
    chunks = []
    while start < end:
        chunk = file.read(end - start)
        if not chunk:
            raise OSError(errno.EIO, "it ends before its end")
        chunks.append(chunk)
        start += len(chunk)
    return b"".join(chunks)


def _record(content: bytes, start: int) -> tuple[bytes, bytes, int] | None:
    """The key, the value, and where the next begins; None where no whole record is."""
    parts = []
    for _ in range(2):
        if start + _SHORT_LENGTH.size > len(content):
            return None
        (length,) = _SHORT_LENGTH.unpack_from(content, start)
        start += _SHORT_LENGTH.size
        parts.append(content[start : start + length])
        start += length
    return (parts[0], parts[1], start) if start <= len(content) else None


def _torch() -> Any:
    try:
        return import_module("torch.distributed")
    except ImportError:
        raise UsageError(
            "PyTorch is needed where a TCPStore is hosted, and is not installed here",
            "without store_type, c10d means Holdfast's own coordinator, which needs no PyTorch",
        ) from None
