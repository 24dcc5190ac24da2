"""How the program of a job becomes the command of a worker, and a request to the spawner."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from functools import cache
from typing import TYPE_CHECKING

from msgspec import Struct

from holdfast.core.node_io import NodeStarted
from holdfast.core.policy.config import JobConfig, Program
from holdfast.processes import failures
from holdfast.processes.stdlib_only.private_messages import Execute, Fork, InCommon, WarmWorker
from holdfast.processes.zygote import learned_imports

if TYPE_CHECKING:
    from holdfast.processes.zygote.preload import PreloadPlan

_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
ERROR_WRITER = os.path.join(_PACKAGE, "worker", "error_file.py")
STORE_HOST = os.path.join(_PACKAGE, "processes", "zygote", "store_host.py")
_RUN_PATH = os.path.join(_PACKAGE, "worker", "run_path.py")
_FUNCTION = os.path.join(_PACKAGE, "processes", "zygote", "function.py")


class Launch(Struct, frozen=True):
    """A program in the form in which processes are started."""

    interpreter: tuple[str, ...]
    """Empty for a plain command."""
    kind: str
    """`script` or `module`, as a forked worker has to run it; else `command`."""
    target: str
    before: tuple[str, ...] = ()
    """Arguments of ours that come before the user's."""

    def command(self, arguments: list[str]) -> list[str]:
        """The whole command line of a cold worker."""
        return [*self.interpreter, *self.options(arguments)]

    def options(self, arguments: list[str]) -> list[str]:
        """The command line behind the interpreter."""
        if self.kind == "command":
            return [self.target, *arguments]
        how = ["-m", self.target] if self.kind == "module" else [self.target]
        return ["-u", *how, *self.before, *arguments]

    def argv(self, arguments: list[str]) -> list[str]:
        """What `sys.argv` is at first; for modules `runpy` puts the path in."""
        name = "-m" if self.kind == "module" else self.target
        return [name, *self.before, *arguments]


def launch_form(program: Program) -> Launch:
    """Map each kind of program to one of the three forms."""
    interpreter = (program.interpreter or sys.executable,)
    match program.kind:
        case "script" | "module":
            return Launch(interpreter, program.kind, program.target)
        case "run_path":
            return Launch(interpreter, "script", _RUN_PATH, before=(program.target,))
        case "function":
            return Launch(interpreter, "script", _FUNCTION, before=(program.target,))
        case "command":
            return Launch((), "command", program.target)


def program_folder(program: Program) -> str | None:
    """The folder that comes first on the program's module path."""
    if program.kind == "script":
        return os.path.dirname(os.path.realpath(program.target))
    if program.kind == "module":
        return os.getcwd()
    return None


def how_to_start(config: JobConfig) -> NodeStarted:
    """Decide from what is on the disk whether a zygote can serve, and what it should import."""
    reason = _why_cold(config)
    if reason:
        return NodeStarted(cold=reason)
    source = program_file(config.program)
    plan_of.cache_clear()  # Another launch by the same process reads it anew.
    read = plan_of(config.program, config.warm.preload)
    known = learned_imports.recall(source) if source is not None else learned_imports.WarmMemory()
    late = tuple(dict.fromkeys((*read.late, *known.late)))
    return NodeStarted(read.steps, late=late, avoid=known.avoid, under=known.under)


@cache
def plan_of(program: Program, extra: tuple[str, ...]) -> PreloadPlan:
    """What the program does at first, read once, with modules that were asked for by name."""
    from holdfast.processes.zygote import preload  # Only where workers start warm is it needed.

    source = program_file(program)
    if source is None:
        return preload.PreloadPlan(tuple(f"import {module}" for module in extra))
    return preload.read_program(source, program_folder(program), extra)


def program_file(program: Program) -> str | None:
    """The file that tells what a program imports; None if there is none."""
    if program.kind == "module":
        from holdfast.processes.zygote import preload

        return preload.module_source(program.target, os.getcwd())
    return program.target if program.kind in ("script", "run_path") else None


def own_folders(steps: tuple[str, ...], folder: str | None) -> list[str]:
    """The folders whose modules are the program's own."""
    from holdfast.processes.zygote import preload

    return list(preload.own_folders(steps, folder, _installed_folders()))


def is_installed(folder: str | None, module: str) -> bool:
    """Whether a module is one of an installed package, for a program in that folder."""
    from holdfast.processes.zygote import preload

    return preload.installed(module, folder)


@cache
def _installed_folders() -> frozenset[str]:
    """Looked up once, before workers run: it takes many looks at the disk."""
    from holdfast.processes.zygote.module_path import installed_folders

    return installed_folders()


def _why_cold(config: JobConfig) -> str:
    program = config.program
    if not config.warm.enabled:
        return "warm starts are turned off"
    if program.kind == "command":
        return "a plain command is started as it is"
    if program.interpreter and program.interpreter != sys.executable:
        return f"another interpreter runs the workers ({program.interpreter})"
    if program.kind in ("script", "run_path") and not os.path.isfile(program.target):
        return f"{program.target} is not a plain file"
    return ""


PROCESSES_PER_REQUEST = 50
"""Five descriptors each at most; one message may carry 253."""


class ProcessOrder(Struct, frozen=True):
    """One process to be started."""

    name: str
    """What the spawner calls it when it tells of it."""
    launch: Launch
    arguments: list[str]
    environment: dict[str, str]
    descriptors: list[int]
    """Its standard streams, and what its node holds (`tethers`); the sender closes them."""
    cpus: tuple[int, ...] | None = None
    learns: bool = False
    """Whether it tells what it imports, if it is forked from a zygote."""


def to_execute(order: ProcessOrder) -> tuple[Execute, list[int]]:
    """Start it cold: fork and exec."""
    environment = order.environment
    if order.launch.interpreter:
        environment = environment | failures.hook_environment(environment)
    argv = order.launch.command(order.arguments)
    request = Execute(name=order.name, argv=argv, env=environment, cpus=order.cpus)
    return request, order.descriptors


def to_fork(
    orders: list[ProcessOrder], shared: dict[str, str], spawner: int
) -> Iterator[tuple[Fork, list[int]]]:
    """Start them warm: have the zygote fork them, as many as one message can carry at once."""
    common = InCommon(shared_env=shared, spawner=spawner, error_writer=ERROR_WRITER)
    for first in range(0, len(orders), PROCESSES_PER_REQUEST):
        part = orders[first : first + PROCESSES_PER_REQUEST]
        descriptors = [descriptor for order in part for descriptor in order.descriptors]
        workers = [_forked(order, shared) for order in part]
        yield Fork(common=common, workers=workers), descriptors


def _forked(order: ProcessOrder, shared: dict[str, str]) -> WarmWorker:
    """All but what is common. A request for many workers must stay small enough to be sent
    without waiting for its reader: the spawner never waits for anybody."""
    own = {name: text for name, text in order.environment.items() if shared.get(name) != text}
    return WarmWorker(
        name=order.name,
        kind=order.launch.kind,
        target=order.launch.target,
        interpreter=order.launch.interpreter,
        command=order.launch.options(order.arguments),
        argv=order.launch.argv(order.arguments),
        env=own,
        learns=order.learns,
        descriptors=len(order.descriptors),
        cpus=order.cpus,
    )
