"""What was found: the steps that a zygote can take ahead of the workers.

import a.b                a module
from a.b import C, D      names taken from a module, which may load more than the module
environ NAME=value        a variable is set
environ NAME?=value       a variable is set unless it is there
environ -NAME             a variable is removed
path 0 /folder            a folder is put before all others on the module path
path -1 /folder           a folder is put behind all others

Behind a statement that a later import may notice, imports of installed packages are no steps any
more, but `late`: modules, or `from a import b`, which are done ahead where that makes no
difference. What the program sets ends the reading there.
"""

from __future__ import annotations

import enum
import os
import re
import sys

from holdfast.processes.environment import PER_WORKER
from holdfast.processes.zygote.reading.places import ModulePath, prefixes
from holdfast.processes.zygote.reading.values import BUILT_IN, Known, Unforeseeable, Value

NAME = r"[A-Za-z_][A-Za-z0-9_]*"


class Certainty(enum.Enum):
    """How sure it is that what is being read now is run."""

    CERTAIN = "it is"
    UNCERTAIN = "it cannot be told"
    UNLIKELY = "only if an import fails that should not"


class Steps:
    """Collects what is certain, and refuses what is not."""

    def __init__(self, places: ModulePath) -> None:
        self.found: list[str] = []
        self.late: list[str] = []
        self.certainty = Certainty.CERTAIN
        self._places = places
        self._loaded: set[str] = set()
        self._taken: set[tuple[str, str]] = set()
        self._environment: dict[str, Value | None] = {}
        self._is_later = False
        self.sets_logging = False
        """Whether records of later imports may be shown that would not be otherwise."""

    def go_on_later(self, *, sets_logging: bool = False) -> None:
        """From here on, imports are no steps: before them lies what they may notice."""
        self._is_later = True
        self.sets_logging = self.sets_logging or sets_logging

    def has(self, module: str) -> bool:
        """Whether a module is loaded by what was found so far."""
        package, _, name = module.rpartition(".")
        return module in self._loaded or (package, name) in self._taken

    def import_module(self, module: str) -> None:
        if not self.has(module) and self._may_import(module):
            self._add(module, f"import {module}", module)
            self._loaded.update(prefixes(module))

    def take(self, module: str, names: list[str]) -> None:
        """`from module import names`"""
        new = [name for name in dict.fromkeys(names) if (module, name) not in self._taken]
        if not new or (self._is_here(module, new) and self._is_doubtful()):
            return
        if self._may_import(module):
            taking = f"from {module} import {', '.join(new)}"
            self._add(module, taking, taking)
            self._loaded.update(prefixes(module))
            self._taken.update((module, name) for name in new)

    def _add(self, module: str, step: str, late: str) -> None:
        if not self._is_later:
            self.found.append(step)
        elif module.partition(".")[0] not in sys.stdlib_module_names:
            self.late.append(late)

    def _is_here(self, module: str, names: list[str]) -> bool:
        """Whether taking the names loads nothing more."""
        if module not in self._loaded or names == ["*"]:
            return False
        find, loads_late = self._places.find, self._places.loads_late
        return not any(find(f"{module}.{name}") or loads_late(module, name) for name in names)

    def _is_doubtful(self) -> bool:
        return self.certainty is not Certainty.CERTAIN

    def _may_import(self, module: str) -> bool:
        """Whether it is a step. Modules of the standard library do not notice each other."""
        if self.certainty is Certainty.UNCERTAIN:
            if module.partition(".")[0] not in sys.stdlib_module_names:
                raise Unforeseeable(f"{module} may be imported, or not")
            return False
        return self.certainty is Certainty.CERTAIN

    # Variables.

    def set_variable(self, name: Value, value: Value, *, if_unset: bool = False) -> None:
        if not isinstance(value, Known) or not _fits(value.value):
            raise Unforeseeable("a variable is set to what cannot be told")
        key = self._name_of_variable(name)
        known = self._environment.get(key)
        if if_unset and known is not None:
            return
        # Removed by the program before, it is as good as unset.
        sure = not if_unset or key in self._environment
        self.found.append(f"environ {key}{'' if sure else '?'}={value.value}")
        self._environment[key] = value if sure else BUILT_IN

    def remove_variable(self, name: Value) -> None:
        key = self._name_of_variable(name)
        self.found.append(f"environ -{key}")
        self._environment[key] = None

    def variable(self, name: object, default: Value) -> Value:
        """What the program finds in its environment."""
        if not isinstance(name, str) or name not in self._environment:
            return BUILT_IN
        return self._environment[name] or default

    def has_variable(self, name: object) -> Value:
        if not isinstance(name, str) or name not in self._environment:
            return BUILT_IN
        return Known(self._environment[name] is not None)

    def home_is_ours(self) -> bool:
        return "HOME" not in self._environment

    def _name_of_variable(self, name: Value) -> str:
        self._require_certainty()
        key = name.value if isinstance(name, Known) else None
        if not isinstance(key, str) or not re.fullmatch(NAME, key) or key in PER_WORKER:
            raise Unforeseeable("not a variable that is the same for all workers")
        return key

    # Folders.

    def add_folder(self, folder: Value, *, is_first: bool) -> None:
        """`sys.path.insert(0, folder)`, or `append`."""
        self._require_certainty()
        if not isinstance(folder, Known) or not isinstance(folder.value, str):
            raise Unforeseeable("the folder cannot be told")
        if not _fits(folder.value) or folder.value.endswith(".zip"):
            raise Unforeseeable("not a folder")
        path = os.path.join(os.getcwd(), folder.value.removeprefix("./")).rstrip("/") or "/"
        if is_first:
            self._places.insert(path)
        else:
            self._places.append(path)
        self.found.append(f"path {0 if is_first else -1} {path}")

    def has_folder(self, folder: object) -> Value:
        """Whether a folder is on the module path of the program, as far as that is known."""
        if self._places.program_folder is None:
            return BUILT_IN
        return Known(folder in self._places.entries)

    def _require_certainty(self) -> None:
        if self._is_later:
            raise Unforeseeable("it is set behind what a later import may notice")
        if self._is_doubtful():
            raise Unforeseeable("it cannot be told whether this is done")


def _fits(text: object) -> bool:
    """Whether it can be handed over as text, and mean the same."""
    if not isinstance(text, str) or "\0" in text:
        return False
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
