"""What a function needs to be imported, found without importing or running anything.

Its module, where that is imported to get at it; what it names; what it imports when it runs, and
what those do that it calls by name.
"""

from __future__ import annotations

import dis
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from types import CodeType, FunctionType, ModuleType
from typing import Any

from holdfast.processes.zygote import preload

MOST_FUNCTIONS = 200
"""How many are looked into, of those that are called by name."""


def steps_of(function: Callable[..., Any]) -> tuple[str, ...]:
    """The steps ahead of the import of a function's module; none for the main module."""
    return _steps_of(getattr(_innermost(function), "__module__", None))


def _steps_of(name: str | None) -> tuple[str, ...]:
    """Those for the import of a module that this process has."""
    module = sys.modules.get(name or "")
    file = getattr(module, "__file__", None)
    if name is None or file is None or name in ("__main__", "__mp_main__"):
        return ()
    folder = os.path.dirname(os.path.abspath(file))
    depth = name.count(".") + hasattr(module, "__path__")
    for _ in range(depth):
        folder = os.path.dirname(folder)
    if preload.installed(name, None):
        return (f"import {name}",)
    return preload.plan_of_module(file, folder)


def _innermost(function: Any) -> Any:
    """What is called in the end: a function, or the class of an object that can be called."""
    while isinstance(function, partial):
        function = function.func
    function = getattr(function, "__func__", function)
    return function if isinstance(function, FunctionType | type) else type(function)


def late_imports(function: Callable[..., Any], arguments: list[tuple[Any, ...]]) -> list[str]:
    """What workers will need once they run: named or imported by the function, or its arguments."""
    named = list(_named_by(_innermost(function)))
    named += [type(value).__module__ for own in arguments for value in own]
    return [name for name in dict.fromkeys(named) if _is_late(name)]


def names_in(function: Callable[..., Any], arguments: list[tuple[Any, ...]]) -> tuple[str, ...]:
    """What a function, or one that it calls by name, may set as a variable: its texts."""
    found = {text for code in _codes_of(_innermost(function)) for text in _texts(code.co_consts)}
    found.update(text for own in arguments for text in _texts(own))
    return tuple(sorted(found))


def _texts(constants: Iterable[Any]) -> Iterator[str]:
    for constant in constants:
        if isinstance(constant, str) and constant.isidentifier():
            yield constant
        elif isinstance(constant, tuple | list | frozenset | dict):
            yield from _texts(constant)


def _is_late(name: str) -> bool:
    top = name.partition(".")[0]
    return (
        top not in sys.stdlib_module_names and top != "holdfast" and preload.installed(name, None)
    )


def _named_by(function: Any) -> Iterator[str]:
    """Modules that a function, or one of those that it calls by name, names or imports."""
    for current in _called_by(function):
        for code in _codes(getattr(current, "__code__", None)):
            yield from _imports(code)
            for name in code.co_names:
                value = current.__globals__.get(name)
                if isinstance(value, ModuleType):
                    yield value.__name__


def _codes_of(function: Any) -> Iterator[CodeType]:
    for current in _called_by(function):
        yield from _codes(getattr(current, "__code__", None))


def _called_by(function: Any) -> Iterator[Any]:
    """The function, and those not installed that it calls by name."""
    pending, seen = [function], {id(function)}
    while pending and len(seen) < MOST_FUNCTIONS:
        current = pending.pop()
        yield current
        for code in _codes(getattr(current, "__code__", None)):
            for name in code.co_names:
                value = current.__globals__.get(name)
                if isinstance(value, FunctionType) and id(value) not in seen:
                    seen.add(id(value))
                    if not preload.installed(value.__module__ or "", None):
                        pending.append(value)


def _codes(code: CodeType | None) -> Iterator[CodeType]:
    if code is not None:
        yield code
        for constant in code.co_consts:
            if isinstance(constant, CodeType):
                yield from _codes(constant)


def _imports(code: CodeType) -> Iterator[str]:
    before: list[Any] = [None, None]
    for instruction in dis.get_instructions(code):
        if instruction.opname == "IMPORT_NAME" and before[0] == 0:  # Not a relative one.
            yield instruction.argval
        before = [before[1], instruction.argval]
