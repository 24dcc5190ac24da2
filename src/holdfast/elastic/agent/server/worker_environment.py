"""The variables that the workers of an agent get, over what they inherit from it.

They are those of `processes.environment`, which every worker of Holdfast gets. `HOLDFAST_ROUND` is
among them where the rendezvous tells the number of the round; a handler of somebody else does
not have to have one.
"""

from __future__ import annotations

import os

from holdfast.core.policy.config import JobConfig, Program, RestartPolicy
from holdfast.core.protocol.model import Assignment, Endpoint, Ranks
from holdfast.elastic.agent.server.worker_group import WorkerGroup
from holdfast.processes import environment

PASSED_ON = (
    "TORCH_NCCL_ASYNC_ERROR_HANDLING", "OMP_NUM_THREADS", *environment.DEVICE_LISTS,
)  # fmt: skip
"""Variables that workers get as the agent has them, even if these change while they run."""


def of_workers(
    group: WorkerGroup, restart_count: int, round_number: int | None
) -> dict[int, dict[str, str]]:
    """The variables of each worker, by local rank; ValueError for one that has no device."""
    config = _config(group)
    passed_on = {name: os.environ[name] for name in PASSED_ON if name in os.environ}
    common = environment.shared(config, passed_on)
    assignment = _assignment(group, restart_count, round_number or 0)
    variables = {}
    for ranks in assignment.workers:
        own = environment.of_worker(config, common, assignment, ranks)
        if round_number is None:
            del own["HOLDFAST_ROUND"]
        if config.virtual_local_rank and not own["CUDA_VISIBLE_DEVICES"]:
            name, visible = environment.device_list(passed_on)
            raise ValueError(
                f"there is no device for local rank {ranks.local_rank}: {name} is {visible}"
            )
        variables[ranks.local_rank] = own
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
