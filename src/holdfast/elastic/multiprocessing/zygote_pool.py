"""Zygotes for functions: whether there can be one (`plan`), and those kept between contexts.

Rules
1. Planning only reads: nothing of the user's is run, and nothing here fails.
2. What is imported ahead is what each worker would import before it can call the function: the
   main module's imports, where `multiprocessing` has it imported again, then those of the
   function's own module. What the function names or imports when it runs is imported ahead too,
   where that makes no difference (`processes/zygote/process_state.py`).
3. A zygote is for functions that need more than the standard library: without that a fresh
   interpreter is there as soon.
4. Two contexts may have the same zygote if all that a fresh interpreter would take from its
   process_state is the same (`WarmPlan.key`).
5. A spawner serves one context at a time. When that has ended well, the spawner waits here, with
   its zygote, for the next context that needs the same one.
6. At most `MOST_IDLE` wait; the one that has waited longest goes first. `let_go` ends them all.
7. They end with this process, however it ends: their sockets close. In a fork of this process
   they are not known. One that died while it waited is noticed before it is used.
"""

from __future__ import annotations

import atexit
import os
import resource
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from multiprocessing import process
from typing import Any

from msgspec import Struct

from holdfast.core.protocol.preload_steps import module_of
from holdfast.elastic.multiprocessing import calls
from holdfast.processes import environment
from holdfast.processes.spawner_process import SpawnerProcess
from holdfast.processes.stdlib_only import linux, private_names
from holdfast.processes.zygote import function_imports, preload
from holdfast.processes.zygote.module_path import installed_folders

OUR_OWN = ("holdfast", "msgspec", "cloudpickle")
"""Packages that every worker imports for our sake, quickly."""
FIRST = "from multiprocessing.spawn import spawn_main"
BEFORE_THE_FUNCTION = "import holdfast.elastic.multiprocessing.calls"
READ_UNSEEN = (
    "BLIS_", "GLOO_", "GOMP_", "GRPC_", "JAX_", "KMP_", "LD_", "MALLOC_", "MKL_", "NCCL_",
    "NUMEXPR_", "OMP_", "OPENBLAS_", "PYTHON", "PYTORCH_", "TF_", "TORCH_", "VECLIB_", "XLA_",
)  # fmt: skip
"""Variables that the interpreter or a library may read where it cannot be seen that they do."""
STATUS = ("Umask", "Uid", "Gid", "Groups", "SigBlk", "SigIgn", "Cpus_allowed", "Mems_allowed")


class WarmPlan(Struct, frozen=True):
    """The specification of a zygote for certain functions."""

    interpreter: str
    options: tuple[str, ...]
    steps: tuple[str, ...]
    late: tuple[str, ...]
    sets: tuple[str, ...]
    """Variables that the function may set."""
    environment: dict[str, str]
    """Variables that all workers have in common, now and after a restart."""
    per_worker: tuple[str, ...]
    always_set: tuple[str, ...]
    sys_path: tuple[str, ...]
    own_folders: tuple[str, ...]
    process_state: tuple[object, ...]

    @property
    def key(self) -> tuple[object, ...]:
        """The same for contexts that may share a zygote."""
        variables = tuple(sorted(self.environment.items()))
        what = (self.interpreter, self.options, self.steps, self.late, self.sets, self.per_worker)
        return (*what, variables, self.always_set, self.sys_path, self.process_state)


def plan(
    function: Callable[..., Any],
    arguments: Iterable[tuple[Any, ...]],
    envs: dict[int, dict[str, str]],
    command: list[str],
) -> WarmPlan | None:
    """The plan, or None where workers are to be started one by one."""
    if environment.forbids_warm(os.environ):
        return None
    try:
        return _plan(function, list(arguments), envs, command)
    except Exception:  # noqa: BLE001 - what we cannot read is no reason for a call to fail
        return None


def _plan(
    function: Callable[..., Any],
    arguments: list[tuple[Any, ...]],
    envs: dict[int, dict[str, str]],
    command: list[str],
) -> WarmPlan | None:
    options = _options(command)
    shared = _same_in_all(envs)
    differing = tuple(sorted({name for own in envs.values() for name in own} - shared.keys()))
    if options is None or any(name.startswith(READ_UNSEEN) for name in differing):
        return None
    prepared = private_names.preparation_data("")
    main = _main_source(prepared)
    steps = _steps(main, function)
    late = tuple(function_imports.late_imports(function, arguments))
    if not any(_is_worth_it(name) for name in (*map(module_of, steps), *late)):
        return None
    path = tuple(map(str, prepared["sys_path"]))
    inherited = environment.without_secrets(os.environ)
    common = {name: value for name, value in inherited.items() if name not in differing}
    return WarmPlan(
        interpreter=sys.executable,
        options=options,
        steps=steps,
        late=late,
        sets=function_imports.names_in(function, arguments) if late else (),
        environment=common | shared,
        per_worker=differing,
        always_set=tuple(n for n in differing if all(n in own for own in envs.values())),
        sys_path=path,
        own_folders=_own_folders(path, steps),
        process_state=_process_state(main, path),
    )


def _options(command: list[str]) -> tuple[str, ...] | None:
    """The interpreter's options in the command of a worker; None if it is none that we know."""
    words = [os.fsdecode(word) for word in command]
    if words[0] != sys.executable or words[-3:-2] != ["-c"]:
        return None
    return tuple(words[1:-3])


