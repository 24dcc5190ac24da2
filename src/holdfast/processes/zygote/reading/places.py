"""Where modules are, and whose: installed, the program's own, or nowhere.

Nothing is imported to find out, not even the package above a module. A submodule that is
nowhere on the disk counts as absent, unless the package above may make it up when it is
imported.
"""

from __future__ import annotations

import os
import re
import sys
import sysconfig
from importlib.machinery import ModuleSpec
from typing import Any, Literal

from holdfast.processes.zygote.reading.variables import OwnFile

Owner = Literal["installed", "own", "absent"]

SOURCE_LIMIT = 512 * 1024
"""Bytes of a program, or a module of its own, that are still read."""

TEXT_LIMIT = 1024 * 1024
"""Bytes of an installed file that are looked at."""

OURS = "holdfast"
"""Installed, also where it is installed to be edited in place."""

LOADED_AT_START = frozenset({
    "_collections_abc", "_sitebuiltins", "abc", "codecs", "encodings", "genericpath", "io", "os",
    "posixpath", "site", "stat",
})  # fmt: skip
"""The interpreter has them before the program runs: a file beside the program hides none."""

LAZY = (
    rb"(?m)^ *def __getattr__\((?!self|cls)|_LazyModule\(|lazy_loader|"
    rb"^ *sys\.modules\[__name__\] *="
)
"""In a package whose names are loaded when they are taken."""

LOADED_LATE = {
    "numpy": frozenset({
        "char", "core", "ctypeslib", "dtypes", "exceptions", "f2py", "fft", "linalg", "ma",
        "matlib", "polynomial", "random", "rec", "strings", "testing", "typing",
    }),
    "torch": frozenset({"_dynamo", "_export", "_inductor", "onnx"}),
}  # fmt: skip
"""Packages of which only these names are loaded late; all others are there."""

MADE_UP = rb"sys\.modules|__path__|meta_path|_LazyModule\("
"""In a package that may have modules of which there is no file."""

KNOWN_FINDERS = ("_frozen_importlib", "_distutils_hack", "__editable__", "_pytest", "six")
"""Finders that look on the module path only; any other may find more."""


class EndOfReading(Exception):
    """From here on, it is not known what the program does."""


class ModulePath:
    """The module path of a worker, as it grows while the program is read."""

    def __init__(self, program_folder: str | None) -> None:
        own = [program_folder] if program_folder else []
        self.entries = self._first_entries = (*own, *_inherited_path())
        self.program_folder = program_folder
        self._pinned: dict[str, tuple[str, ...]] = {}
        self._found: dict[tuple[str, tuple[str, ...]], ModuleSpec | None] = {}
        self._texts: dict[str, bytes] = {}
        self._installed_folders = installed_folders()

    def insert(self, folder: str) -> None:
        self.entries = (folder, *self.entries)

    def append(self, folder: str) -> None:
        self.entries = (*self.entries, folder)

    def pin(self, module: str) -> None:
        """Note that a package is imported: folders that are added later do not hide it."""
        self._pinned.setdefault(module.partition(".")[0], self.entries)

    def is_unclear(self, module: str) -> bool:
        """Whether a folder that was added has a package that may be loaded from elsewhere.

        What was imported before may have loaded the installed one already.
        """
        top = module.partition(".")[0]
        if top in self._pinned or self.entries == self._first_entries:
            return False
        first, now = _find_one(top, self._first_entries), self.find(top)
        return first is not None and now is not None and first.origin != now.origin

    def find(self, module: str) -> ModuleSpec | None:
        """The spec of a module, found without importing the packages above it."""
        spec: ModuleSpec | None = None
        path = self._pinned.get(module.partition(".")[0], self.entries)
        for name in prefixes(module):
            if (name, path) not in self._found:
                self._found[name, path] = _find_one(name, path)
            spec = self._found[name, path]
            if spec is None:
                return None
            path = tuple(spec.submodule_search_locations or ())
        return spec

    def owner(self, module: str) -> Owner:
        """Whose a module is; a package that is spread over several folders may have parts."""
        if module.partition(".")[0] in (*LOADED_AT_START, OURS):
            return "installed"
        owner: Owner = "absent"
        above: ModuleSpec | None = None
        for depth, name in enumerate(prefixes(module)):
            spec = self.find(name)
            if spec is None:
                made_up = self._says(above, MADE_UP) if above else self._is_hooked(name)
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
                return self._says(above, MADE_UP) if above else self._is_hooked(name)
            above = spec
        return True

    def loads_late(self, module: str, name: str) -> bool:
        """Whether taking a name from an installed module may import something."""
        if module.partition(".")[0] in sys.stdlib_module_names:
            return False  # What modules of the standard library load late is the same library.
        if module in LOADED_LATE:
            return name in LOADED_LATE[module]
        spec = self.find(module)
        return spec is not None and self._says(spec, LAZY)

    def top_is_installed(self, module: str) -> bool:
        spec = self.find(module.partition(".")[0])
        return spec is not None and self._is_installed(spec, 0)

    def has_installed(self, module: str) -> bool:
        return self.top_is_installed(module) and self.find(module) is not None

    def own_file(self, module: str) -> OwnFile | None:
        """A module of the program's own, which need not have been read."""
        try:
            if self.top_is_installed(module) or self.owner(module) != "own":
                return None
            spec = self.find(module)
            if spec is None or not (spec.origin or "").endswith(".py"):
                return None
            with open(spec.origin or "", "rb") as file:
                return OwnFile(spec.parent or "", file.read(SOURCE_LIMIT))
        except (OSError, ValueError):
            return None

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

    def _says(self, spec: ModuleSpec, pattern: bytes) -> bool:
        path = spec.origin or ""
        if not path.endswith(".py"):
            return False
        if path not in self._texts:
            try:
                with open(path, "rb") as file:
                    self._texts[path] = file.read(TEXT_LIMIT)
            except OSError:
                self._texts[path] = b""
        return re.search(pattern, self._texts[path]) is not None


