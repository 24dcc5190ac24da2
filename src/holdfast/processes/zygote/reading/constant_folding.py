"""Constants made of constants: what the program would compute, computed here.

Only what is cheap and small, and whose result depends on nothing that differs between here and a
worker: the same machine, folder and user. Everything else is `UNKNOWN`.
"""

from __future__ import annotations

import ast
import operator
import os
import sys
from collections.abc import Callable
from typing import Any, Final

UNKNOWN: Final = object()
LONGEST = 4096

CONSTANTS: dict[str, object] = {
    "typing.TYPE_CHECKING": False,
    "typing_extensions.TYPE_CHECKING": False,
    "sys.version_info": tuple(sys.version_info),
    "sys.platform": sys.platform,
    "os.name": os.name,
    "os.sep": os.sep,
    "os.pathsep": os.pathsep,
}


def _path(*parts: str) -> object:
    from pathlib import Path  # Costs milliseconds, and not every program uses it.

    return Path(*parts)


FUNCTIONS: dict[str, Callable[..., object]] = {
    "builtins.str": str,
    "os.getcwd": os.getcwd,
    "os.path.abspath": os.path.abspath,
    "os.path.basename": os.path.basename,
    "os.path.dirname": os.path.dirname,
    "os.path.expanduser": os.path.expanduser,
    "os.path.join": os.path.join,
    "os.path.normpath": os.path.normpath,
    "os.path.realpath": os.path.realpath,
    "pathlib.Path": _path,
    "pathlib.Path.cwd": lambda: _path(os.getcwd()),
}
METHODS = frozenset({
    "absolute", "as_posix", "endswith", "expanduser", "join", "joinpath", "lower", "replace",
    "resolve", "startswith", "strip", "upper",
})  # fmt: skip
ATTRIBUTES = frozenset({"name", "parent", "parents", "stem", "suffix"})
OPERATORS: dict[type, Callable[[Any, Any], object]] = {
    ast.Add: operator.add,
    ast.Div: operator.truediv,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.In: lambda one, many: one in many,
    ast.NotIn: lambda one, many: one not in many,
}
FAILURES = (
    ArithmeticError, AttributeError, LookupError, OSError, RuntimeError, TypeError, ValueError,
)  # fmt: skip
"""What the program would raise: then its value is not known, and it will raise it itself."""


def small(value: object) -> object:
    """The constant, unless it is large or may become so."""
    if isinstance(value, str | bytes | tuple) and len(value) > LONGEST:
        return UNKNOWN
    nested = isinstance(value, tuple) and any(isinstance(item, tuple) for item in value)
    return UNKNOWN if nested else value


def work_out(function: Callable[..., object], *operands: object) -> object:
    """What a function gives for these constants."""
    try:
        return small(function(*operands))
    except FAILURES:
        return UNKNOWN


def method(owner: object, name: str, operands: list[object]) -> object:
    if name not in METHODS:
        return UNKNOWN
    return work_out(lambda: getattr(owner, name)(*operands))


def attribute(owner: object, name: str) -> object:
    return work_out(getattr, owner, name) if name in ATTRIBUTES else UNKNOWN


def fold(node: ast.AST, parts: list[Any]) -> object:
    """What the constants that are the parts of an expression make together."""
    match node:
        case ast.BinOp(op=kind) | ast.Compare(ops=[kind]) if type(kind) in OPERATORS:
            return work_out(OPERATORS[type(kind)], *parts)
        case ast.BoolOp():
            decides = isinstance(node.op, ast.Or)
            return next((part for part in parts if bool(part) is decides), parts[-1])
        case ast.UnaryOp(op=ast.Not()):
            return not parts[0]
        case ast.UnaryOp(op=ast.USub()):
            return work_out(operator.neg, *parts)
        case ast.IfExp():
            return parts[1] if parts[0] else parts[2]
        case ast.FormattedValue(conversion=-1, format_spec=None):
            return work_out(str, *parts)
        case ast.JoinedStr():
            return small("".join(parts))
        case ast.Subscript():
            return work_out(operator.getitem, *parts)
        case ast.Tuple() if not any(isinstance(each, ast.Starred) for each in node.elts):
            return small(tuple(parts))
    return UNKNOWN
