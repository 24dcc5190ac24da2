"""Modules that were imported ahead, and are not there until a worker imports them.

What workers import late, in the middle of their work, is imported ahead too once it is known. To
the program nothing of it may show before its time: not in `sys.modules`, not in the variables,
filters and paths that such an import changes. So it lies on a shelf, in groups: a group is what one
import brought. When a worker imports any module of a group, the whole group is there at once, and
so is whatever the import had changed or printed.

Rules
1. A group is handed out after the groups that it needed, which it met on the shelf itself. What it
   brought of the standard library is one more group that it needs: a program may import that alone.
2. What an import changed and can be repeated is taken back, and repeated when the group is
   handed out: variables, warning filters, module paths, finders, loggers, output, log records. If
   it changed anything else that lies outside of modules, it is unfit (`surroundings.py`).
3. A name that the program has meanwhile made to mean another file is not on the shelf.
4. Nor is a group if a variable that it read has another value by now, or a variable that libraries
   read where it loaded one: the worker imports it anew, and whatever had needed it.

The shelf is a finder, the first on `sys.meta_path`, until nothing is left on it.

Standard library only: loaded by path, in the zygote.
"""

from __future__ import annotations

import os
import sys
from importlib.machinery import ModuleSpec, PathFinder

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType
    from typing import Any

    from holdfast.processes.bare import private_names
    from holdfast.processes.zygote.surroundings import Change, State
else:
    import private_names
    from surroundings import Change, State

STANDARD_LIBRARY = sys.stdlib_module_names


class Asked:
    """What an import asked of the environment: by name or, in native code, unseen."""

    def __init__(self, names: set[str], unseen: tuple[str, ...]) -> None:
        """`unseen` are the beginnings of names that its libraries may have read."""
        self._names = frozenset(map(os.fsencode, names))
        self._unseen = tuple(map(os.fsencode, unseen))

    def is_among(self, changed: set[bytes]) -> bool:
        return not self._names.isdisjoint(changed) or any(
            name.startswith(self._unseen) for name in changed
        )


class Group:
    """What one import brought."""

    def __init__(
        self,
        root: str,
        modules: dict[str, ModuleType],
        change: Change | None,
        asked: Asked | None = None,
    ) -> None:
        self.root = root
        self.modules = modules
        self.change = change
        self.asked = asked
        self.is_outdated = False
        """It was left to the worker, which has it anew: whoever needed this one has another."""
        self.needs: list[Group] = []
        self.bound: list[tuple[ModuleType, str, ModuleType]] = []
        """Packages of others that have one of these modules as an attribute."""

    def without_library(self) -> list[Group]:
        """Give away what is of the standard library, to a group of its own."""
        names = [name for name in self.modules if name.partition(".")[0] in STANDARD_LIBRARY]
        if not names:
            return []
        return [Group(names[0], {name: self.modules.pop(name) for name in names}, None)]

    def hide(self) -> None:
        for name, module in self.modules.items():
            sys.modules.pop(name, None)
            parent, _, child = name.rpartition(".")
            above = sys.modules.get(parent) if parent not in self.modules else None
            if above is not None and vars(above).get(child) is module:
                self.bound.append((above, child, module))
                delattr(above, child)

    def show(self) -> None:
        for name, module in self.modules.items():
            sys.modules.setdefault(name, module)
        for above, child, module in self.bound:
            setattr(above, child, module)
        self.bound.clear()


class Loader:
    """Hands out one module of a group; else it is what loaded that module at first."""

    def __init__(self, shelf: Shelf, group: Group, name: str) -> None:
        self._shelf = shelf
        self._group = group
        self._module = group.modules[name]
        self._spec = getattr(self._module, "__spec__", None)

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return self._module

    def exec_module(self, module: ModuleType) -> None:
        vars(module)["__spec__"] = self._spec
        self._shelf.hand_out(self._group)

    def __getattr__(self, name: str) -> Any:
        return getattr(getattr(self._spec, "loader", None), name)


