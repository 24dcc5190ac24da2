"""What a zygote may do ahead of the workers.

Rules
1. Only what the program does at its top level before it does anything whose effect cannot be
   told by reading, in that order (`program_prefix.py`): nothing is loaded that a cold worker would
   not load, or would load after the program has set a variable, a path or a filter.
2. Only installed packages and the standard library are loaded. The program's own tree may
   read its rank when imported, so it is never run here, nor is anything it hides by name.
3. What is imported ahead of its time must not depend on a variable that the program may set
   anywhere, by the text of its own files and of those that they import. Which functions run, and
   when, is not asked: a name counts wherever it stands as a string or a keyword, but where it is
   only looked up (`os.environ["A"]`, `.get("A")`, `"A" in os.environ`). What comes from elsewhere
   (a file of settings, an installed package) is seen in a worker (`import_reports.py`).
4. Reading is all that happens here. It never fails, and never takes long; what is not read is not
   preloaded.
"""

from __future__ import annotations

import ast
import importlib
import os
import re
import warnings
from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

from holdfast.core.protocol.preload_steps import brought_by, module_of
from holdfast.processes.zygote.module_path import ModulePath, installed_folders
from holdfast.processes.zygote.program_prefix import (
    SOURCE_LIMIT,
    Absent,
    EndOfReading,
    OwnFile,
    Reader,
    packages_above,
)

ALL = "*"
"""In place of the names of variables, where there is too much to read."""
MOST_BYTES = 1 << 20
NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
SETS_BY_STEP = re.compile(r"environ -?([^=?]+)")
ROOT_LOGGER = "logger root"
"""As `process_state.py` has it."""
DYNAMO = "torch._dynamo"
"""Imported when the first optimizer or `DistributedDataParallel` is made, so that nearly every
program that trains comes to it: known beforehand, it is there at the first launch."""
TRAINS = re.compile(rb"\boptim\b|\bDistributedDataParallel\b|\btorch\.compile\b")


class PreloadPlan(NamedTuple):
    """What a program does at first, as far as reading tells."""

    steps: tuple[str, ...]
    late: tuple[str, ...] = ()
    """What it will import behind the steps."""
    sets: tuple[str, ...] = ()
    """Variables that it may set beside the steps."""
    in_order: tuple[str, ...] = ()
    """Of `late`, what it imports before it may set any of them."""
    files: tuple[tuple[str, tuple[int, ...]], ...] = ()
    """The program's own that were read, with when they were changed and how long they are."""


def plan(source_path: str, program_folder: str | None, extra: tuple[str, ...]) -> tuple[str, ...]:
    """The steps to take ahead for a program, then the import of extra modules, asked by name."""
    return read_program(source_path, program_folder, extra).steps


def read_program(
    source_path: str, program_folder: str | None, extra: tuple[str, ...]
) -> PreloadPlan:
    """The steps as in `plan`, and what comes behind where they end."""
    reader = _read(source_path, program_folder, "__main__")
    loaded = set(map(module_of, reader.found))
    asked = [
        module for module in dict.fromkeys(extra) if module in reader.late or not reader.has(module)
    ]
    steps = (*reader.found, *(f"import {module}" for module in asked if module not in loaded))
    late = tuple(each for each in reader.late if module_of(each) not in extra and each not in extra)
    brought = brought_by((*steps, *late))
    trains = "torch" in brought and any(TRAINS.search(file.text) for file in reader.files)
    is_late = trains and DYNAMO not in brought and reader.places.has_installed(DYNAMO)
    known = (*late, DYNAMO) if is_late else late
    sets = variables_set(reader.files, steps, reader.places)
    sets = (*sets, ROOT_LOGGER) if reader.sets_logging else sets
    files = tuple((file.path, file.stamp) for file in reader.files)
    return PreloadPlan(steps, known, sets, late, files)


def plan_of_module(source_path: str, program_folder: str | None) -> tuple[str, ...]:
    """The steps to take ahead of the import of a file that is not run as a program."""
    try:
        above = packages_above(source_path, program_folder)[-1:]
    except EndOfReading:
        return ()
    name = os.path.basename(source_path).removesuffix(".py")
    parts = above if name == "__init__" and above else [*above, name]
    return tuple(_read(source_path, program_folder, ".".join(parts)).found)


