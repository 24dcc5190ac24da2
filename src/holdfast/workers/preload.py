"""What a zygote may import ahead of the workers.

Rules
1. Only what the program imports at its top level, in the order it does so: nothing is
   loaded that a cold worker would not load.
2. Only installed packages and the standard library. The program's own tree may read its
   rank when imported, so it is never touched, nor is anything it hides by name.
3. Reading is all that happens here: the program is parsed, never run.
"""

from __future__ import annotations

import ast
import importlib.machinery
import os
import sys
import sysconfig
from collections.abc import Iterator


def top_level_imports(source: bytes, filename: str) -> tuple[str, ...]:
    """Absolute module names imported by the statements of a module's own level."""
    try:
        tree = ast.parse(source, filename)
    except (SyntaxError, ValueError):
        return ()  # The worker itself will say what is wrong with it.
    return tuple(dict.fromkeys(_imported(tree.body)))


def _imported(statements: list[ast.stmt]) -> Iterator[str]:
    for statement in statements:
        if isinstance(statement, ast.Import):
            yield from (alias.name for alias in statement.names)
        elif isinstance(statement, ast.ImportFrom) and not statement.level and statement.module:
            yield statement.module
        elif isinstance(statement, ast.Try):
            yield from _imported(statement.body)


def installed(module: str, program_folder: str | None) -> bool:
    """Whether the top-level package of a module is installed, and not hidden by the program."""
    package = module.partition(".")[0]
    if package in sys.builtin_module_names or package == "__future__":
        return True
    if program_folder is not None and _finds(package, [program_folder]):
        return False
    spec = importlib.machinery.PathFinder.find_spec(package, _installed_folders())
    return spec is not None and spec.origin is not None


def _finds(package: str, folders: list[str]) -> bool:
    spec = importlib.machinery.PathFinder.find_spec(package, folders)
    return spec is not None and spec.origin is not None


def _installed_folders() -> list[str]:
    """The folders of the standard library and of installed packages on our own path."""
    places = sysconfig.get_paths()
    known = {
        os.path.realpath(places[name]) for name in ("stdlib", "platstdlib", "purelib", "platlib")
    }
    known |= {os.path.join(places["stdlib"], "lib-dynload")}
    return [
        entry
        for entry in sys.path
        if os.path.realpath(entry) in known or entry.endswith(("site-packages", "dist-packages"))
    ] + [os.path.join(places["stdlib"], "lib-dynload")]


def plan(source_path: str, program_folder: str | None, extra: tuple[str, ...]) -> tuple[str, ...]:
    """The modules to preload for a program, extra ones (asked for by name) last."""
    try:
        with open(source_path, "rb") as file:
            source = file.read()
    except OSError:
        return extra
    wanted = top_level_imports(source, source_path)
    fit = [module for module in wanted if installed(module, program_folder)]
    return tuple(dict.fromkeys([*fit, *extra]))


def module_source(module: str, folder: str) -> str | None:
    """Where the code of `python -m module` is, without importing anything of it."""
    search: list[str] | None = [folder, *sys.path]
    spec = None
    for part in _prefixes(module):
        spec = importlib.machinery.PathFinder.find_spec(part, search)
        if spec is None:
            return None
        search = list(spec.submodule_search_locations or [])
    if spec is not None and spec.submodule_search_locations is not None:
        spec = importlib.machinery.PathFinder.find_spec(f"{module}.__main__", search)
    return spec.origin if spec is not None else None


def _prefixes(module: str) -> list[str]:
    parts = module.split(".")
    return [".".join(parts[: length + 1]) for length in range(len(parts))]
