"""Constants made of constants: what the program would compute, computed here.

Only what is cheap and whose result depends on nothing that differs between here and a
worker: the same machine, folder and user. Everything else is a value that is not known.
"""

from __future__ import annotations

import ast
import operator
import os
import re
import sys
from collections.abc import Callable
from typing import Any

from holdfast.processes.zygote.reading.values import BUILT_IN, Known, Value

TEXT_LIMIT = 4096
ITEMS_LIMIT = 64
INTEGER_LIMIT = 1 << 63

FAILURES = (ArithmeticError, LookupError, TypeError, ValueError, OSError, RuntimeError)
"""What the program would raise: then its value is not known, and it will raise it itself."""

CONSTANTS: dict[str, object] = {
    "typing.TYPE_CHECKING": False,
    "typing_extensions.TYPE_CHECKING": False,
    "sys.version_info": sys.version_info,
    "sys.hexversion": sys.hexversion,
    "sys.platform": sys.platform,
    "sys.byteorder": sys.byteorder,
    "sys.maxsize": sys.maxsize,
    "os.name": os.name,
    "os.sep": os.sep,
    "os.path.sep": os.sep,
    "os.pathsep": os.pathsep,
    "os.linesep": os.linesep,
    "os.pardir": os.pardir,
    "os.path.pardir": os.pardir,
    "os.curdir": os.curdir,
    "os.path.curdir": os.curdir,
}


def make_path(*parts: str) -> object:
    from pathlib import Path  # Costs milliseconds, and not every program uses it.

    return Path(*parts)


FUNCTIONS: dict[str, Callable[..., object]] = {
    "builtins.bool": bool,
    "builtins.float": float,
    "builtins.int": int,
    "builtins.len": len,
    "builtins.max": max,
    "builtins.min": min,
    "builtins.range": range,
    "builtins.str": str,
    "os.fspath": os.fspath,
    "os.getcwd": os.getcwd,
    "os.path.abspath": os.path.abspath,
    "os.path.basename": os.path.basename,
    "os.path.dirname": os.path.dirname,
    "os.path.expanduser": os.path.expanduser,
    "os.path.isabs": os.path.isabs,
    "os.path.join": os.path.join,
    "os.path.normpath": os.path.normpath,
    "os.path.realpath": os.path.realpath,
    "os.path.relpath": os.path.relpath,
    "pathlib.Path": make_path,
    "pathlib.Path.cwd": lambda: make_path(os.getcwd()),
    "pathlib.PosixPath": make_path,
    "platform.system": lambda: os.uname().sysname,
}

METHODS: dict[str, frozenset[str]] = {
    "str": frozenset({
        "capitalize", "endswith", "join", "lower", "lstrip", "removeprefix", "removesuffix",
        "replace", "rstrip", "startswith", "strip", "title", "upper",
    }),
    "PosixPath": frozenset({
        "absolute", "as_posix", "expanduser", "is_absolute", "joinpath", "relative_to",
        "resolve", "with_name", "with_suffix",
    }),
}  # fmt: skip
ATTRIBUTES: dict[str, frozenset[str]] = {
    "PosixPath": frozenset({"name", "parent", "parents", "parts", "stem", "suffix"}),
    "version_info": frozenset({"major", "micro", "minor", "releaselevel", "serial"}),
}

NUMBERS: dict[type[ast.operator], Callable[[Any, Any], object]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}
COMPARISONS: dict[type[ast.cmpop], Callable[[Any, Any], object]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.In: lambda one, many: one in many,
    ast.NotIn: lambda one, many: one not in many,
}
SIMPLE_TEMPLATE = r"(?:[^%]|%[sdr%])*"


def is_path(value: object) -> bool:
    return type(value).__name__ == "PosixPath"


def work_out(function: Callable[..., object], *operands: object) -> Value:
    """What a function gives, if it gives a constant."""
    try:
        result = function(*operands)
    except FAILURES:
        return BUILT_IN
    return Known(result) if is_constant(result) else BUILT_IN


def is_constant(value: object) -> bool:
    """Whether it is small, and always the same."""
    if isinstance(value, int):
        return abs(value) < INTEGER_LIMIT
    if isinstance(value, str | bytes):
        return len(value) <= TEXT_LIMIT
    if isinstance(value, tuple):
        return len(value) <= ITEMS_LIMIT and all(map(is_constant, value))
    if type(value).__name__ == "_PathParents":
        return True
    return value is None or is_path(value) or isinstance(value, float | range)


def items(values: list[Value], container: type) -> Value:
    """A list or tuple of constants."""
    known = [value.value for value in values if isinstance(value, Known)]
    if len(known) < len(values) or not is_constant(tuple(known)):
        return BUILT_IN
    return Known(container(known))


def call(function: str, operands: list[object]) -> Value:
    if function in FUNCTIONS:
        return work_out(FUNCTIONS[function], *operands)
    return BUILT_IN


def method(owner: object, name: str, operands: list[object]) -> Value:
    """A method of a constant, which has no effect but on a list that nobody else has."""
    if isinstance(owner, str) and name == "format" and ":" not in owner:
        return work_out(owner.format, *operands)
    if _has(METHODS, owner, name):
        return work_out(getattr(owner, name), *operands)
    return BUILT_IN


def attribute(owner: object, name: str) -> Value:
    return Known(getattr(owner, name)) if _has(ATTRIBUTES, owner, name) else BUILT_IN


def subscript(owner: object, index: object) -> Value:
    return work_out(operator.getitem, owner, index)


def binary(kind: ast.operator, left: object, right: object) -> Value:
    if isinstance(left, int | float) and isinstance(right, int | float):
        function = NUMBERS.get(type(kind))
        return work_out(function, left, right) if function else BUILT_IN
    if isinstance(kind, ast.Add) and type(left) is type(right) and isinstance(left, str | tuple):
        return work_out(operator.add, left, right)
    if isinstance(kind, ast.Div) and is_path(left):
        return work_out(operator.truediv, left, right)
    if isinstance(kind, ast.Mod) and isinstance(left, str) and re.fullmatch(SIMPLE_TEMPLATE, left):
        return work_out(operator.mod, left, right)
    return BUILT_IN


def unary(kind: ast.unaryop, operand: object) -> Value:
    if isinstance(kind, ast.Not):
        return work_out(operator.not_, operand)
    if isinstance(kind, ast.USub) and isinstance(operand, int | float):
        return work_out(operator.neg, operand)
    return BUILT_IN


def compare(kind: ast.cmpop, left: object, right: object) -> Value:
    if isinstance(kind, ast.Is | ast.IsNot):
        if not any(one is each for one in (left, right) for each in (None, True, False)):
            return BUILT_IN  # Whether two equal strings are one object cannot be told.
        return Known((left is right) == isinstance(kind, ast.Is))
    return work_out(COMPARISONS[type(kind)], left, right)


def _has(table: dict[str, frozenset[str]], owner: object, name: str) -> bool:
    return name in table.get(type(owner).__name__, ())
