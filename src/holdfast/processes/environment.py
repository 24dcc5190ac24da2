"""What a worker finds in its environment.

Three layers: what the agent itself has; what is the same for all workers of the job (a
zygote is started with these two); what only one worker of one round has.
"""

from __future__ import annotations

from collections.abc import Mapping

from holdfast.core.policy.config import JobConfig
from holdfast.core.protocol.model import Assignment, Ranks
from holdfast.processes.own_environment import SECRETS
from holdfast.worker.optimizer_steps import VARIABLE as OPTIMIZER_STEPS

PER_WORKER = (
    "RANK", "LOCAL_RANK", "GROUP_RANK", "ROLE_RANK",
    "WORLD_SIZE", "GROUP_WORLD_SIZE", "ROLE_WORLD_SIZE",
    "MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RESTART_COUNT", "TORCHELASTIC_ERROR_FILE",
    "TORCHELASTIC_USE_AGENT_STORE", "HOLDFAST_ROUND", "HOLDFAST_PAGE",
    "HOLDFAST_STACKS", OPTIMIZER_STEPS,
)  # fmt: skip
"""Variables that differ between workers or rounds: a module that reads one when it is
imported cannot be imported ahead."""

SIGNALS = "TORCHELASTIC_SIGNALS_TO_HANDLE"
SAME_IN_ALL = ("ROLE_NAME", "LOCAL_WORLD_SIZE", SIGNALS)
"""Variables that all workers of a node have alike, in every round."""

NOT_ALWAYS_SET = frozenset(
    {"TORCHELASTIC_ERROR_FILE", "HOLDFAST_PAGE", "HOLDFAST_STACKS", OPTIMIZER_STEPS}
)
"""Those of them that a worker may be without."""

OF_ONE_NODE = ("GROUP_RANK", "WORLD_SIZE", "GROUP_WORLD_SIZE", "ROLE_WORLD_SIZE")
"""Those of them that are the same in all workers and rounds, where there is only one node."""

DEVICE_LISTS = ("HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES")
"""What says which devices may be used. On AMD's both may be set, and the first one counts."""

NO_WARM = "HOLDFAST_NO_WARM"
"""Turns warm starts off, also where there is no command line."""
_NO = frozenset({"", "0", "false", "f", "no", "n", "off"})


def per_worker(config: JobConfig) -> tuple[str, ...]:
    """The variables that no module may have read before a worker has its own."""
    names = [*PER_WORKER, *(DEVICE_LISTS if config.virtual_local_rank else [])]
    known = OF_ONE_NODE if config.max_nodes == 1 else ()
    return tuple(name for name in names if name not in known)


def forbids_warm(variables: Mapping[str, str]) -> bool:
    return variables.get(NO_WARM, "").strip().lower() not in _NO


def without_secrets(inherited: Mapping[str, str]) -> dict[str, str]:
    """What the agent has in its environment, as far as workers may know it."""
    return {name: value for name, value in inherited.items() if name not in SECRETS}


def shared(config: JobConfig, inherited: Mapping[str, str]) -> dict[str, str]:
    """The environment as far as it is the same for every worker of every round."""
    known = without_secrets(inherited)
    not_theirs = {*PER_WORKER, *config.hidden_variables}
    environment = {name: value for name, value in known.items() if name not in not_theirs}
    environment["ROLE_NAME"] = config.role
    environment["LOCAL_WORLD_SIZE"] = str(config.slots)
    if config.max_nodes == 1:
        sizes = dict.fromkeys(("WORLD_SIZE", "ROLE_WORLD_SIZE"), str(config.slots))
        environment.update(sizes, GROUP_RANK="0", GROUP_WORLD_SIZE="1")
    environment["TORCHELASTIC_MAX_RESTARTS"] = str(config.restarts.max_restarts)
    environment["TORCHELASTIC_RUN_ID"] = config.run_id
    environment.setdefault("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1")
    if config.slots > 1:
        environment.setdefault("OMP_NUM_THREADS", "1")
    return environment


def of_worker(
    config: JobConfig, common: Mapping[str, str], assignment: Assignment, ranks: Ranks
) -> dict[str, str]:
    """The whole environment of one worker of one round, but for its error file."""
    environment = dict(common)
    environment.update(
        RANK=str(ranks.rank),
        LOCAL_RANK=str(ranks.local_rank),
        GROUP_RANK=str(assignment.group_rank),
        ROLE_RANK=str(ranks.role_rank),
        ROLE_NAME=config.role,
        WORLD_SIZE=str(assignment.world_size),
        LOCAL_WORLD_SIZE=str(len(assignment.workers)),
        GROUP_WORLD_SIZE=str(assignment.group_size),
        ROLE_WORLD_SIZE=str(assignment.role_world_size),
        MASTER_ADDR=assignment.master.address,
        MASTER_PORT=str(assignment.master.port),
        TORCHELASTIC_RESTART_COUNT=str(assignment.restart_count),
        TORCHELASTIC_USE_AGENT_STORE=str(assignment.master.serves_store),
        HOLDFAST_ROUND=str(assignment.round),
    )
    if config.oversight.hang == "restart" and config.program.kind != "command":
        environment[OPTIMIZER_STEPS] = "1"
    if config.virtual_local_rank:
        environment["LOCAL_RANK"] = "0"
        own = _own_device(common, ranks.local_rank)
        environment["CUDA_VISIBLE_DEVICES"] = own
        if common.get("HIP_VISIBLE_DEVICES"):
            environment["HIP_VISIBLE_DEVICES"] = own
    return environment


def device_list(variables: Mapping[str, str]) -> tuple[str, str | None]:
    """The variable that says which devices there are, and its value; None where all are."""
    name = next((name for name in DEVICE_LISTS if variables.get(name)), "CUDA_VISIBLE_DEVICES")
    return name, variables.get(name)


def _own_device(common: Mapping[str, str], local_rank: int) -> str:
    """The one device that a worker with a virtual local rank sees: of those that we see."""
    _, visible = device_list(common)
    if visible is None:
        return str(local_rank)
    devices = [entry.strip() for entry in visible.split(",")]
    return devices[local_rank] if local_rank < len(devices) else ""


def arguments(config: JobConfig, ranks: Ranks) -> list[str]:
    """The program's arguments, with `${local_rank}` filled in: the true one, never virtual."""
    own = str(ranks.local_rank)
    return [word.replace("${local_rank}", own) for word in config.program.arguments]
