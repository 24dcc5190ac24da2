"""The workers of an agent: their specification, their ranks, their variables and their results.

`WorkerSpec` and `RunResult` are dataclasses, since callers construct them by keyword, compare
them and `replace` them.

Ranks are agreed upon by agents through the store that they share:
1. They are those of `core.policy.ranks.assign`, with the agents in the order of their group ranks:
   dense over the job and over each role, contiguous on each agent.
2. Every agent says what it has under `torchelastic/role_info/<group rank>`. The first one reads
   that of all and sets `torchelastic/assigned_ranks/<group rank>` for each: O(N) bytes through
   the first, O(1) through every other. Keys and values are PyTorch's, so that agents of both
   can be in one group.
3. Nothing is removed: a handler gives a store of its own to every rendezvous.
4. With `TORCH_ELASTIC_WORKER_IDENTICAL=1` all agents are alike by the word of the user, and
   nothing is exchanged.

Variables are those of `processes.environment`, which every worker of Holdfast gets, over what they
inherit. `HOLDFAST_ROUND` is among them where the rendezvous tells the number of the round; a
handler of somebody else does not have to have one.
"""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, NamedTuple

from holdfast.core.policy import ranks
from holdfast.core.policy.config import JobConfig, Program, RestartPolicy
from holdfast.core.protocol.model import Assignment, Endpoint, NodeInfo, Ranks
from holdfast.elastic.multiprocessing.errors import ProcessFailure
from holdfast.elastic.utils.store import values_of
from holdfast.processes import environment

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


@dataclass(eq=False, slots=True)
class Worker:
    """One worker, and its place; its `id` is whatever the agent that starts it wants it to be."""

    local_rank: int
    global_rank: int = UNASSIGNED
    role_rank: int = UNASSIGNED
    world_size: int = UNASSIGNED
    role_world_size: int = UNASSIGNED
    id: Any = field(default=None, init=False)


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


@dataclass(eq=False, slots=True)
class WorkerGroup:
    """The workers of one agent. What is None here is known after the first rendezvous."""

    spec: WorkerSpec
    workers: list[Worker] = field(init=False)
    store: Any = field(default=None, init=False)
    group_rank: int | None = field(default=None, init=False)
    group_world_size: int | None = field(default=None, init=False)
    master_addr: str | None = field(default=None, init=False)
    master_port: int | None = field(default=None, init=False)
    state: WorkerState = field(default=WorkerState.INIT, init=False)

    def __post_init__(self) -> None:
        self.workers = [Worker(local_rank) for local_rank in range(self.spec.local_world_size)]


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


ROLE_INFO = "torchelastic/role_info/"
ASSIGNED_RANKS = "torchelastic/assigned_ranks/"
ALL_ALIKE = "TORCH_ELASTIC_WORKER_IDENTICAL"
NOWHERE = Endpoint("", 0)


class RankShare(NamedTuple):
    """The first ranks of one agent, and the numbers of all."""

    first_rank: int
    world_size: int
    first_role_rank: int
    role_world_size: int


class RoleInstanceInfo(NamedTuple):
    """An agent's entry in the store. Agents that assign ranks in their own way build on it."""

    role: str
    rank: int
    local_world_size: int

    def serialize(self) -> bytes:
        return json.dumps(self._asdict()).encode()

    @staticmethod
    def deserialize(data: bytes) -> RoleInstanceInfo:
        return RoleInstanceInfo(**json.loads(data))

    @staticmethod
    def compare(obj1: RoleInstanceInfo, obj2: RoleInstanceInfo) -> int:
        """Below zero, zero or above, as the first comes before the second: by role, then rank."""
        if obj1.role == obj2.role:
            return obj1.rank - obj2.rank
        return 1 if obj1.role > obj2.role else -1

    @staticmethod
    def find_role_boundaries(roles_infos: Sequence[RoleInstanceInfo], role: str) -> tuple[int, int]:
        """The first and the last index of a role; −1 for each where no agent has it."""
        places = [place for place, info in enumerate(roles_infos) if info.role == role]
        return (places[0], places[-1]) if places else (-1, -1)


