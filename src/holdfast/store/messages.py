"""Messages of a store connection: one request, one answer, in turn."""

from __future__ import annotations

from msgspec import Struct

from holdfast.transport.frames import Decoder


class StoreRequest(Struct, frozen=True, tag=True, array_like=True):
    """The parent of all requests."""


class Set(StoreRequest, frozen=True):
    pairs: tuple[tuple[str, bytes], ...]


class Get(StoreRequest, frozen=True):
    """Answered with the values when all keys are there, however long that takes."""

    keys: tuple[str, ...]


class WaitForKeys(StoreRequest, frozen=True):
    """Answered when all keys are there."""

    keys: tuple[str, ...]


class Check(StoreRequest, frozen=True):
    keys: tuple[str, ...]


class Add(StoreRequest, frozen=True):
    key: str
    amount: int


class Append(StoreRequest, frozen=True):
    key: str
    value: bytes


class CompareSet(StoreRequest, frozen=True):
    """Set if the value is as expected, or if nothing is there and nothing was expected."""

    key: str
    expected: bytes
    desired: bytes


class Delete(StoreRequest, frozen=True):
    key: str


class CountKeys(StoreRequest, frozen=True):
    pass


class Values(Struct, frozen=True, tag=True, array_like=True):
    values: tuple[bytes, ...]


class Number(Struct, frozen=True, tag=True, array_like=True):
    number: int


class Done(Struct, frozen=True, tag=True, array_like=True):
    pass


class NotDone(Struct, frozen=True, tag=True, array_like=True):
    """The request cannot be done, and why. `is_over` if none ever will be, in this round."""

    reason: str
    is_over: bool = False


AnyRequest = Set | Get | WaitForKeys | Check | Add | Append | CompareSet | Delete | CountKeys
Answer = Values | Number | Done | NotDone

requests: Decoder[AnyRequest] = Decoder(AnyRequest)
answers: Decoder[Answer] = Decoder(Answer)