class Shelf:
    """The finder. `put` fills it, in the zygote; workers take from it."""

    def __init__(self) -> None:
        self._groups: dict[str, Group] = {}
        """By the names of their modules."""
        self._path: list[str] = []
        self._handed_out: list[Group] = []
        self._variables: dict[bytes, bytes] | None = None
        """Those under which it was filled, once it is."""
        self._no_matter: frozenset[bytes] = frozenset()
        self._seen: dict[bytes, bytes] = {}
        self._changed: set[bytes] = set()
        """What differs between the two."""

    def begin(self) -> None:
        """Be found from now on."""
        self._path = list(sys.path)
        sys.meta_path.insert(0, self)

    def is_full(self, no_matter: set[str]) -> None:
        """Nothing is put on it any more. Of these variables it is known that they may change."""
        self._variables = dict(private_names.variables())
        self._seen, self._changed = self._variables, set()
        self._no_matter = frozenset(map(os.fsencode, no_matter))

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        group = self._groups.get(name)
        if group is None or (self._variables is not None and self._is_left_to_worker(group)):
            return None
        known = getattr(group.modules[name], "__spec__", None)
        if path is None and sys.path != self._path and not _is_same_file(name, known):
            return None
        spec = ModuleSpec.__new__(ModuleSpec)
        vars(spec).update(vars(known) if known is not None else vars(ModuleSpec(name, None)))
        spec.loader = Loader(self, group, name)  # type: ignore[assignment]
        return spec

    def _is_left_to_worker(self, group: Group) -> bool:
        """Whether it is not what it would be if it were imported now; then it is not there."""
        changed = self._changed_variables()
        outdated = [one for one in (group, *group.needs) if self._is_outdated(one, changed)]
        for one in [group, *outdated] if outdated else []:
            one.is_outdated = True
            self._take_away(one)
        return bool(outdated)

    def _is_outdated(self, group: Group, changed: set[bytes]) -> bool:
        is_here = any(self._groups.get(name) is group for name in group.modules)
        asked = group.asked
        return group.is_outdated or (is_here and asked is not None and asked.is_among(changed))

    def _changed_variables(self) -> set[bytes]:
        """Those that have another value than when the shelf was filled, or are there or gone."""
        now = private_names.variables()
        if now != self._seen:
            before = self._variables or {}
            names = {name for name in {*now, *before} if now.get(name) != before.get(name)}
            self._seen, self._changed = dict(now), names - self._no_matter
        return self._changed

    def _take_away(self, group: Group) -> None:
        for name in group.modules:
            self._groups.pop(name, None)
        if not self._groups and self in sys.meta_path:
            sys.meta_path = [finder for finder in sys.meta_path if finder is not self]

    def invalidate_caches(self) -> None:
        """There are none; the import system calls this on every finder."""

    def has_handed_out(self, name: str) -> bool:
        """Whether this module was on the shelf when the present import began."""
        return any(name in group.modules for group in self._handed_out)

    def modules(self) -> dict[str, ModuleType]:
        """All that is on it."""
        return {name: group.modules[name] for name, group in self._groups.items()}

    def put(self, group: Group, before: State) -> None:
        """A group that was just imported, with what it took from here, goes onto the shelf."""
        group.needs, self._handed_out = [*self._handed_out, *group.without_library()], []
        for one in (*group.needs, group):
            self._groups.update(dict.fromkeys(one.modules, one))
            one.hide()
        before.restore()

    def put_back(self, before: State) -> None:
        """Nothing came of an import, but it may have taken something."""
        taken, self._handed_out = self._handed_out, []
        for one in taken:
            self._groups.update(dict.fromkeys(one.modules, one))
            one.hide()
        before.restore()

    def hand_out(self, group: Group) -> None:
        """What has it imported goes on with all of it there."""
        if self._groups.get(group.root) is not group and not any(
            self._groups.get(name) is group for name in group.modules
        ):
            return
        for name in group.modules:
            self._groups.pop(name, None)
        for needed in group.needs:
            self.hand_out(needed)
        self._handed_out.append(group)
        group.show()
        if group.change is not None:
            # What is being put on the shelf would have it once more, as if it were its own.
            group.change.repeat(in_silence=self._variables is None)
        if not self._groups and self in sys.meta_path:
            sys.meta_path.remove(self)


def _is_same_file(name: str, known: ModuleSpec | None) -> bool:
    found = PathFinder.find_spec(name)
    return known is None or found is None or found.origin == known.origin
