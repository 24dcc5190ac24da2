"""Where modules are, and whose: installed, the program's own, or nowhere.

Nothing is imported to find out, not even the package above a module. A submodule that is
nowhere on the disk counts as absent, unless the package above may make it up when it is
imported.
"""

from __future__ import annotations

import os
import re
import site
import sys
from importlib.machinery import ModuleSpec, PathFinder
from typing import Literal

Owner = Literal["installed", "own", "absent"]

TEXT_LIMIT = 1024 * 1024
"""Bytes of an installed file that are looked at."""

LOADED_AT_START = frozenset({
    "_collections_abc", "_sitebuiltins", "abc", "codecs", "encodings", "genericpath", "io", "os",
    "posixpath", "site", "stat",
})  # fmt: skip
"""The interpreter has them before the program runs: a file beside the program hides none."""

MADE_UP = rb"sys\.modules|__path__|meta_path|_LazyModule\("
"""In a package that may have modules of which there is no file."""

KNOWN_FINDERS = ("_frozen_importlib", "_distutils_hack", "__editable__", "_pytest", "six")
"""Finders that look on the module path only; any other may find more."""


class ModulePath:
    """The module path of a worker, as it grows while the program is read."""

    def __init__(self, program_folder: str | None) -> None:
        own = [program_folder] if program_folder else []
        self.entries = self._first_entries = (*own, *inherited_path())
        self.program_folder = program_folder
        self._found: dict[tuple[str, tuple[str, ...]], ModuleSpec | None] = {}
        self._installed_folders = installed_folders()

    def insert(self, folder: str) -> None:
        self.entries = (folder, *self.entries)

    def append(self, folder: str) -> None:
        self.entries = (*self.entries, folder)

    def is_unclear(self, module: str) -> bool:
        """Whether a folder that was added hides a package: another one may be loaded already."""
        top = module.partition(".")[0]
        first, now = self._find_on(top, self._first_entries), self.find(top)
        return first is not None and now is not None and first.origin != now.origin

    def find(self, module: str) -> ModuleSpec | None:
        """The spec of a module, found without importing the packages above it."""
        spec: ModuleSpec | None = None
        path = self.entries
        for name in prefixes(module):
            spec = self._find_on(name, path)
            if spec is None:
                return None
            path = tuple(spec.submodule_search_locations or ())
        return spec

    def _find_on(self, name: str, path: tuple[str, ...]) -> ModuleSpec | None:
        if (name, path) not in self._found:
            self._found[name, path] = _find_one(name, path)
        return self._found[name, path]

    def owner(self, module: str) -> Owner:
        """Whose a module is; a package that is spread over several folders may have parts."""
        if module.partition(".")[0] in (*LOADED_AT_START, "holdfast"):
            return "installed"
        owner: Owner = "absent"
        above: ModuleSpec | None = None
        for depth, name in enumerate(prefixes(module)):
            spec = self.find(name)
            if spec is None:
                made_up = _makes_up(above) if above else self._is_hooked(name)
                return "installed" if owner != "own" and made_up else "absent"
            if above is None or above.origin is None:
                owner = "installed" if self._is_installed(spec, depth) else "own"
            above = spec
        return owner

    def may_have(self, module: str) -> bool:
        """Whether an import of it may succeed: it is there, or something may make it up."""
        above: ModuleSpec | None = None
        for name in prefixes(module):
            spec = self.find(name)
            if spec is None:
                return _makes_up(above) if above else self._is_hooked(name)
            above = spec
        return True

    def top_is_installed(self, module: str) -> bool:
        spec = self.find(module.partition(".")[0])
        return spec is not None and self._is_installed(spec, 0)

    def has_installed(self, module: str) -> bool:
        return self.top_is_installed(module) and self.find(module) is not None

    def _is_installed(self, spec: ModuleSpec, depth: int) -> bool:
        """Whether a module lies in the standard library or in an installed package."""
        places = list(spec.submodule_search_locations or [spec.origin or ""])
        for _ in range(depth + 1):
            places = [os.path.dirname(place) for place in places]
        return self._installed_folders.issuperset(places)

    def _is_hooked(self, name: str) -> bool:
        """Whether a module of which there is no file may be found all the same."""
        if name == "distutils":
            return self.find("setuptools") is not None
        origins = {getattr(finder, "__module__", "").partition(".")[0] for finder in sys.meta_path}
        return not all(origin.startswith(KNOWN_FINDERS) for origin in origins)


def prefixes(module: str) -> list[str]:
    """`a`, `a.b`, `a.b.c`."""
    parts = module.split(".")
    return [".".join(parts[: length + 1]) for length in range(len(parts))]


def inherited_path() -> list[str]:
    """What is on the module path of every Python of this environment.

    Our own first entry is where our command lies, and is not there in a worker.
    """
    path = [os.path.abspath(entry) for entry in sys.path]
    given = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    own = {os.getcwd(), os.path.dirname(os.path.realpath(sys.argv[0]))} if sys.argv else set()
    if path and path[0] in own.difference(map(os.path.abspath, filter(None, given))):
        del path[0]
    return path


def installed_folders() -> frozenset[str]:
    """Where packages are installed, and the standard library."""
    standard = os.path.dirname(os.__file__)
    known = {standard, os.path.join(standard, "lib-dynload"), *site.getsitepackages()}
    if site.ENABLE_USER_SITE:
        known.add(site.getusersitepackages())
    resolved = set(map(os.path.realpath, known))
    return frozenset(
        known.union(
            entry
            for entry in sys.path
            if entry.endswith(("site-packages", "dist-packages"))
            or os.path.realpath(entry) in resolved
        )
    )


def _makes_up(spec: ModuleSpec) -> bool:
    """Whether a package may have modules of which there is no file."""
    path = spec.origin or ""
    if not path.endswith(".py"):
        return False
    try:
        with open(path, "rb") as file:
            return re.search(MADE_UP, file.read(TEXT_LIMIT)) is not None
    except OSError:
        return False


def _find_one(name: str, path: tuple[str, ...]) -> ModuleSpec | None:
    """Look for a module in these folders.

    By the last part of its name: for a whole one `PathFinder` wants the package above to be
    imported when it meets one that is spread over several folders.
    """
    try:
        spec = PathFinder.find_spec(name.rpartition(".")[2], path)
    except (ImportError, OSError, ValueError):
        return None
    if spec is None:
        return _find_editable(name)
    spec.name = name
    if spec.submodule_search_locations is not None:
        spec.submodule_search_locations = list(spec.submodule_search_locations)
    return spec


def _find_editable(name: str) -> ModuleSpec | None:
    """What is installed to be edited in place is found by a finder of its own."""
    for finder in sys.meta_path:
        if getattr(finder, "__module__", "").startswith("__editable__"):
            found = finder.find_spec(name, None)
            if found is not None:
                return found
    return None
