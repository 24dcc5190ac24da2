"""A client of the coordinator's store, with the calls of PyTorch's stores: every call blocks.

StoreError(RuntimeError)     the store cannot do it, and why
├── StoreTimeoutError        a key was not there in time, or the store did not answer
└── StoreOverError           the keys belonged to a round that has ended

Rules
- A call that waits does so at the server, which answers when the key is there.
- Calls of several threads do not wait for each other: a connection serves one call at a
  time, and as many are opened as there are calls at once.
- A call that was sent is never sent again: `add` twice would count twice. A connection that
  broke is an error of the call that it broke under, and of no other.
"""

from __future__ import annotations

import os
import select
import socket
import time
import weakref
from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeVar

from msgspec import Struct

from holdfast.core.protocol.model import Endpoint
from holdfast.store import messages, sentences
from holdfast.transport.auth import OPEN, ConnectionSecurity
from holdfast.transport.connection import configure, words_for
from holdfast.transport.frames import (
    FRAME_LIMIT,
    FrameReader,
    MessageTooLarge,
    ProtocolError,
    encode,
)
from holdfast.transport.handshake import ClientSide

if TYPE_CHECKING:
    from typing import Self

DEFAULT_TIMEOUT_S = 300.0
IDLE_LINES = 4
A = TypeVar("A")
Value = bytes | str
Span = timedelta | float
"""A time: seconds, or a `timedelta`."""


class StoreError(RuntimeError):
    """The store cannot do what was asked. A kind of error as PyTorch's stores raise."""


class StoreTimeoutError(StoreError):
    """A key was not there in time, or the store did not answer."""


class StoreOverError(StoreError):
    """The keys belonged to a round that has ended."""


class Target(Struct, frozen=True):
    """The address of a store, and the job and round that it belongs to."""

    endpoint: Endpoint
    job: str
    security: ConnectionSecurity = OPEN
    round: int = 1


class StoreConnection:
    """One blocking connection to the store."""

    def __init__(self, target: Target, deadline: float) -> None:
        self._reader = FrameReader(FRAME_LIMIT)
        self._socket = _connect(target, deadline)
        try:
            self._shake_hands(target, deadline)
        except BaseException:
            self._socket.close()
            raise

    def _shake_hands(self, target: Target, deadline: float) -> None:
        node = f"{socket.gethostname()}:{os.getpid()}"
        side = ClientSide(target.job, node, "store", target.security)
        try:
            self._send(side.opening(target.round), deadline)
            side.read_challenge(self._receive(deadline))
            self._send(side.prove(), deadline)
            side.read_welcome(self._receive(deadline))
        except ProtocolError as error:
            over = error.kind == "round" and error.permanent
            raise (StoreOverError if over else StoreError)(error.reason) from None

    def ask(self, request: messages.AnyRequest, deadline: float) -> messages.Answer:
        """Send a request and return its answer; TimeoutError when it does not come in time."""
        self._send(encode(request), deadline)
        return messages.answers.decode(self._receive(deadline))

    def _send(self, frame: bytes, deadline: float) -> None:
        self._socket.settimeout(_remaining(deadline))
        self._socket.sendall(frame)

    def _receive(self, deadline: float) -> bytes | bytearray:
        while (payload := self._reader.take()) is None:
            self._socket.settimeout(_remaining(deadline))
            received = self._socket.recv(1 << 16)
            if not received:
                raise ConnectionResetError("the store closed the connection")
            self._reader.feed(received)
        return payload

    def is_alive(self) -> bool:
        """Whether the connection can be used again: a readable one was closed meanwhile."""
        poll = select.poll()
        poll.register(self._socket, select.POLLIN)
        return not poll.poll(0)

    def close(self) -> None:
        self._socket.close()


def _remaining(deadline: float) -> float:
    remaining = deadline - time.monotonic()
    if remaining <= 0:
        raise TimeoutError
    return remaining


def _connect(target: Target, deadline: float) -> socket.socket:
    where = (target.endpoint.address, target.endpoint.port)
    sock = socket.create_connection(where, timeout=_remaining(deadline))
    configure(sock)
    if target.security.tls is None:
        return sock
    from holdfast.transport.tls import client_context

    context = client_context(target.security.tls)
    return context.wrap_socket(sock, server_hostname=target.endpoint.address)


class StoreConnections:
    """The connections of one process to one store; those that are idle are used again."""

    def __init__(self, target: Target) -> None:
        from threading import Lock

        self.target = target
        self._lock = Lock()
        self._idle: list[StoreConnection] = []
        self._process = os.getpid()

    def ask(self, request: messages.AnyRequest, timeout_s: float) -> messages.Answer:
        """The answer; raises StoreError, or TimeoutError when none came in time."""
        deadline = time.monotonic() + timeout_s
        line: StoreConnection | None = None
        is_answered = False
        try:
            line = self._take() or StoreConnection(self.target, deadline)
            answer = line.ask(request, deadline)
            is_answered = True
        except (OSError, ProtocolError, MessageTooLarge) as error:
            raise _in_our_words(error, self.target.endpoint) from None
        finally:
            if line is not None:
                self._give_back(line, is_usable=is_answered)
        return answer

    def _take(self) -> StoreConnection | None:
        with self._lock:
            if self._process != os.getpid():
                self.close_idle()  # After a fork they are the parent's.
                self._process = os.getpid()
            while self._idle:
                line = self._idle.pop()
                if line.is_alive():
                    return line
                line.close()
        return None

    def _give_back(self, line: StoreConnection, is_usable: bool) -> None:
        with self._lock:
            if is_usable and len(self._idle) < IDLE_LINES:
                self._idle.append(line)
                return
        line.close()

    def close_idle(self) -> None:
        for line in self._idle:
            line.close()
        self._idle.clear()


