"""What an import brings: steps for what is installed, a reading of what is the program's.

Rules
1. A module of the program is read where it is imported first, and is never a step.
2. Whether an installed module can be imported, and has the names that are taken from it,
   shows when it is: here it is believed.
3. A module that is nowhere to be found fails, as it will in the worker.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable

from holdfast.processes.zygote.reading.places import ModulePath, Owner, prefixes
from holdfast.processes.zygote.reading.steps import Certainty, Steps
from holdfast.processes.zygote.reading.values import (
    Absent,
    Own,
    OwnModule,
    Scope,
    Thing,
    Unforeseeable,
    Value,
)

OWN_TREE_LIMIT = 128 * 1024
"""Bytes of the program's own modules that are read: the job waits for it."""

OWN_FILES_LIMIT = 256

NEVER_STEPS = ("__future__", "holdfast")
"""What needs no loading, or is ours and there anyhow."""

ReadFile = Callable[[str, str, str, Scope], None]
"""Reads (path, module name, package) into a scope."""


class Imports:
    """Follows imports, and remembers what the program's own modules have for names."""

    def __init__(self, places: ModulePath, steps: Steps, read_file: ReadFile) -> None:
        self._places = places
        self._steps = steps
        self._read_file = read_file
        self._own: dict[str, Scope] = {}
        self._bytes_left = OWN_TREE_LIMIT
        self._files_left = OWN_FILES_LIMIT

    def import_module(self, module: str) -> Value:
        """Follow the import of one module, packages above it first; returns that module."""
        if _needs_no_step(module):
            return Thing(module)
        owner = self._owner(module)
        if owner == "installed":
            self._steps.import_module(module)
            return Thing(module)
        self._follow_own(module)
        return OwnModule(module)

    def take(self, module: str, names: list[str]) -> dict[str, Value]:
        """Follow `from module import names`, without a star; returns what each name is."""
        if _needs_no_step(module):
            return {name: Thing(f"{module}.{name}") for name in names}
        owner = self._owner(module)
        if owner == "installed":
            self._steps.take(module, names)
            return {name: Thing(f"{module}.{name}") for name in names}
        self._follow_own(module)
        return {name: self._take_own(module, name) for name in names}

    def take_all(self, module: str, scope: Scope) -> None:
        """Follow `from module import *`."""
        owner = "installed" if _needs_no_step(module) else self._owner(module)
        if owner == "installed":
            if not _needs_no_step(module):
                self._steps.take(module, ["*"])
            scope.bind_all_unknown()
            return
        self._follow_own(module)
        theirs = self._own.get(module, Scope())
        if theirs.after_star:
            scope.bind_all_unknown()
        public = {n: value for n, value in theirs.names.items() if not n.startswith("_")}
        if "__all__" in theirs.names:  # Which of them: not worked out.
            scope.join([{**scope.names, **theirs.names}])
        else:
            scope.names.update(public)

    def attribute(self, module: str, name: str) -> Value:
        """What `module.name` is, of a module of the program."""
        scope = self._own.get(module)
        if scope is not None and name in scope.names:
            return scope.names[name]
        if f"{module}.{name}" in self._own:
            return OwnModule(f"{module}.{name}")
        if scope is not None and "__getattr__" in scope.names:
            raise Unforeseeable("a function of the program gives the name")
        return Own()

    def take_late(self, thing: str, name: str) -> None:
        """Note that a name is taken from an installed module that may load it only then."""
        if self.loads_late(thing, name):
            self._steps.take(thing, [name])

    def loads_late(self, thing: str, name: str) -> bool:
        """Whether asking an installed module for a name may import something."""
        return not _needs_no_step(thing) and self._places.loads_late(thing, name)

    def _owner(self, module: str) -> Owner:
        if not all(map(str.isidentifier, module.split("."))):
            raise Unforeseeable("no name of a module")
        if self._places.is_unclear(module):
            raise Unforeseeable("the program hides what may be loaded already")
        if self._steps.certainty is Certainty.CERTAIN:
            self._places.pin(module)
        return self._places.owner(module)

    def _take_own(self, module: str, name: str) -> Value:
        scope = self._own.get(module, Scope())
        if name in scope.names:
            return scope.names[name]
        if "__getattr__" in scope.names:
            raise Unforeseeable("a function of the program gives the name")
        inner = f"{module}.{name}"
        owner = self._places.owner(inner)
        if owner == "installed":  # A package that is spread over several folders.
            self._steps.import_module(inner)
            return Thing(inner)
        if owner == "own":
            self._follow_own(inner)
            return OwnModule(inner)
        if scope.after_star:
            return Own()
        raise self._failed(Absent(inner, "ImportError"))

    def _follow_own(self, module: str) -> None:
        """Follow the packages above a module, then itself, up to what is missing."""
        for name in prefixes(module):
            owner = self._places.owner(name)
            if owner == "absent":
                raise self._failed(Absent(name))
            if owner == "own":
                self._read_own(name)
            else:
                self._steps.import_module(name)

    def _failed(self, error: Absent) -> Exception:
        """An import that fails fails for sure only where it is sure to be tried."""
        certain = self._steps.certainty is Certainty.CERTAIN
        return error if certain else Unforeseeable("an import fails, if it is tried")

    def _read_own(self, module: str) -> None:
        if module in self._own:
            return
        if self._steps.certainty is not Certainty.CERTAIN:
            raise Unforeseeable("a module of the program may be imported, or not")
        spec = self._places.find(module)
        self._own[module] = scope = Scope()
        if spec is None or (spec.origin is None and spec.submodule_search_locations):
            return  # A package without code.
        if spec.origin is None or not spec.origin.endswith(".py"):
            raise Unforeseeable(module)
        self._files_left -= 1
        self._bytes_left -= os.stat(spec.origin).st_size
        if self._bytes_left < 0 or self._files_left < 0:
            raise Unforeseeable("the program's own tree is large")
        try:
            self._read_file(spec.origin, module, spec.parent or "", scope)
        except Absent:
            del self._own[module]  # As a worker does: it would try again.
            raise


def _needs_no_step(module: str) -> bool:
    top = module.partition(".")[0]
    return top in NEVER_STEPS or top in sys.builtin_module_names
