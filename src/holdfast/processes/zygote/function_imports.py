"""What has to be imported to get at a function, found without importing or running anything."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from functools import partial
from types import FunctionType
from typing import Any

from holdfast.processes.zygote import preload


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
