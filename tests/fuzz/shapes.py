"""Values that have the shape of a type, or almost: what a broken or hostile peer might send.

The types themselves say what is right (`msgspec.inspect`), so that a new field is fuzzed as soon
as it is there. Most of a value is right, or nobody would look at what is wrong in it: here and
there a number is at a limit or beyond it, a text is long or holds control characters, a list is
endless, a field is missing, or of another kind altogether.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from random import Random
from typing import Any

import msgspec
from msgspec import inspect

NUMBERS = (
    -(2**63), -(2**31), -5, -1, 0, 1, 2, 3, 7, 64, 65, 255, 9999, 10_001, 65_535, 65_536,
    10**6, 10**6 + 1, 2**31 - 1, 2**31, 10**13, 2**53, 2**53 + 1, 2**63 - 1, 2**63, 2**64 - 1,
)  # fmt: skip
FLOATS = (0.0, -0.0, 1.5, -1.0, 1e308, -1e308, 5e-324, math.nan, math.inf, -math.inf, 2.0**64)
TEXTS = (
    "", "a", "..", "/etc/passwd", "a\0b", "a\nholdfast: the job succeeded", "\x1b[2J\x1b]0;x\x07",
    "\r", "\u202egnirts", "\U0001f600" * 40, "%s%n{0}{}", "-1", "127.0.0.1", "::", "a" * 513,
    "b" * 5_000, "é" * 70_000, "c" * 900_000,
)  # fmt: skip
STRANGE: tuple[Any, ...] = (
    None,
    True,
    False,
    -1,
    2**64 - 1,
    math.nan,
    "",
    "x",
    b"",
    b"\0" * 20,
    [],
    [[]],
    {},
    {"": 0},
)
ENDLESS = 3_000
"""Items of a list that is too long; short enough for many to fit a frame."""
DEPTH = 6


class Shapes:
    """Draws values of types. `known` are values that mean something to who gets them."""

    def __init__(self, random: Random, known: Mapping[type, Sequence[Any]]) -> None:
        self._random = random
        self.known = known
        self.wildness = 0.04
        """How often a part of a value is not what it should be."""
        self._draw: dict[type, Callable[[Any, int], Any]] = {
            inspect.IntType: self._int,
            inspect.FloatType: self._float,
            inspect.StrType: self._text,
            inspect.BytesType: lambda *_: self._random.randbytes(self._random.choice((0, 16, 32))),
            inspect.BoolType: lambda *_: self._random.random() < 0.5,
            inspect.NoneType: lambda *_: None,
            inspect.AnyType: lambda *_: self._random.choice(STRANGE),
            inspect.LiteralType: lambda kind, _: self._random.choice(kind.values),
            inspect.UnionType: lambda kind, deep: self.draw(self._random.choice(kind.types), deep),
            inspect.StructType: self._struct,
            inspect.DictType: self._dict,
            inspect.VarTupleType: self._list,
            inspect.ListType: self._list,
            inspect.TupleType: lambda kind, deep: [self.draw(t, deep) for t in kind.item_types],
            inspect.Metadata: lambda kind, deep: self.draw(kind.type, deep),
        }

    def of(self, kind: Any) -> Any:
        """A value for a type, as it would be sent: of plain dicts, lists and scalars."""
        return self.draw(inspect.type_info(kind), 0)

    def draw(self, kind: Any, deep: int) -> Any:
        if self._random.random() < self.wildness / 4:
            return self._random.choice(STRANGE)
        return self._draw[type(kind)](kind, deep + 1)

    def _is_wild(self) -> bool:
        return self._random.random() < self.wildness

    def _int(self, kind: inspect.IntType, deep: int) -> int:
        low, high = kind.ge, kind.le
        edges = [edge + off for edge in (low, high) if edge is not None for off in (-1, 0, 1)]
        if self._is_wild():
            return self._random.choice([*edges, *NUMBERS])
        right = [n for n in self.known[int] if (low or 0) <= n <= (high if high is not None else n)]
        return self._random.choice(right) if right else low or 0

    def _float(self, kind: inspect.FloatType, deep: int) -> float:
        return self._random.choice(FLOATS) if self._is_wild() else self._random.uniform(0, 1e9)

    def _text(self, kind: inspect.Type, deep: int) -> str:
        return (
            self._random.choice(TEXTS) if self._is_wild() else self._random.choice(self.known[str])
        )

    def _list(self, kind: Any, deep: int) -> list[Any]:
        if deep > DEPTH:
            return []
        count = (
            ENDLESS if self._random.random() < self.wildness / 8 else self._random.choice((0, 1, 2))
        )
        if count == ENDLESS:
            return [self.draw(kind.item_type, deep)] * count
        return [self.draw(kind.item_type, deep) for _ in range(count)]

    def _dict(self, kind: inspect.DictType, deep: int) -> dict[Any, Any]:
        count = self._random.choice((0, 1, 2))
        return {self._text(kind, deep): self.draw(kind.value_type, deep) for _ in range(count)}

    def _struct(self, kind: inspect.StructType, deep: int) -> Any:
        values: dict[str, Any] = {}
        if kind.tag is not None and kind.tag_field is not None:
            values[kind.tag_field] = kind.tag
        for field in kind.fields:
            left_out = not field.required and self._random.random() < 0.4
            if not left_out and not (field.required and self._random.random() < self.wildness / 8):
                values[field.encode_name] = self.draw(field.type, deep)
        if self._is_wild():
            values[self._random.choice(TEXTS[:8])] = self._random.choice(STRANGE)
        return list(values.values()) if kind.array_like else values


def encode(value: Any) -> bytes:
    return msgspec.msgpack.encode(value)
