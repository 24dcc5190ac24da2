"""Whether functions can come from a zygote, and what it has to be like.

Rules
1. Reading is all that happens here: nothing of the user's is run, and nothing here fails.
2. What is imported ahead is what each worker would import before it can call the function: the
   main module's imports, where `multiprocessing` has it imported again, then those of the
   function's own module. What the function names or imports when it runs is imported ahead too,
   where that makes no difference (`processes/zygote/process_state.py`).
3. A zygote is for functions that need more than the standard library: without that a fresh
   interpreter is there as soon.
4. Two contexts may have the same zygote if all that a fresh interpreter would take from its
   process_state is the same (`WarmPlan.key`).
"""

from __future__ import annotations

import os
import resource
import sys
from collections.abc import Callable, Iterable, Iterator
from multiprocessing import process
from typing import Any

from msgspec import Struct

from holdfast.core.protocol.preload_steps import module_of
from holdfast.processes import environment
from holdfast.processes.stdlib_only import private_names
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
