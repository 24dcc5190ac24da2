"""The layers of `src/holdfast` import inward only.

Rules
- A module belongs to the layer that its first folder names; `LAYERS` says which other
  layers each may import. A folder that is not listed there is refused until it is.
- The modules at the top (`holdfast` itself) are the face for users: they may import every
  layer, and no layer may import them. `__version__` is free to all.
- Third-party packages are those that pyproject.toml declares; `core` may use msgspec only;
  nothing imports torch.
- The processes that must be small use the standard library only, and so does everything
  that they pull in, however indirectly.

How it works: the modules are parsed, never imported. Every import counts: inside functions,
under `TYPE_CHECKING`, and as a literal name given to `import_module` or `__import__`. The
single exception is a package's `__init__` on the way to another module: only what runs at
its import is pulled in, since a lazy import in there is not executed.
"""

from __future__ import annotations

import ast
import functools
import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

REPOSITORY = Path(__file__).parents[1]
PACKAGE = "holdfast"
SOURCE = REPOSITORY / "src" / PACKAGE

LAYERS = {
    "core": set(),
    "worker": set(),
    "runtime": {"core"},
    "observe": {"core"},
    "placement": {"core"},
    "transport": {"core", "runtime"},
    "registers": {"core", "runtime", "transport"},
    "store": {"core", "runtime", "transport"},
    "dashboard": {"core", "runtime", "observe", "transport"},
    "processes": {"core", "runtime", "worker"},
    "engine": {"core", "runtime", "transport", "registers", "store", "processes"},
    "admin": {
        "core", "runtime", "worker", "observe", "transport", "registers", "processes", "dashboard",
        "engine",
    },
    "agent": {
        "core", "runtime", "worker", "observe", "placement", "transport", "registers", "store",
        "processes", "dashboard", "engine", "admin",
    },
    "elastic": {
        "core", "runtime", "worker", "observe", "transport", "registers", "store", "processes",
        "engine",
    },
    "doctor": {"core", "processes", "transport"},
    "cli": {
        "doctor", "core", "runtime", "worker", "observe", "placement", "processes", "engine",
        "dashboard", "admin", "agent",
    },
}  # fmt: skip
STANDARD_LIBRARY_ONLY = (
    "holdfast.worker",
    "holdfast.processes.spawner.spawner",
    "holdfast.processes.zygote.zygote",
)
FREE_NAMES = {"holdfast.__version__"}
THIRD_PARTY_OF_CORE = {"msgspec"}


def declared_dependencies() -> set[str]:
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return {re.split(r"[^\w.-]", line)[0] for line in project["dependencies"]}


# --- reading the imports ------------------------------------------------------------------


class Import(NamedTuple):
    """One name that a module imports: `holdfast.core.protocol.model.Record`, `os.path`, `torch`."""

    target: str
    line: int
    deferred: bool
    """Not executed when the module is imported: in a function, or for type checkers only."""


class Module(NamedTuple):
    name: str
    path: Path
    imports: tuple[Import, ...]

    @property
    def is_package(self) -> bool:
        return self.path.name == "__init__.py"

    @property
    def layer(self) -> str:
        """The first folder below the package; empty for the modules at the top."""
        return layer_of(self.name, is_package=self.is_package)

    def at(self, line: int) -> str:
        return f"{self.path}:{line}"


def layer_of(name: str, *, is_package: bool) -> str:
    parts = name.split(".")
    return parts[1] if len(parts) > 2 or (is_package and len(parts) == 2) else ""


class ImportCollector(ast.NodeVisitor):
    """Collects every import of one module, with the absolute name of its target."""

    def __init__(self, package: str) -> None:
        self.package = package
        self.found: list[Import] = []
        self.deferred = False

    def add(self, target: str, node: ast.AST) -> None:
        if target == "sitecustomize":
            return  # The user's own, whose place ours takes.
        self.found.append(Import(target, getattr(node, "lineno", 0), self.deferred))

    def visit_Import(self, node: ast.Import) -> None:
        for alias in node.names:
            self.add(alias.name, node)

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        origin = node.module or ""
        if node.level:
            parents = self.package.split(".")
            above = parents[: len(parents) - node.level + 1]
            origin = ".".join([*above, origin] if origin else above)
        for alias in node.names:
            self.add(f"{origin}.{alias.name}", node)

    def visit_Call(self, node: ast.Call) -> None:
        called = node.func.attr if isinstance(node.func, ast.Attribute) else node.func
        name = called.id if isinstance(called, ast.Name) else called
        if name in ("import_module", "__import__") and node.args:
            argument = node.args[0]
            if isinstance(argument, ast.Constant) and isinstance(argument.value, str):
                self.add(argument.value, node)
        self.generic_visit(node)

    def visit_deferred(self, body: list[ast.stmt]) -> None:
        before, self.deferred = self.deferred, True
        for statement in body:
            self.visit(statement)
        self.deferred = before

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        self.visit_deferred(node.body)

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> None:
        self.visit_deferred(node.body)

    def visit_If(self, node: ast.If) -> None:
        if ast.unparse(node.test) not in ("TYPE_CHECKING", "typing.TYPE_CHECKING"):
            self.generic_visit(node)
            return
        self.visit_deferred(node.body)
        for statement in node.orelse:
            self.visit(statement)