def prefixes(module: str) -> list[str]:
    """`a`, `a.b`, `a.b.c`."""
    parts = module.split(".")
    return [".".join(parts[: length + 1]) for length in range(len(parts))]


def packages_above(source_path: str, program_folder: str | None) -> list[str]:
    """The packages that `python -m` imports before it runs a module that lies there."""
    if program_folder is None:
        return []
    folder = os.path.dirname(os.path.realpath(source_path))
    roots = {os.path.realpath(entry) for entry in (program_folder, *_inherited_path())}
    inside = [root for root in roots if folder == root or folder.startswith(f"{root}{os.sep}")]
    if not inside or folder == os.path.realpath(program_folder):
        return []
    root = max(inside, key=len)
    if _is_package(root):
        raise EndOfReading("it cannot be told from where the module is imported")
    names = os.path.relpath(folder, root).split(os.sep)
    return prefixes(".".join(names)) if all(map(str.isidentifier, names)) else []


def _is_package(folder: str) -> bool:
    return os.path.exists(os.path.join(folder, "__init__.py"))


def _inherited_path() -> list[str]:
    """What is on the module path of every Python of this environment.

    Our own first entry is where our command lies, and is not there in a worker.
    """
    path = [os.path.abspath(entry) for entry in sys.path]
    given = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    own = {os.getcwd(), os.path.dirname(os.path.realpath(sys.argv[0]))} if sys.argv else set()
    if path and path[0] in own.difference(map(os.path.abspath, filter(None, given))):
        del path[0]
    return path


def _finder(folder: str) -> Any:
    """The finder of that folder, as the interpreter has it; None if there is none."""
    if folder not in sys.path_importer_cache:
        found = None
        for hook in sys.path_hooks:
            try:
                found = hook(folder)
            except ImportError:
                continue
            break
        sys.path_importer_cache[folder] = found
    return sys.path_importer_cache[folder]


def _find_one(name: str, path: tuple[str, ...]) -> ModuleSpec | None:
    """Look for a module in these folders.

    As `PathFinder` does, which wants the package above to be imported when it meets one
    that is spread over several folders.
    """
    parts: list[str] = []
    try:
        for entry in path:
            finder = _finder(entry)
            spec: ModuleSpec | None = finder.find_spec(name) if finder is not None else None
            if spec is not None and spec.loader is not None:
                return spec
            parts += (spec.submodule_search_locations or []) if spec is not None else []
        if not parts:
            return _find_editable(name)
    except (ImportError, OSError, ValueError):
        return None
    spread = ModuleSpec(name, None)
    spread.submodule_search_locations = parts
    return spread


def _find_editable(name: str) -> ModuleSpec | None:
    """What is installed to be edited in place is found by a finder of its own."""
    for finder in sys.meta_path:
        if getattr(finder, "__module__", "").startswith("__editable__"):
            found = finder.find_spec(name, None)
            if found is not None:
                return found
    return None


_BASES = {
    "base": sys.prefix,
    "platbase": sys.exec_prefix,
    "installed_base": sys.base_prefix,
    "installed_platbase": sys.base_exec_prefix,
    "platlibdir": sys.platlibdir,
    "implementation_lower": "python"
    if sys.implementation.name == "cpython"
    else sys.implementation.name,
    "py_version_short": "{}.{}".format(*sys.version_info),
    "abi_thread": "t" if "t" in sys.abiflags else "",
}
"""What `sysconfig` has in its places, as far as it is known without having it loaded."""


def installed_folders() -> frozenset[str]:
    """Where packages are installed, and the standard library."""
    known = [_place(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")]
    known.append(os.path.join(known[0], "lib-dynload"))
    resolved = {os.path.realpath(place) for place in known}
    on_path = {
        entry
        for entry in sys.path
        if os.path.realpath(entry) in resolved or entry.endswith(("site-packages", "dist-packages"))
    }
    return frozenset(on_path.union(known))


def _place(name: str) -> str:
    """One of `sysconfig`'s places, filled in here where that can be done.

    To fill them in itself, `sysconfig` loads all that is known of how Python was built: a
    thousand values, of which these need none.
    """
    try:
        return sysconfig.get_paths(expand=False)[name].format_map(_BASES)
    except KeyError:  # This Python has further names in them.
        return sysconfig.get_path(name)
