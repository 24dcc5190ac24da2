"""Frames: how bytes on a connection become messages, and messages bytes.

Rules
- A frame is four bytes of length, most significant first, and that many bytes of msgpack.
- A length above the limit is refused when its four bytes are there, before anything else is
  read. Before a peer has proved itself the limit is `HANDSHAKE_LIMIT`, then `FRAME_LIMIT`.
- Whatever cannot be decoded is a `ProtocolError`, with a kind to count by and a reason in
  words. Nothing else comes out of decoding, whatever the bytes are.

How it works: a `FrameReader` is fed with what was received and gives out whole frames. It
keeps at most one unfinished frame, so a peer can never make it hold more than the limit. What it
costs grows with the bytes that come, however small the pieces are.
"""

from __future__ import annotations

import struct
from typing import Any, Generic, TypeVar

import msgspec
from msgspec import Struct

from holdfast.core.protocol.bounds import Number
from holdfast.core.protocol.errors import HoldfastError
from holdfast.core.protocol.messages import FromNode, ToNode
from holdfast.core.protocol.model import Term

VERSION = 2
FRAME_LIMIT = 1 << 20
HANDSHAKE_LIMIT = 4096

_LENGTH = struct.Struct("!I")
_TLS_HANDSHAKE = 0x16
"""The first byte of a TLS client; no frame begins with it, for it would be too long."""

T = TypeVar("T")


class ProtocolError(HoldfastError):
    """A peer said what it may not say. `kind` is a word to count by, `reason` is for people.

    `permanent` is whether trying again cannot help.
    """

    def __init__(self, kind: str, reason: str, permanent: bool = True) -> None:
        super().__init__(reason)
        self.kind = kind
        self.reason = reason
        self.permanent = permanent


class MessageTooLarge(HoldfastError):
    """This side was asked to send more than a frame may hold."""


class MessageInTerm(Struct, frozen=True, array_like=True):
    """A message of the coordinator to a node, with its term."""

    instance: Number
    epoch: Number
    message: ToNode


class Decoder(Generic[T]):
    """Decodes the payload of a frame; raises nothing but `ProtocolError`."""

    __slots__ = ("_decode",)

    def __init__(self, kind: Any) -> None:
        self._decode = msgspec.msgpack.Decoder(kind).decode

    def decode(self, payload: bytes | bytearray) -> T:
        try:
            decoded: T = self._decode(payload)
        except (msgspec.MsgspecError, ValueError, OverflowError, RecursionError) as error:
            raise ProtocolError("garbage", f"the message cannot be read: {error}") from None
        return decoded


_encode = msgspec.msgpack.Encoder().encode


def encode(message: Any) -> bytes:
    """Return the whole frame of a message; raises `MessageTooLarge` where no frame holds it."""
    payload = _encode(message)
    if len(payload) > FRAME_LIMIT:
        name = type(message).__name__
        raise MessageTooLarge(f"{name} of {len(payload)} bytes is above {FRAME_LIMIT}")
    return _LENGTH.pack(len(payload)) + payload


def encode_order(term: Term, message: ToNode) -> bytes:
    return encode(MessageInTerm(term.instance, term.epoch, message))


from_node: Decoder[FromNode] = Decoder(FromNode)
orders: Decoder[MessageInTerm] = Decoder(MessageInTerm)


class FrameReader:
    """Takes bytes as they come and gives out the payloads of whole frames."""

    __slots__ = ("_at", "_buffer", "limit")

    def __init__(self, limit: int = HANDSHAKE_LIMIT) -> None:
        self.limit = limit
        self._buffer: bytes | bytearray = b""
        self._at = 0

    @property
    def is_between_frames(self) -> bool:
        return self._at == len(self._buffer)

    @property
    def unfinished_bytes(self) -> int:
        """The size of the unfinished frame, once all whole ones are taken."""
        return len(self._buffer) - self._at

    def feed(self, received: bytes) -> None:
        """Add what was received. Take all frames out before feeding again."""
        if self._at == len(self._buffer):
            self._buffer = received
        else:
            unfinished = self._unfinished()
            unfinished += received  # In place: a copy for each piece would cost the square.
            self._buffer = unfinished
        self._at = 0

    def _unfinished(self) -> bytearray:
        if not isinstance(self._buffer, bytearray):
            return bytearray(memoryview(self._buffer)[self._at :])
        del self._buffer[: self._at]
        return self._buffer

    def take(self) -> bytes | bytearray | None:
        """The next whole frame's payload, or None; raises `ProtocolError` if it is too long."""
        start = self._at + _LENGTH.size
        available = len(self._buffer)
        if start > available:
            return None
        (length,) = _LENGTH.unpack_from(self._buffer, self._at)
        if length > self.limit:
            raise self._too_long(length)
        end: int = start + length
        if end > available:
            return None
        payload = self._buffer[start:end]
        self._at = end
        if end == available:
            self._buffer, self._at = b"", 0
        return payload

    def _too_long(self, length: int) -> ProtocolError:
        if self._buffer[self._at] == _TLS_HANDSHAKE:
            return ProtocolError("tls", "TLS is spoken on one side of the connection only")
        reason = f"a message of {length} bytes is above the limit of {self.limit}"
        return ProtocolError("oversize", reason)