@functools.cache
@functools.cache
def read_modules(source: Path) -> dict[str, Module]:
    """Parse every file below `source`, by the name under which it is imported."""
    modules = {}
    for path in sorted(source.rglob("*.py")):
        parts = path.relative_to(source.parent).with_suffix("").parts
        is_package = parts[-1] == "__init__"
        name = ".".join(parts[:-1] if is_package else parts)
        collector = ImportCollector(name if is_package else name.rpartition(".")[0])
        collector.visit(ast.parse(path.read_text(encoding="utf-8"), filename=str(path)))
        modules[name] = Module(name, path, tuple(collector.found))
    return modules


def is_ours(target: str) -> bool:
    return target.partition(".")[0] == PACKAGE


def is_third_party(target: str) -> bool:
    return not is_ours(target) and target.partition(".")[0] not in sys.stdlib_module_names


# --- judging them -------------------------------------------------------------------------


def violations(source: Path) -> list[str]:
    """Every import below `source` that breaks a rule, one sentence each."""
    modules = read_modules(source)
    declared = declared_dependencies()
    found: list[str] = []
    for module in modules.values():
        if module.layer not in LAYERS and module.layer:
            found.append(f"{module.at(1)}: the layer {module.layer} is not in the table of layers")
            continue
        found += outward_arrows(module)
        found += foreign_packages(module, declared)
        if must_be_small(module.name):
            found += packages_pulled_in(module, modules)
    return found


def must_be_small(name: str) -> bool:
    return any(f"{name}.".startswith(f"{small}.") for small in STANDARD_LIBRARY_ONLY)


def outward_arrows(module: Module) -> Iterator[str]:
    if not module.layer:
        return
    allowed = LAYERS[module.layer] | {module.layer}
    for target, line, _ in module.imports:
        if not is_ours(target) or target in FREE_NAMES:
            continue
        reached = target.split(".")[1] if "." in target else ""
        if reached not in allowed:
            where = f"the layer {reached}" if reached in LAYERS else "the face of the package"
            yield f"{module.at(line)}: {module.layer} may not import {where} ({target})"


MADE_OF_TORCH = {
    "holdfast.processes.zygote.store_host",
    "holdfast.registers.torch_store",
    "holdfast.elastic.control_plane",
    "holdfast.elastic.rendezvous.c10d_rendezvous_backend",
    "holdfast.elastic.rendezvous.torchrun",
    "holdfast.elastic.utils.data.elastic_distributed_sampler",
    "holdfast.elastic.utils.distributed",
}
"""What serves or uses an object of PyTorch's, for a user who asked for that."""


OF_EXTRAS = {"holdfast.agent.trace_export": {"opentelemetry"}}
"""What uses a package that users install besides."""


def foreign_packages(module: Module, declared: set[str]) -> Iterator[str]:
    allowed = THIRD_PARTY_OF_CORE if module.layer == "core" else declared
    for target, line, _ in module.imports:
        package = target.partition(".")[0]
        if package == "torch" and module.name not in MADE_OF_TORCH:
            yield f"{module.at(line)}: nothing in Holdfast imports torch ({target})"
        elif package in OF_EXTRAS.get(module.name, ()):
            continue
        elif package != "torch" and is_third_party(target) and package not in allowed:
            yield f"{module.at(line)}: {module.name} may not import {package}"


def packages_pulled_in(start: Module, modules: dict[str, Module]) -> Iterator[str]:
    """Third-party imports of a module that must be small, and of all that it pulls in."""
    pending, seen = [start, *parents_of(start.name, modules)], set()
    while pending:
        module = pending.pop()
        if module.name in seen:
            continue
        seen.add(module.name)
        for target, line, deferred in module.imports:
            if deferred and module.is_package and module is not start:
                continue
            if is_third_party(target):
                package = target.partition(".")[0]
                yield f"{module.at(line)}: {start.name} would pull in {package}"
            elif is_ours(target):
                pending += pulled_in_by(target, modules)


def pulled_in_by(target: str, modules: dict[str, Module]) -> list[Module]:
    """The module that holds an imported name, and the packages on the way to it."""
    name = target if target in modules else target.rpartition(".")[0]
    return [*([modules[name]] if name in modules else []), *parents_of(name, modules)]


def parents_of(name: str, modules: dict[str, Module]) -> list[Module]:
    parts = name.split(".")
    names = (".".join(parts[:length]) for length in range(1, len(parts)))
    return [modules[parent] for parent in names if parent in modules]


# --- the tests ----------------------------------------------------------------------------


def test_imports_point_inward_only() -> None:
    found = violations(SOURCE)
    assert not found, "\n" + "\n".join(found)


