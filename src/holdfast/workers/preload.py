"""What a zygote may import ahead of the workers.

Rules
1. Only what the program imports before it does anything else, in that order: nothing is
   loaded that a cold worker would not load, or would load after the program has set a
   variable, a path or a filter that matters to it.
2. Only installed packages and the standard library. The program's own tree may read its
   rank when imported, so it is never run here, nor is anything it hides by name.
3. Reading is all that happens here: the program is parsed, never run.

How it works: the program is read statement by statement. Definitions, constants and a few
calls that are known to change nothing are passed over; an installed module is noted; a
module of the program's own tree is read in the same way, where it is imported. At the first
statement whose effect cannot be told by reading, the reading ends.
"""

from __future__ import annotations

import ast
import importlib.machinery
import os
import sys
import sysconfig
import warnings
from functools import cache
from importlib.machinery import ModuleSpec

OWN_TREE_LIMIT = 128 * 1024
"""Bytes of the program's own modules that are read: the job waits for it."""

CALLS_WITHOUT_EFFECT = frozenset({
    "bool", "bytes", "dict", "float", "frozenset", "int", "len", "list", "max", "min", "object",
    "range", "set", "sorted", "str", "sum", "tuple",
    "collections.namedtuple", "namedtuple", "logging.getLogger", "getLogger", "re.compile",
    "os.environ.get", "os.getcwd", "os.getenv", "os.getpid", "os.path.abspath",
    "os.path.basename", "os.path.dirname", "os.path.exists", "os.path.expanduser",
    "os.path.join", "os.path.realpath", "Path", "pathlib.Path", "struct.Struct",
    "time.monotonic", "time.monotonic_ns", "time.perf_counter", "time.perf_counter_ns",
    "time.time", "TypeVar", "typing.TypeVar", "NewType", "typing.NewType",
})  # fmt: skip


class Unforeseeable(Exception):
    """From here on, reading does not tell what the program does."""


class Absent(Exception):
    """A module that is nowhere to be found."""


def plan(source_path: str, program_folder: str | None, extra: tuple[str, ...]) -> tuple[str, ...]:
    """The modules to preload for a program, extra ones (asked for by name) last."""
    reader = Reader(program_folder)
    try:
        for package in _packages_above(source_path, program_folder):
            reader.import_module(package)
        reader.read(source_path, _package_name(source_path, program_folder), is_main=True)
    except (Unforeseeable, Absent, RecursionError):
        pass
    return tuple(f"import {name}" for name in dict.fromkeys([*reader.found, *extra]))


def own_folders(steps: tuple[str, ...], program_folder: str | None) -> tuple[str, ...]:
    return ()


def installed(module: str, program_folder: str | None) -> bool:
    """Whether the top-level package of a module is installed, and not hidden by the program."""
    return _is_installed(_find(module.partition(".")[0], _search_path(program_folder)))


def module_source(module: str, folder: str) -> str | None:
    """Where the code of `python -m module` is, without importing anything of it."""
    spec = _find(module, _search_path(folder))
    if spec is not None and spec.submodule_search_locations is not None:
        spec = _find(f"{module}.__main__", _search_path(folder))
    return spec.origin if spec is not None else None


class Reader:
    """Collects in `found` what a program imports, as far as it can be foreseen."""

    def __init__(self, program_folder: str | None) -> None:
        self.found: list[str] = []
        self._path = _search_path(program_folder)
        self._read: set[str] = set()
        self._bytes_left = OWN_TREE_LIMIT

    def read(self, path: str, package: str, *, is_main: bool = False) -> None:
        """Read one file of the program. Raises `Unforeseeable` where the reading ends."""
        try:
            with open(path, "rb") as file, warnings.catch_warnings():
                warnings.simplefilter("ignore")
                tree = ast.parse(file.read(), path)
        except (OSError, SyntaxError, ValueError, MemoryError) as error:
            raise Unforeseeable from error  # The worker itself will say what is wrong with it.
        self._statements(tree.body, package, is_main)

    def import_module(self, module: str) -> None:
        """Follow the import of one module, packages above it first."""
        top = module.partition(".")[0]
        if top in ("__future__", "holdfast") or top in sys.builtin_module_names:
            return
        spec = _find(top, self._path)
        if spec is None:
            raise Absent(module)
        if _is_installed(spec):
            self.found.append(module)
            return
        for name in _prefixes(module):
            self._read_own(name)

    def _read_own(self, module: str) -> None:
        if module in self._read:
            return
        self._read.add(module)
        spec = _find(module, self._path)
        if spec is None:
            raise Absent(module)
        if spec.origin is None or not spec.origin.endswith(".py"):
            raise Unforeseeable(module)
        self._bytes_left -= os.stat(spec.origin).st_size
        if self._bytes_left < 0:
            raise Unforeseeable(module)
        self.read(spec.origin, spec.parent or "")

    def _statements(self, statements: list[ast.stmt], package: str, is_main: bool) -> None:
        for statement in statements:
            match statement:
                case ast.Import():
                    for alias in statement.names:
                        self.import_module(alias.name)
                case ast.ImportFrom():
                    self._import_from(statement, package)
                case ast.If():
                    self._condition(statement, package, is_main)
                case ast.Try():
                    self._attempt(statement, package, is_main)
                case _ if not _has_no_effect(statement):
                    raise Unforeseeable

    def _import_from(self, statement: ast.ImportFrom, package: str) -> None:
        module = statement.module or ""
        if statement.level:
            parents = package.split(".")[: len(package.split(".")) - statement.level + 1]
            module = ".".join([*parents, module] if module else parents)
        if not module:
            raise Unforeseeable
        self.import_module(module)
        if module.partition(".")[0] in {name.partition(".")[0] for name in self._read}:
            for alias in statement.names:
                if _find(f"{module}.{alias.name}", self._path) is not None:
                    self.import_module(f"{module}.{alias.name}")

    def _condition(self, statement: ast.If, package: str, is_main: bool) -> None:
        """Only what is always or never true is followed, or makes no difference."""
        test = ast.unparse(statement.test)
        if test.endswith("TYPE_CHECKING") or (test == "__name__ == '__main__'" and not is_main):
            self._statements(statement.orelse, package, is_main)
            return
        if not _is_plain(statement.test):
            raise Unforeseeable
        found = list(self.found)
        self._statements([*statement.body, *statement.orelse], package, is_main)
        self.found = found

    def _attempt(self, statement: ast.Try, package: str, is_main: bool) -> None:
        """`try: import a` and what to do without it."""
        try:
            self._statements(statement.body, package, is_main)
        except Absent:
            for handler in statement.handlers:
                self._statements(handler.body, package, is_main)
        else:
            self._statements(statement.orelse, package, is_main)
        self._statements(statement.finalbody, package, is_main)


