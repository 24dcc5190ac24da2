"""The core is pure: no clock, no chance, no input or output, no threads.

Rules
- No module of `core` imports what reaches the world outside (`IMPURE_MODULES`), wherever
  in the file the import stands.
- None calls a builtin that reads or writes (`IMPURE_CALLS`).
- `signal` is there for its names: `signal.SIGTERM` and `signal.Signals(9)` are fine, while
  its functions, which act on the process, are not.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

CORE = Path(__file__).parents[2] / "src" / "holdfast" / "core"

IMPURE_MODULES = {
    "time", "datetime",  # a clock comes in as `now`
    "random", "secrets", "uuid",  # chance comes in as a value
    "os", "io", "pathlib", "shutil", "tempfile", "subprocess", "socket", "select", "selectors",
    "asyncio", "concurrent", "multiprocessing", "threading", "_thread",
    "logging", "warnings",  # reasons are returned, not written
    "importlib",  # would be the way around this list
}  # fmt: skip
IMPURE_CALLS = {"open", "print", "input", "breakpoint", "__import__"}


def impurities(path: Path) -> Iterator[str]:
    """What makes a module impure, one sentence each."""
    tree = ast.parse(path.read_text(encoding="utf-8"), filename=str(path))
    for node in ast.walk(tree):
        for what in [*impure_imports(node), *impure_calls(node)]:
            yield f"{path}:{getattr(node, 'lineno', 0)}: {what}"


def impure_imports(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Import):
        names = [alias.name for alias in node.names]
    elif isinstance(node, ast.ImportFrom) and not node.level and node.module:
        names = [node.module]
        if node.module == "signal":
            names += [f"signal.{a.name}" for a in node.names if acts_on_process(a.name)]
    else:
        return
    for name in names:
        if name.partition(".")[0] in IMPURE_MODULES or name.startswith("signal."):
            yield f"imports {name}"


def impure_calls(node: ast.AST) -> Iterator[str]:
    if not isinstance(node, ast.Call):
        return
    called = ast.unparse(node.func)
    module, _, function = called.rpartition(".")
    if called in IMPURE_CALLS or (module == "signal" and acts_on_process(function)):
        yield f"calls {called}()"


def acts_on_process(name_in_signal: str) -> bool:
    """The module's types and constants start with a capital, its functions do not."""
    return name_in_signal[:1].islower() and name_in_signal != "strsignal"


def test_the_core_is_pure() -> None:
    modules = sorted(CORE.rglob("*.py"))
    assert modules, f"no modules in {CORE}"
    found = [sentence for path in modules for sentence in impurities(path)]
    assert not found, "\n" + "\n".join(found)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("import time", "imports time"),
        ("import math, os.path", "imports os.path"),
        ("from random import Random", "imports random"),
        ("from asyncio.events import x", "imports asyncio.events"),
        ("def f():\n    import threading", "imports threading"),
        ("if TYPE_CHECKING:\n    import subprocess", "imports subprocess"),
        ("def f():\n    return open('x')", "calls open()"),
        ("print('x')", "calls print()"),
        ("x = [input() for _ in 'ab']", "calls input()"),
        ("import signal\nsignal.signal(2, f)", "calls signal.signal()"),
        ("from signal import SIGTERM, raise_signal", "imports signal.raise_signal"),
    ],
)
def test_an_impure_module_is_caught(tmp_path: Path, text: str, complaint: str) -> None:
    path = tmp_path / "bad.py"
    path.write_text(text, encoding="utf-8")
    found = list(impurities(path))
    assert len(found) == 1, found
    assert complaint in found[0]


def test_the_names_of_signals_are_pure(tmp_path: Path) -> None:
    path = tmp_path / "good.py"
    path.write_text(
        "import math, signal\n"
        "from signal import SIGTERM, Signals\n"
        "x = signal.Signals(9).name, signal.strsignal(9), signal.SIGRTMIN\n"
        "def f(journal): return journal.open(), journal.input\n",
        encoding="utf-8",
    )
    assert list(impurities(path)) == []
