"""Variables that a program may set somewhere, by the text of its own files.

Which of its functions run, and when, is not asked: whatever is imported ahead of its time must not
depend on any of these. A name counts wherever it stands as a string or a keyword, but where it is
only looked up (`os.environ["A"]`, `.get("A")`, `getenv("A")`, `"A" in os.environ`).

What an own module that is imported somewhere says counts as well, also where only a function
imports it. What comes from elsewhere (a file of settings, an installed package) is seen in a
worker, from the first launch on (`import_reports.py`).
"""

from __future__ import annotations

import ast
import re
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from typing import NamedTuple

LOOKS_UP = frozenset({"get", "getenv"})
NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
SETS_BY_STEP = re.compile(r"environ -?([^=?]+)")
ALL = "*"
"""In place of the names, where there is too much to read."""
MOST_BYTES = 1 << 20


class OwnFile(NamedTuple):
    """One of the program's own files, and the package from which its relative imports go."""

    package: str
    text: bytes
    path: str = ""
    stamp: tuple[int, ...] = ()
    """When it was changed, and how long it is."""


FindOwn = Callable[[str], OwnFile | None]
"""A module of the program, by its name; None if it is none of the program's."""


def variables_set(
    files: list[OwnFile], steps: tuple[str, ...], find_own: FindOwn
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
        new = {found for found in map(find_own, sorted(modules)) if found is not None} - read
        read |= new
        pending += new
    for step in steps:
        found = SETS_BY_STEP.match(step)
        if found:
            named[found[1]] -= 1
    return tuple(sorted(name for name, count in named.items() if count > 0)) if files else (ALL,)


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
            case ast.Call(ast.Attribute(attr=name) | ast.Name(id=name), [key, *_]) if (
                name in LOOKS_UP
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