def _in_our_words(error: Exception, endpoint: Endpoint) -> Exception:
    if isinstance(error, TimeoutError):
        return error
    if isinstance(error, socket.gaierror):
        return StoreError(sentences.unresolved(endpoint.address))
    if isinstance(error, OSError):
        return StoreError(sentences.unreachable(endpoint, words_for(error)))
    return StoreError(str(error))


class CoordinatorStore:
    """One round's keys. Values go in as bytes or text and come out as bytes."""

    def __init__(
        self,
        endpoint: Endpoint,
        job: str,
        security: ConnectionSecurity = OPEN,
        round: int = 1,
        timeout: Span = DEFAULT_TIMEOUT_S,
    ) -> None:
        self._lines = StoreConnections(Target(endpoint, job, security, round))
        self._timeout_s = seconds_of(timeout)
        weakref.finalize(self, self._lines.close_idle)  # Agents drop the store of an old round.

    @property
    def timeout(self) -> timedelta:
        """The time-out of a call, unless it says otherwise."""
        return timedelta(seconds=self._timeout_s)

    def set_timeout(self, timeout: Span) -> None:
        self._timeout_s = seconds_of(timeout)

    def has_extended_api(self) -> bool:
        """Whether it has `append`, `multi_get` and `multi_set`: always."""
        return True

    def set(self, key: str, value: Value) -> None:
        self.multi_set([key], [value])

    def get(self, key: str) -> bytes:
        """The value, as soon as there is one; `StoreTimeoutError` if not in time."""
        return self.multi_get([key])[0]

    def add(self, key: str, value: int) -> int:
        """Add to a number, which is 0 if it is not there; the sum."""
        return self._ask(messages.Number, messages.Add(key, value)).number

    def append(self, key: str, value: Value) -> None:
        self._ask(messages.Number, messages.Append(key, _bytes(value)))

    def wait(self, keys: Sequence[str], timeout: Span | None = None) -> None:
        """Return when all keys are there; raises `StoreTimeoutError` if they are not in time."""
        allowed_s = self._timeout_s if timeout is None else seconds_of(timeout)
        if allowed_s > 0:
            self._ask(messages.Done, messages.WaitForKeys(tuple(keys)), keys, allowed_s)
        elif not self.check(keys):
            raise StoreTimeoutError(sentences.not_set(keys, allowed_s))

    def check(self, keys: Sequence[str]) -> bool:
        """Whether all keys exist now."""
        return bool(self._ask(messages.Number, messages.Check(tuple(keys))).number)

    def compare_set(self, key: str, expected_value: Value, desired_value: Value) -> bytes:
        """Set if the value is as expected; what the key holds then.

        A key that is not there is created if nothing is expected; otherwise it stays away,
        and what was expected is returned.
        """
        request = messages.CompareSet(key, _bytes(expected_value), _bytes(desired_value))
        return self._ask(messages.Values, request).values[0]

    def delete_key(self, key: str) -> bool:
        """Whether the key existed."""
        return bool(self._ask(messages.Number, messages.Delete(key)).number)

    def num_keys(self) -> int:
        """The number of keys of the round."""
        return self._ask(messages.Number, messages.CountKeys()).number

    def multi_get(self, keys: Sequence[str]) -> list[bytes]:
        """All values, as soon as all are there."""
        return list(self._ask(messages.Values, messages.Get(tuple(keys)), keys).values)

    def multi_set(self, keys: Sequence[str], values: Sequence[Value]) -> None:
        if len(keys) != len(values):
            raise StoreError(sentences.keys_and_values_differ(len(keys), len(values)))
        pairs = tuple((k, _bytes(v)) for k, v in zip(keys, values, strict=True))
        self._ask(messages.Done, messages.Set(pairs))

    def close(self) -> None:
        """Close what is idle; a call that goes on in another thread ends by itself."""
        self._lines.close_idle()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    # How a call is made.

    def _ask(
        self,
        kind: type[A],
        request: messages.AnyRequest,
        awaited: Sequence[str] = (),
        timeout_s: float | None = None,
    ) -> A:
        """The answer, of the kind expected; `awaited` are the keys that it has to wait for."""
        allowed_s = self._timeout_s if timeout_s is None else timeout_s
        try:
            return _expect(kind, self._lines.ask(request, allowed_s))
        except TimeoutError:
            words = sentences.no_answer(self._lines.target.endpoint, allowed_s)
            if awaited:
                words = sentences.not_set(awaited, allowed_s)
            raise StoreTimeoutError(words) from None


def _expect(kind: type[A], answer: Any) -> A:
    if isinstance(answer, messages.NotDone):
        raise (StoreOverError if answer.is_over else StoreError)(answer.reason)
    if not isinstance(answer, kind):
        raise StoreError(sentences.unexpected_answer(type(answer).__name__))
    return answer


def seconds_of(span: Span) -> float:
    return span.total_seconds() if isinstance(span, timedelta) else float(span)


def _bytes(value: Value) -> bytes:
    return value.encode() if isinstance(value, str) else bytes(value)