def own_folders(
    steps: tuple[str, ...], program_folder: str | None, known: frozenset[str] | None = None
) -> tuple[str, ...]:
    """The folders whose modules are the program's own: its folder, and those it adds.

    `known` are those of installed packages, which are looked up otherwise.
    """
    known = installed_folders() if known is None else known
    added = [step.split(" ", 2)[2] for step in steps if step.startswith("path ")]
    folders = [program_folder, *added] if program_folder else added
    return tuple(dict.fromkeys(folder for folder in folders if folder not in known))


def installed(module: str, program_folder: str | None) -> bool:
    """Whether the top-level package of a module is installed, and not hidden by the program."""
    return ModulePath(program_folder).top_is_installed(module)


def module_source(module: str, folder: str) -> str | None:
    """Where the code of `python -m module` is, without importing anything of it."""
    places = ModulePath(folder)
    spec = places.find(module)
    if spec is not None and spec.submodule_search_locations is not None:
        spec = places.find(f"{module}.__main__")
    return spec.origin if spec is not None else None


def _read(source_path: str, program_folder: str | None, name: str) -> Reader:
    """Read a program as far as that goes."""
    importlib.invalidate_caches()  # What was written a moment ago is found.
    reader = Reader(program_folder)
    try:
        read_from_the_top(reader, source_path, program_folder, name)
    except (EndOfReading, Absent, RecursionError):
        pass  # The reading has ended.
    except Exception:  # noqa: BLE001 - what we cannot read is no reason for a job to fail
        pass
    return reader


def read_from_the_top(
    reader: Reader, source_path: str, program_folder: str | None, name: str
) -> None:
    """Read the packages above a program, then itself. Raises whatever ends it."""
    above = packages_above(source_path, program_folder)
    for package in above:
        if package != name:
            reader.load(package)
    # The interpreter makes the name absolute in the same way.
    path = os.path.join(os.getcwd(), source_path)
    reader.read(path, name, above[-1] if above else "")


# Variables that the program may set (rule 3).


def variables_set(
    files: list[OwnFile], steps: tuple[str, ...], places: ModulePath
) -> tuple[str, ...]:
    """The names in these files, and those that they import, but for those that are steps."""
    named: Counter[str] = Counter()
    pending, read, seen, size = list(files), set(files), set[str](), 0
    while pending:
        file = pending.pop()
        size += len(file.text)
        if size > MOST_BYTES:
            return (ALL,)
        tree = _parsed(file.text)
        named.update(_names(tree))
        modules = {*_imported(tree, file.package)} - seen
        seen |= modules
        own = (_own_file(module, places) for module in sorted(modules))
        new = {found for found in own if found is not None} - read
        read |= new
        pending += new
    for step in steps:
        found = SETS_BY_STEP.match(step)
        if found:
            named[found[1]] -= 1
    return tuple(sorted(name for name, count in named.items() if count > 0)) if files else (ALL,)


def _own_file(module: str, places: ModulePath) -> OwnFile | None:
    """A module of the program's own; None if it is none."""
    try:
        if places.top_is_installed(module) or places.owner(module) != "own":
            return None
        spec = places.find(module)
        if spec is None or not (spec.origin or "").endswith(".py"):
            return None
        with open(spec.origin or "", "rb") as file:
            return OwnFile(spec.parent or "", file.read(SOURCE_LIMIT))
    except (OSError, ValueError):
        return None


def _parsed(text: bytes) -> ast.Module:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return ast.parse(text)
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        return ast.Module([], [])


def _names(tree: ast.Module) -> Iterator[str]:
    looked_up = {id(node) for node in _looked_up(tree)}
    for node in ast.walk(tree):
        if isinstance(node, ast.keyword) and node.arg:
            yield node.arg
        elif isinstance(node, ast.Constant) and id(node) not in looked_up:
            text = node.value.decode("latin-1") if isinstance(node.value, bytes) else node.value
            if isinstance(text, str) and NAME.fullmatch(text):
                yield text


def _looked_up(tree: ast.Module) -> Iterator[ast.AST]:
    for node in ast.walk(tree):
        match node:
            case ast.Subscript(slice=key, ctx=ast.Load()):
                yield key
            case ast.Compare(left=key, ops=[ast.In() | ast.NotIn()]):
                yield key
            case ast.Call(
                ast.Attribute(attr="get" | "getenv") | ast.Name(id="get" | "getenv"), [key, *_]
            ):
                yield key


def _imported(tree: ast.Module, package: str) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package.split(".")[: 1 - node.level or None] if node.level else []
            module = ".".join([*above, node.module or ""]).strip(".")
            yield module
            yield from (f"{module}.{alias.name}" for alias in node.names)