def test_the_walk_sees_the_real_package() -> None:
    modules = read_modules(SOURCE)
    assert {
        "holdfast",
        "holdfast.core.protocol.model",
        "holdfast.core.protocol.errors",
    } <= modules.keys()
    errors = {i.target for i in modules["holdfast.core.protocol.errors"].imports}
    assert "holdfast.core.protocol.model.Outcome" in errors


def plant(root: Path, files: dict[str, str]) -> Path:
    """Write a small package and return its directory."""
    source = root / PACKAGE
    for name, text in files.items():
        path = source / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return source


BAD_MODULES = {
    "an outward import": ("core/bad.py", "import holdfast.agent.agent", "may not import the layer"),
    "an outward name": ("processes/bad.py", "from holdfast.engine import agent", "layer engine"),
    "a sideways import": ("observe/bad.py", "from holdfast.processes import x", "layer processes"),
    "a layer as a name": ("core/bad.py", "from holdfast import engine", "the layer engine"),
    "a relative import": ("core/bad.py", "from ..engine import agent", "the layer engine"),
    "a deep relative import": ("core/deep/bad.py", "from ...cli import x", "the layer cli"),
    "an import in a function": (
        "core/bad.py",
        "async def f():\n    from holdfast.engine import agent",
        "the layer engine",
    ),
    "an import in a method": (
        "core/bad.py",
        "class C:\n    def f(self):\n        import holdfast.cli",
        "the layer cli",
    ),
    "an import for types": (
        "core/bad.py",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import holdfast.engine",
        "the layer engine",
    ),
    "an import by name": (
        "core/bad.py",
        "import importlib\nimportlib.import_module('holdfast.engine')",
        "the layer engine",
    ),
    "the face": ("engine/bad.py", "import holdfast", "the face of the package"),
    "a name of the face": ("engine/bad.py", "from holdfast import launch", "the face of the"),
    "the worker's side reaching in": ("worker/bad.py", "import holdfast.core", "the layer core"),
    "an unknown layer": ("helpers/bad.py", "", "not in the table of layers"),
    "torch": ("engine/bad.py", "def f():\n    import torch.distributed", "imports torch"),
    "torch by name": ("engine/bad.py", "__import__('torch')", "imports torch"),
    "an undeclared package": ("cli/bad.py", "import numpy", "may not import numpy"),
    "a declared package in core": ("core/bad.py", "import cloudpickle", "may not import cloudp"),
    "a package in the worker": ("worker/bad.py", "import msgspec", "would pull in msgspec"),
    "a package in the hook": ("worker/hook/bad.py", "import msgspec", "would pull in msgspec"),
    "a package in the spawner": (
        "processes/spawner/spawner.py",
        "import msgspec",
        "pull in msgspec",
    ),
    "a package in the zygote": (
        "processes/zygote/zygote.py",
        "import cloudpickle",
        "in cloudpickle",
    ),
}


@pytest.mark.parametrize(("name", "text", "complaint"), BAD_MODULES.values(), ids=BAD_MODULES)
def test_a_bad_module_is_caught(tmp_path: Path, name: str, text: str, complaint: str) -> None:
    found = violations(plant(tmp_path, {name: text}))
    assert len(found) == 1, found
    assert complaint in found[0]
    assert name in found[0]


def test_a_package_that_the_spawner_pulls_in_through_others_is_caught(tmp_path: Path) -> None:
    source = plant(
        tmp_path,
        {
            "processes/spawner/spawner.py": "def f():\n    from holdfast.processes import frames",
            "processes/frames.py": "from holdfast.core.protocol.model import Record",
            "core/protocol/model.py": "import msgspec",
        },
    )
    found = violations(source)
    assert len(found) == 1, found
    assert "core/protocol/model.py:1" in found[0]
    assert "holdfast.processes.spawner.spawner would pull in msgspec" in found[0]


def test_a_package_that_a_parent_of_the_spawner_imports_is_caught(tmp_path: Path) -> None:
    source = plant(
        tmp_path, {"__init__.py": "import cloudpickle", "processes/spawner/spawner.py": "import os"}
    )
    found = violations(source)
    assert len(found) == 1, found
    assert "holdfast.processes.spawner.spawner would pull in cloudpickle" in found[0]


def test_what_is_allowed_passes(tmp_path: Path) -> None:
    source = plant(
        tmp_path,
        {
            "__init__.py": "def launch():\n    from holdfast.engine import agent\n",
            "core/protocol/model.py": "import signal\nimport msgspec",
            "worker/frames.py": "import os.path\nfrom . import record",
            "worker/record.py": "from holdfast import __version__",
            "processes/stdlib_only/linux.py": "import ctypes",
            "processes/spawner/spawner.py": "from holdfast.worker import frames",
            "processes/client.py": "from .spawner import spawner\nimport cloudpickle",
            "agent/agent.py": "import asyncio\nfrom ..processes.client import Client",
            "elastic/api.py": "from holdfast.engine import agent",
            "cli/main.py": "from holdfast import __version__\nimport holdfast.agent.agent",
        },
    )
    assert violations(source) == []
