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
   handed out: variables, warning filters, module paths, finders, output, log records. If it
   changed anything else that lies outside of modules, it is unfit (`unrepeatable`).
3. A name that the program has meanwhile made to mean another file is not on the shelf.
4. Nor is a group if a variable that it read has another value by now, or a variable that libraries
   read where it loaded one: the worker imports it anew, and whatever had needed it.

The shelf is a finder, the first on `sys.meta_path`, until nothing is left on it.

Standard library only: loaded by path, in the zygote.
"""

from __future__ import annotations

import os
import signal
import sys
from importlib.machinery import ModuleSpec, PathFinder

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType
    from typing import Any

    from holdfast.processes.bare import private_names
else:
    import private_names

STANDARD_LIBRARY = sys.stdlib_module_names
EVERY_LEVEL = 1


class State:
    """What lies outside of modules, at one moment. Some modules are loaded, but hidden."""

    def __init__(self, hidden: dict[str, ModuleType]) -> None:
        warnings: Any = sys.modules.get("warnings")
        modules = {**hidden, **sys.modules}
        logging: Any = modules.get("logging")
        self.environ = dict(private_names.variables())
        self.filters = list(warnings.filters) if warnings else []
        self.path = list(sys.path)
        self.finders = list(sys.meta_path)
        self.fixed = {
            "the signal handlers": [signal.getsignal(n) for n in (1, 2, 3, 10, 12, 13, 14, 15, 17)],
            "sys.excepthook": sys.excepthook,
            "sys.displayhook": sys.displayhook,
            "sys.path_hooks": list(sys.path_hooks),
            "the recursion limit": sys.getrecursionlimit(),
            "the working directory": os.getcwd(),
            "the root logger": (logging.root.level, *logging.root.handlers) if logging else None,
            **_random_numbers(modules),
        }

    def unrepeatable(self, later: State) -> str:
        """What was changed between the two and cannot be done again; else empty."""
        for what, value in self.fixed.items():
            if value != later.fixed[what] and value is not None:
                return what
        return ""

    def restore(self) -> None:
        """Set everything that can be repeated back to how it was."""
        for name in private_names.variables().keys() - self.environ.keys():
            del os.environ[os.fsdecode(name)]
        for name, value in self.environ.items():
            if private_names.variables().get(name) != value:
                os.environ[os.fsdecode(name)] = os.fsdecode(value)
        sys.path[:] = self.path
        sys.meta_path[:] = self.finders
        _set_filters(self.filters)


def _random_numbers(modules: dict[str, Any]) -> dict[str, int | None]:
    """How far each generator is that is loaded: an import may draw from it, or seed it."""
    plain, numpy, torch = map(modules.get, ("random", "numpy.random", "torch.random"))
    states = {
        "random": plain and plain.getstate(),
        "numpy.random": numpy and (numpy.get_state()[1].tobytes(), numpy.get_state()[2]),
        "torch.random": torch and bytes(torch.get_rng_state().tolist()),
    }
    return {
        f"the numbers of {name}": hash(state) if state else None for name, state in states.items()
    }


class Said:
    """Keeps what would be shown of warnings, and what is logged at any level."""

    def __init__(self) -> None:
        self.words: list[Any] = []
        """In their order: records of logging, and the arguments of warnings."""

    def __enter__(self) -> Said:
        logging, warnings = _loggers_and_warnings()
        self._shows, self._handles, self._level = (
            warnings.showwarning, logging.Logger.handle, logging.root.level,
        )  # fmt: skip

        def keep_warning(message: Any, category: Any, file: str, line: int, *_: Any) -> None:
            self.words.append((message, category, file, line))

        def keep_record(_: Any, record: Any) -> None:
            self.words.append(record)

        warnings.showwarning = self._keep_warning = keep_warning
        logging.Logger.handle = self._keep_record = keep_record
        logging.root.setLevel(EVERY_LEVEL)
        return self

    def __exit__(self, *_: object) -> None:
        logging, warnings = _loggers_and_warnings()
        if warnings.showwarning is self._keep_warning:
            warnings.showwarning = self._shows
        if logging.Logger.handle is self._keep_record:
            logging.Logger.handle = self._handles
        if logging.root.level == EVERY_LEVEL:
            logging.root.setLevel(self._level)


def _loggers_and_warnings() -> tuple[Any, Any]:
    import logging
    import warnings

    return logging, warnings


def _say(word: Any) -> None:
    """Show or log it now, as the program's filters, levels and handlers have it."""
    if isinstance(word, tuple):
        sys.modules["warnings"].warn_explicit(*word)
        return
    logger = sys.modules["logging"].getLogger(word.name)
    if logger.isEnabledFor(word.levelno):
        what = (word.msg, word.args, word.exc_info, word.funcName)
        place = (word.name, word.levelno, word.pathname, word.lineno)
        logger.handle(logger.makeRecord(*place, *what, None, word.stack_info))


class Change:
    """What an import changed outside of modules, to be done again."""

    def __init__(
        self, before: State, after: State, printed: tuple[bytes, bytes], said: list[Any]
    ) -> None:
        self.printed = printed
        self.said = said
        self.set = {k: v for k, v in after.environ.items() if before.environ.get(k) != v}
        self.removed = [name for name in before.environ if name not in after.environ]
        self.filters = _added(before.filters, after.filters)
        self.path = _added(before.path, after.path)
        self.finders = _added(before.finders, after.finders)

    def repeat(self) -> None:
        for name, value in self.set.items():
            os.environ[os.fsdecode(name)] = os.fsdecode(value)
        for name in self.removed:
            os.environ.pop(os.fsdecode(name), None)
        _add(sys.path, self.path)
        _add(sys.meta_path, self.finders)
        if any(self.filters):
            warnings: Any = sys.modules["warnings"]
            filters = list(warnings.filters)
            _add(filters, self.filters)
            _set_filters(filters)
        for descriptor, text in enumerate(self.printed, start=1):
            written = 0
            while written < len(text):
                written += os.write(descriptor, text[written:])
        for word in self.said:
            _say(word)


def _added(before: list[Any], after: list[Any]) -> tuple[list[Any], list[Any]]:
    """What is new: before the first of those that were there, and behind it."""
    new = [entry for entry in after if entry not in before]
    firsts = [after.index(entry) for entry in before if entry in after]
    first = min(firsts, default=len(after))
    front = [entry for entry in new if after.index(entry) < first]
    return front, [entry for entry in new if entry not in front]


def _add(target: list[Any], added: tuple[list[Any], list[Any]]) -> None:
    front, back = added
    target[:0] = [entry for entry in front if entry not in target]
    target.extend(entry for entry in back if entry not in target)


def _set_filters(filters: list[Any]) -> None:
    warnings: Any = sys.modules.get("warnings")
    if warnings and warnings.filters != filters:
        private_names.set_warning_filters(filters)


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
            group.change.repeat()
        if not self._groups and self in sys.meta_path:
            sys.meta_path.remove(self)


def _is_same_file(name: str, known: ModuleSpec | None) -> bool:
    found = PathFinder.find_spec(name)
    return known is None or found is None or found.origin == known.origin
