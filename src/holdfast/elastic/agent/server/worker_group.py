"""The specification of an agent's workers, the workers, and their results.

`WorkerSpec` and `RunResult` are dataclasses, since callers construct them by keyword, compare
them and `replace` them.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from holdfast.elastic.multiprocessing.errors import ProcessFailure

__all__ = ["RunResult", "Worker", "WorkerGroup", "WorkerSpec", "WorkerState"]

UNASSIGNED = -1


@dataclass
class WorkerSpec:
    """The specification of the workers of one role, and of how their agents meet.

    `entrypoint` is a function or a command, and `args` are its arguments. `rdzv_handler` is
    anything with the methods of a `RendezvousHandler`. `max_restarts` counts the restarts that
    this agent asks for; those that another one caused are free. Raises `AssertionError` where
    there is nothing to run, or a size or an interval is not positive.
    """

    role: str
    local_world_size: int
    rdzv_handler: Any
    fn: Callable[..., Any] | None = None
    entrypoint: Callable[..., Any] | str | None = None
    args: tuple[Any, ...] = ()
    max_restarts: int = 3
    monitor_interval: float = 0.1
    master_port: int | None = None
    master_addr: str | None = None
    local_addr: str | None = None
    event_log_handler: str = "null"
    numa_options: Any = None
    duplicate_stdout_filters: list[str] | None = None
    duplicate_stderr_filters: list[str] | None = None
    virtual_local_rank: bool = False

    def __post_init__(self) -> None:
        if self.local_world_size <= 0:
            raise AssertionError(
                f"local_world_size is {self.local_world_size}: it must be 1 or more"
            )
        if self.monitor_interval <= 0:
            raise AssertionError(
                f"monitor_interval is {self.monitor_interval}: it must be more than 0"
            )
        if self.fn:
            message = "WorkerSpec.fn is deprecated; use WorkerSpec.entrypoint"
            warnings.warn(message, DeprecationWarning, stacklevel=3)
            self.entrypoint = self.fn
        if not self.entrypoint:
            raise AssertionError("there is nothing to run: an entrypoint is needed")

    def get_entrypoint_name(self) -> str:
        """The qualified name of the function, or the base name of the command."""
        if isinstance(self.entrypoint, str):
            return os.path.basename(self.entrypoint)
        name: str = getattr(self.entrypoint, "__qualname__", type(self.entrypoint).__qualname__)
        return name


class Worker:
    """One worker, and its place; its `id` is whatever the agent that starts it wants it to be."""

    __slots__ = ["global_rank", "id", "local_rank", "role_rank", "role_world_size", "world_size"]

    def __init__(
        self,
        local_rank: int,
        global_rank: int = UNASSIGNED,
        role_rank: int = UNASSIGNED,
        world_size: int = UNASSIGNED,
        role_world_size: int = UNASSIGNED,
    ) -> None:
        self.id: Any = None
        self.local_rank = local_rank
        self.global_rank = global_rank
        self.role_rank = role_rank
        self.world_size = world_size
        self.role_world_size = role_world_size

    def __repr__(self) -> str:
        ranks = ("local_rank", "global_rank", "role_rank", "world_size", "role_world_size")
        return ",".join(f"{name}={getattr(self, name)}" for name in ranks)


class WorkerState(str, Enum):  # noqa: UP042 - `str()` of it names the class, as callers know it
    """The state of all workers of an agent: they start, fail and end together.

    Stopped ones are about to be restarted; of those whose state is unknown nothing can be
    said, and no agent goes on with them.
    """

    UNKNOWN = "UNKNOWN"
    INIT = "INIT"
    HEALTHY = "HEALTHY"
    UNHEALTHY = "UNHEALTHY"
    STOPPED = "STOPPED"
    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"

    @staticmethod
    def is_running(state: WorkerState) -> bool:
        """Whether there are processes, in good health or not."""
        return state in {WorkerState.HEALTHY, WorkerState.UNHEALTHY}


class WorkerGroup:
    """The workers of one agent. What is None here is known after the first rendezvous."""

    __slots__ = [
        "group_rank",
        "group_world_size",
        "master_addr",
        "master_port",
        "spec",
        "state",
        "store",
        "workers",
    ]

    def __init__(self, spec: WorkerSpec) -> None:
        self.spec = spec
        self.workers = [Worker(local_rank) for local_rank in range(spec.local_world_size)]
        self.store: Any = None
        self.group_rank: int | None = None
        self.group_world_size: int | None = None
        self.master_addr: str | None = None
        self.master_port: int | None = None
        self.state = WorkerState.INIT


@dataclass
class RunResult:
    """The result of a run, by global rank: each rank is in at most one of the two.

    All or nothing: it succeeded only if all workers of this agent did. Workers that the agent
    stopped are in neither.
    """

    state: WorkerState
    return_values: dict[int, Any] = field(default_factory=dict)
    failures: dict[int, ProcessFailure] = field(default_factory=dict)

    def is_failed(self) -> bool:
        return self.state == WorkerState.FAILED
