"""Values of any type of the journal, made by looking at the type.

Every alternative of every union that a type contains appears in at least one of its samples,
and no field has its default; so a new event, effect or message is covered without a word.
"""

from __future__ import annotations

import re
from typing import Any

import msgspec
from msgspec import inspect


def samples(kind: Any) -> list[Any]:
    """At least one value of this type."""
    return _samples(inspect.type_info(kind))


def _samples(info: inspect.Type) -> list[Any]:
    match info:
        case inspect.StructType():
            return _structs(info)
        case inspect.UnionType():
            return [value for one in info.types for value in _samples(one)]
        case inspect.VarTupleType():
            return [tuple(_samples(info.item_type))]
        case inspect.DictType():
            keys, values = _samples(info.key_type), _samples(info.value_type)
            return [dict(zip(keys, values, strict=False))]
        case inspect.LiteralType():
            return list(info.values)
        case inspect.StrType(pattern=str() as pattern):
            return [text for text in ("ünïcödé", HEXADECIMAL) if re.search(pattern, text)]
        case _:
            return [PLAIN[type(info)]]


def _structs(info: inspect.StructType) -> list[Any]:
    """As many as its richest field has alternatives."""
    fields = {field.name: _unlike_its_default(field) for field in info.fields}
    count = max((len(values) for values in fields.values()), default=1)
    each = [
        {name: values[turn % len(values)] for name, values in fields.items()}
        for turn in range(count)
    ]
    return [info.cls(**(values | FITTING.get(values.get("verdict", ""), {}))) for values in each]


def _unlike_its_default(field: inspect.Field) -> list[Any]:
    if field.default is True:
        return [False]
    values = _samples(field.type)
    return [value for value in values if value != field.default] or values


HEXADECIMAL = "0123456789abcdef" * 2
FITTING = {"succeeded": {"exit_status": 0}}
"""What a record refuses otherwise."""
PLAIN: dict[type[inspect.Type], object] = {
    inspect.StrType: 'text with "quotes", a\nnew line and ünïcödé',
    inspect.IntType: 7,
    inspect.FloatType: 0.1 + 0.2,
    inspect.BoolType: True,
    inspect.BytesType: b"\x00packed\xff",
    inspect.NoneType: None,
}


def fields_at_default(value: msgspec.Struct) -> list[str]:
    """What a sample does not show of its type."""
    return [
        field.name
        for field in msgspec.structs.fields(type(value))
        if field.default is not msgspec.NODEFAULT and getattr(value, field.name) == field.default
    ]
