"""The assignment of ranks, agreed upon by agents through the store that they share.

Rules
1. Ranks are those of `core.policy.ranks.assign`, with the agents in the order of their group ranks:
   dense over the job and over each role, contiguous on each agent.
2. Every agent says what it has under `torchelastic/role_info/<group rank>`. The first one reads
   that of all and sets `torchelastic/assigned_ranks/<group rank>` for each: O(N) bytes through
   the first, O(1) through every other. Keys and values are PyTorch's, so that agents of both
   can be in one group.
3. Nothing is removed: a handler gives a store of its own to every rendezvous.
4. With `TORCH_ELASTIC_WORKER_IDENTICAL=1` all agents are alike by the word of the user, and
   nothing is exchanged.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from typing import Any, NamedTuple

from holdfast.core.policy import ranks
from holdfast.core.protocol.model import Endpoint, NodeInfo
from holdfast.elastic.agent.server.worker_group import Worker, WorkerSpec
from holdfast.elastic.utils.store import values_of

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


def workers_of(
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