def _has_no_effect(statement: ast.stmt) -> bool:
    """Whether it changes nothing but the names of its own module."""
    match statement:
        case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef() | ast.Pass():
            return True
        case ast.Expr(value=ast.Constant()):
            return True
        case ast.Assign():
            return all(map(_is_name, statement.targets)) and _is_plain(statement.value)
        case ast.AnnAssign():
            value = statement.value
            return _is_name(statement.target) and (value is None or _is_plain(value))
    return False


def _is_name(target: ast.expr) -> bool:
    if isinstance(target, ast.Tuple):
        return all(map(_is_name, target.elts))
    return isinstance(target, ast.Name)


def _is_plain(expression: ast.expr) -> bool:
    """Whether working it out changes nothing."""
    for node in ast.walk(expression):
        if isinstance(node, ast.Await | ast.Yield | ast.YieldFrom):
            return False
        if isinstance(node, ast.Call) and not _is_harmless(node.func):
            return False
    return True


def _is_harmless(function: ast.expr) -> bool:
    if isinstance(function, ast.Attribute) and isinstance(function.value, ast.Call | ast.Constant):
        return True  # A method of what a harmless call returned: `Path(name).resolve()`.
    return ast.unparse(function) in CALLS_WITHOUT_EFFECT


# Where modules are.


def _search_path(program_folder: str | None) -> tuple[str, ...]:
    return (*([program_folder] if program_folder else []), *sys.path)


@cache
def _find(module: str, path: tuple[str, ...]) -> ModuleSpec | None:
    """The spec of a module, found without importing the packages above it."""
    spec: ModuleSpec | None = None
    for name in _prefixes(module):
        spec = importlib.machinery.PathFinder.find_spec(name, list(path))
        if spec is None:
            return None
        path = tuple(spec.submodule_search_locations or ())
    return spec


def _is_installed(spec: ModuleSpec | None) -> bool:
    """Whether a top-level module lies in the standard library or in an installed package."""
    if spec is None:
        return False
    places = list(spec.submodule_search_locations or [spec.origin or ""])
    return {os.path.dirname(place) for place in places} <= _installed_folders()


@cache
def _installed_folders() -> frozenset[str]:
    places = sysconfig.get_paths()
    known = [places[name] for name in ("stdlib", "platstdlib", "purelib", "platlib")]
    known.append(os.path.join(places["stdlib"], "lib-dynload"))
    resolved = {os.path.realpath(place) for place in known}
    on_path = {
        entry
        for entry in sys.path
        if os.path.realpath(entry) in resolved or entry.endswith(("site-packages", "dist-packages"))
    }
    return frozenset(on_path.union(known))


def _prefixes(module: str) -> list[str]:
    parts = module.split(".")
    return [".".join(parts[: length + 1]) for length in range(len(parts))]


def _package_name(source_path: str, program_folder: str | None) -> str:
    """The package that a program belongs to, if it is run as a module inside of one."""
    above = _packages_above(source_path, program_folder)
    return above[-1] if above else ""


def _packages_above(source_path: str, program_folder: str | None) -> list[str]:
    """The packages that `python -m` imports before it runs a module of the program's tree."""
    if program_folder is None:
        return []
    inside = os.path.relpath(os.path.realpath(source_path), os.path.realpath(program_folder))
    folders = inside.split(os.sep)[:-1]
    return [] if os.pardir in folders or not folders else _prefixes(".".join(folders))