def _same_in_all(envs: dict[int, dict[str, str]]) -> dict[str, str]:
    """The variables that all have, and will have after a restart too."""
    first, *others = envs.values()
    return {
        name: value
        for name, value in first.items()
        if name not in environment.PER_WORKER and all(own.get(name) == value for own in others)
    }


# What to import.


def _main_source(prepared: dict[str, Any]) -> tuple[str, str] | None:
    """The file that `multiprocessing` runs again as the main module, and the folder it is in."""
    path = prepared.get("init_main_from_path")
    if path is not None:
        is_left_alone = os.path.splitext(os.path.basename(path))[0] == "ipython"
        return None if is_left_alone else (path, os.path.dirname(os.path.realpath(path)))
    name = prepared.get("init_main_from_name", "__main__")
    spec = sys.modules["__main__"].__spec__
    if name.rpartition(".")[2] == "__main__" or spec is None or spec.origin is None:
        return None
    return spec.origin, vars(process)["ORIGINAL_DIR"]


def _steps(main: tuple[str, str] | None, function: Callable[..., Any]) -> tuple[str, ...]:
    of_main = preload.plan_of_module(*main) if main is not None else ()
    of_function = function_imports.steps_of(function)
    return tuple(dict.fromkeys((FIRST, *of_main, BEFORE_THE_FUNCTION, *of_function)))


def _is_worth_it(module: str) -> bool:
    top = module.partition(".")[0]
    return bool(top) and top not in sys.stdlib_module_names and top not in OUR_OWN


# Where it happens.


def _own_folders(path: tuple[str, ...], steps: tuple[str, ...]) -> tuple[str, ...]:
    known = installed_folders()
    own = [folder for folder in path if folder not in known and os.path.isdir(folder)]
    return tuple(dict.fromkeys((*own, *preload.own_folders(steps, None))))


def _process_state(main: tuple[str, str] | None, path: tuple[str, ...]) -> tuple[object, ...]:
    """Inherited state, and the identity of what may have been installed or edited meanwhile."""
    known = installed_folders()
    places = [*(main or ())[:1], *(entry for entry in path if entry in known)]
    limits = tuple(
        resource.getrlimit(getattr(resource, name))
        for name in sorted(vars(resource))
        if name.startswith("RLIMIT_")
    )
    here = os.stat(".")
    where = (os.getcwd(), here.st_dev, here.st_ino)
    return (where, *map(_identity, places), limits, os.getpriority(os.PRIO_PROCESS, 0), *_status())


def _identity(path: str) -> tuple[object, ...]:
    try:
        found = os.stat(path)
    except OSError:
        return (path,)
    return path, found.st_dev, found.st_ino, found.st_mtime_ns


def _status() -> Iterator[str]:
    with open("/proc/thread-self/status", encoding="utf-8", errors="replace") as file:
        yield from (line for line in file if line.startswith(STATUS))
    with open("/proc/self/cgroup", encoding="utf-8", errors="replace") as file:
        yield file.read()


MOST_IDLE = 2


@dataclass
class PooledSpawner:
    """A spawner, and the zygote that it has or is to have."""

    process: SpawnerProcess
    plan: WarmPlan
    steps: tuple[str, ...]
    """The steps of the plan that can be done ahead, as far as known."""
    avoid: dict[str, str] = field(default_factory=dict)
    """Modules that cannot be imported ahead, and why."""
    spawner_pid: int = 0
    """The pid of the spawner itself, which is below a guardian."""
    is_ready: bool = False


_lock = threading.Lock()
_idle: list[PooledSpawner] = []
_useless: set[tuple[object, ...]] = set()
"""The keys of plans for which no zygote will do."""


def take(plan: WarmPlan) -> PooledSpawner | None:
    """One for this plan, with the zygote ready if there is such a one; None if it is no use."""
    if plan.key in _useless:
        return None
    while (pooled := _taken(plan)) is not None:
        if _is_well(pooled):
            return pooled
        pooled.process.drop()
    return PooledSpawner(calls.new_spawner(), plan, plan.steps)


def _taken(plan: WarmPlan) -> PooledSpawner | None:
    with _lock:
        fitting = next((pooled for pooled in _idle if pooled.plan.key == plan.key), None)
        if fitting is not None:
            _idle.remove(fitting)
        return fitting


def note_useless(plan: WarmPlan) -> None:
    """No zygote will do for this plan, now or later."""
    _useless.add(plan.key)


def give_back(pooled: PooledSpawner) -> None:
    """Keep a spawner whose context has ended, and left nothing."""
    with _lock:
        _idle.append(pooled)
        too_many = _idle[:-MOST_IDLE]
        del _idle[:-MOST_IDLE]
    for one in too_many:
        one.process.drop()


def let_go() -> None:
    """End the idle spawners; returns when they have ended."""
    with _lock:
        waiting = list(_idle)
        _idle.clear()
    for pooled in waiting:
        pooled.process.drop()


def _is_well(pooled: PooledSpawner) -> bool:
    """Whether it still lives: an idle spawner sends nothing but the news that something ended."""
    return not linux.readable(pooled.process.socket)


def _hang_up() -> None:
    """At the end of this process: the spawners end by themselves, and are not waited for."""
    for pooled in _idle:
        pooled.process.socket.close()


def _forget() -> None:
    """In a fork of this process: forget the spawners, whose sockets are closed already."""
    global _lock  # noqa: PLW0603 - the thread that had that one is not here
    _lock = threading.Lock()
    _idle.clear()


atexit.register(_hang_up)
os.register_at_fork(after_in_child=_forget)