def assigned_workers(
    store: Any, group_rank: int, group_world_size: int, spec: WorkerSpec
) -> list[Worker]:
    """The workers of this agent with their ranks, as soon as all agents have said their part."""
    share = _agreed(store, group_rank, group_world_size, spec)
    return [
        Worker(
            local_rank,
            share.first_rank + local_rank,
            share.first_role_rank + local_rank,
            share.world_size,
            share.role_world_size,
        )
        for local_rank in range(spec.local_world_size)
    ]


def _agreed(store: Any, group_rank: int, group_world_size: int, spec: WorkerSpec) -> RankShare:
    size = spec.local_world_size
    if os.environ.get(ALL_ALIKE) == "1":
        first, all_of_them = group_rank * size, group_world_size * size
        return RankShare(first, all_of_them, first, all_of_them)
    own = RoleInstanceInfo(spec.role, group_rank, size)
    store.set(f"{ROLE_INFO}{group_rank}", own.serialize())
    if group_rank != 0:
        return RankShare(*json.loads(store.get(f"{ASSIGNED_RANKS}{group_rank}")))
    told = values_of(store, [f"{ROLE_INFO}{peer}" for peer in range(group_world_size)])
    shares = _divided([RoleInstanceInfo.deserialize(one) for one in told])
    keys = [f"{ASSIGNED_RANKS}{peer}" for peer in range(group_world_size)]
    _set_all(store, keys, [json.dumps(share).encode() for share in shares])
    return shares[0]


def _divided(told: Sequence[RoleInstanceInfo]) -> list[RankShare]:
    members = [
        NodeInfo(node=str(place), host="", slots=one.local_world_size, role=one.role)
        for place, one in enumerate(told)
    ]
    assigned = ranks.assign(members, round=0, restart_count=0, master=NOWHERE).values()
    return [
        RankShare(
            one.workers[0].rank,
            one.world_size,
            one.workers[0].role_rank,
            one.role_world_size,
        )
        for one in assigned
    ]


def _set_all(store: Any, keys: Sequence[str], values: Sequence[bytes]) -> None:
    if hasattr(store, "multi_set"):
        store.multi_set(keys, values)
        return
    for key, value in zip(keys, values, strict=True):
        store.set(key, value)


PASSED_ON = (
    "TORCH_NCCL_ASYNC_ERROR_HANDLING", "OMP_NUM_THREADS", *environment.DEVICE_LISTS,
)  # fmt: skip
"""Variables that workers get as the agent has them, even if these change while they run."""


def variables_of(
    group: WorkerGroup, restart_count: int, round_number: int | None
) -> dict[int, dict[str, str]]:
    """The variables of each worker, by local rank; ValueError for one that has no device."""
    config = _config(group)
    passed_on = {name: os.environ[name] for name in PASSED_ON if name in os.environ}
    common = environment.shared(config, passed_on)
    assignment = _assignment(group, restart_count, round_number or 0)
    variables = {}
    for placed in assignment.workers:
        own = environment.of_worker(config, common, assignment, placed)
        if round_number is None:
            del own["HOLDFAST_ROUND"]
        if config.virtual_local_rank and not own["CUDA_VISIBLE_DEVICES"]:
            name, visible = environment.device_list(passed_on)
            raise ValueError(
                f"there is no device for local rank {placed.local_rank}: {name} is {visible}"
            )
        variables[placed.local_rank] = own
    return variables


def _config(group: WorkerGroup) -> JobConfig:
    spec = group.spec
    return JobConfig(
        run_id=spec.rdzv_handler.get_run_id(),
        program=Program(kind="command", target=spec.get_entrypoint_name()),
        slots=1,  # with more, threads would be limited; here that is for the caller to decide
        role=spec.role,
        restarts=RestartPolicy(max_restarts=spec.max_restarts),
        virtual_local_rank=spec.virtual_local_rank,
    )


def _assignment(group: WorkerGroup, restart_count: int, round_number: int) -> Assignment:
    serves_store = bool(getattr(group.spec.rdzv_handler, "use_agent_store", False))
    any_worker = group.workers[0]
    return Assignment(
        round=round_number,
        restart_count=restart_count,
        group_rank=group.group_rank or 0,
        group_size=group.group_world_size or 1,
        world_size=any_worker.world_size,
        role_world_size=any_worker.role_world_size,
        workers=tuple(
            Ranks(worker.local_rank, worker.global_rank, worker.role_rank)
            for worker in group.workers
        ),
        master=Endpoint(group.master_addr or "", group.master_port or 0, serves_store),
    )
