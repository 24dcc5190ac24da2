"""What a zygote may do ahead of the workers.

Rules
1. Only what the program does at its top level before it does anything whose effect cannot be
   told by reading, in that order: nothing is loaded that a cold worker would not load, or
   would load after the program has set a variable, a path or a filter that matters to it.
2. Only installed packages and the standard library are loaded. The program's own tree may
   read its rank when imported, so it is never run here, nor is anything it hides by name.
3. Reading is all that happens here: the program is parsed, never run. It never fails, and
   never takes long; what is not read is not preloaded.

How it works: the beginning of the program is read statement by statement (`reading/prefix.py`), and
so are modules of its own where they are imported. At the first statement whose effect is not known
by its form, the reading ends.
"""

from __future__ import annotations

import importlib
import os
from typing import NamedTuple

from holdfast.core.protocol.preload_steps import module_of
from holdfast.processes.zygote.reading.foreseen import foreseen
from holdfast.processes.zygote.reading.places import (
    EndOfReading,
    ModulePath,
    installed_folders,
    packages_above,
)
from holdfast.processes.zygote.reading.prefix import Absent, Reader
from holdfast.processes.zygote.reading.variables import variables_set

ROOT_LOGGER = "logger root"
"""As `process_state.py` has it."""


class PreloadPlan(NamedTuple):
    """What a program does at first, as far as reading tells."""

    steps: tuple[str, ...]
    late: tuple[str, ...] = ()
    """What it imports behind the steps."""
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
    steps = _with(reader, extra)
    late = tuple(each for each in reader.late if module_of(each) not in extra and each not in extra)
    texts = [file.text for file in reader.files]
    known = foreseen((*steps, *late), texts, reader.places.has_installed)
    sets = variables_set(reader.files, steps, reader.places.own_file)
    sets = (*sets, ROOT_LOGGER) if reader.sets_logging else sets
    files = tuple((file.path, file.stamp) for file in reader.files)
    return PreloadPlan(steps, (*late, *known), sets, late, files)


def _with(reader: Reader, extra: tuple[str, ...]) -> tuple[str, ...]:
    loaded = set(map(module_of, reader.found))
    asked = [
        module for module in dict.fromkeys(extra) if module in reader.late or not reader.has(module)
    ]
    return (*reader.found, *(f"import {module}" for module in asked if module not in loaded))


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
