"""Whether the program exists: checked on this node, before anything starts.

Rules
- Only programs that would fail in every worker of this node are refused. Other nodes have disks of
  their own, and check their own.
- Nothing is run or imported to find out. If only running it would show (another
  interpreter's modules, a program on standard input), it is accepted, and its workers fail.
"""

from __future__ import annotations

import os
import sys

from holdfast.core.policy.config import Program
from holdfast.core.protocol.errors import UsageError

STANDARD_INPUT = "-"


def check_program(program: Program) -> None:
    """Raise `UsageError` if the workers of this node could not even begin."""
    if program.kind == "command":
        _check_command(program.target)
    elif program.kind == "module":
        if program.interpreter in ("", sys.executable):
            _check_module(program.target)
    elif program.target != STANDARD_INPUT:
        _check_script(program.target)


def _check_script(path: str) -> None:
    if not os.path.exists(path):
        hint = f"looked in {os.getcwd()}{_meant_instead(path)}"
        raise UsageError(f"there is no file {path}", hint)
    if os.path.isdir(path) and not os.path.isfile(os.path.join(path, "__main__.py")):
        raise UsageError(
            f"{path} is a directory without a __main__.py, so Python cannot run it",
            "name a file in it",
        )
    if not os.access(path, os.R_OK):
        raise UsageError(f"{path} cannot be read by this user", f"try chmod u+r {path}")


def _meant_instead(path: str) -> str:
    if _is_command(path):
        return f"; to run the command, write --no-python {path}"
    name = path.removesuffix(".py").strip("/").replace("/", ".")
    if not path.endswith(".py") and name.replace(".", "").isidentifier() and not _why_not(name):
        return f"; to run the module, write -m {name}"
    return ""


def _check_module(name: str) -> None:
    problem = _why_not(name)
    if not problem:
        return
    hint = f"looked in {os.getcwd()} and among the installed packages"
    if os.path.isfile(name):
        hint = f"it is a file: leave -m out, or write {_as_module(name)}"
    elif "__main__" in problem:
        hint = f"name a module in it: -m {name}.MODULE"
    raise UsageError(problem, hint)


def _as_module(path: str) -> str:
    return f"-m {path.removesuffix('.py').strip('/').replace('/', '.')}"


def _why_not(module: str) -> str:
    """Why `python -m` cannot run it; empty if it can, as far as known."""
    from holdfast.processes.zygote.module_path import ModulePath

    places = ModulePath(os.getcwd())
    if not places.may_have(module):
        return f"there is no module {module}"
    found = places.find(module)
    is_package = found is not None and found.submodule_search_locations is not None
    if is_package and not places.may_have(f"{module}.__main__"):
        return f"{module} is a package without a __main__ module, so Python cannot run it"
    return ""


def _check_command(command: str) -> None:
    if _is_command(command):
        return
    is_path = "/" in command
    if is_path and os.path.isdir(command):
        raise UsageError(f"{command} is a directory, not a command", "name a file in it")
    if is_path and os.path.exists(command):
        raise UsageError(f"{command} is not executable", f"try chmod u+x {command}")
    if is_path:
        raise UsageError(f"there is no command {command}", f"looked in {os.getcwd()}")
    hint = "it is not on the PATH"
    if os.path.exists(command):
        hint = f"for the file of that name, write ./{command}"
    raise UsageError(f"there is no command {command}", hint)


def _is_command(name: str) -> bool:
    """Whether it can be executed; `shutil.which`, whose import takes longer than all of this."""
    folders = [""] if "/" in name else os.environ.get("PATH", os.defpath).split(os.pathsep)
    paths = (os.path.join(folder, name) for folder in folders)
    return any(os.path.isfile(path) and os.access(path, os.X_OK) for path in paths)
