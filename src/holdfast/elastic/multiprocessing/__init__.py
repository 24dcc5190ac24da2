"""Start copies of a function or a command, wait for all of them, end all of them.

    context = start_processes("trainer", train, args={0: (a,), 1: (b,)}, envs={0: {}, 1: {}},
                              logs_specs=DefaultLogsSpecs(log_dir="/tmp/logs", tee=Std.ALL))
    result = context.wait()

What holds for the processes while they run is said in `api.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from holdfast.elastic.multiprocessing import api
from holdfast.elastic.multiprocessing.api import *  # noqa: F403 - the names of `api`, and one more
from holdfast.elastic.multiprocessing.api import (
    LogsSpecs,
    MultiprocessContext,
    PContext,
    SubprocessContext,
    check_full_rank,
)

__all__ = ["start_processes"]
__all__ += api.__all__


def start_processes(
    name: str,
    entrypoint: Callable[..., Any] | str,
    args: dict[int, tuple[Any, ...]],
    envs: dict[int, dict[str, str]],
    logs_specs: LogsSpecs,
    log_line_prefixes: dict[int, str] | None = None,
    start_method: str = "spawn",
    numa_options: Any = None,
    duplicate_stdout_filters: list[str] | None = None,
    duplicate_stderr_filters: list[str] | None = None,
) -> PContext:
    """Start one process for each local rank, with its arguments and variables.

    A text is a command, whose arguments are made texts; anything else is called, and what it
    returns is in the result. Variables are laid over this process's own. Raises `RuntimeError`
    when the ranks of `args` and `envs` are not 0, 1, …, and what cannot be started.
    """
    check_full_rank(args, len(args), "args")
    check_full_rank(envs, len(args), "envs")
    outputs = (logs_specs, log_line_prefixes)
    more = (numa_options, duplicate_stdout_filters, duplicate_stderr_filters)
    context: PContext
    if isinstance(entrypoint, str):
        context = SubprocessContext(name, entrypoint, args, envs, *outputs, *more)
    else:
        context = MultiprocessContext(name, entrypoint, args, envs, start_method, *outputs, *more)
    context.start()
    return context
