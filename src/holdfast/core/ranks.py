"""Who is which rank.

Rules
1. Global ranks are dense (0 … world size − 1), and contiguous on each node.
2. Role ranks are dense within a role, in the same order.
3. The order of nodes is given: this module only counts along it.
4. Everything is computed once, in one place, before the round is announced.
"""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.core.model import Assignment, Endpoint, NodeInfo, Ranks


def assign(
    members: Sequence[NodeInfo], *, round: int, restart_count: int, master: Endpoint
) -> dict[str, Assignment]:
    """Give every node of a round its part of it, keyed by node."""
    world_size = sum(member.slots for member in members)
    role_sizes: dict[str, int] = {}
    for member in members:
        role_sizes[member.role] = role_sizes.get(member.role, 0) + member.slots
    next_rank = 0
    next_role_rank = dict.fromkeys(role_sizes, 0)
    assignments = {}
    for group_rank, member in enumerate(members):
        first_role_rank = next_role_rank[member.role]
        assignments[member.node] = Assignment(
            round=round,
            restart_count=restart_count,
            group_rank=group_rank,
            group_size=len(members),
            world_size=world_size,
            role_world_size=role_sizes[member.role],
            workers=tuple(
                Ranks(local_rank=local, rank=next_rank + local, role_rank=first_role_rank + local)
                for local in range(member.slots)
            ),
            master=master,
        )
        next_rank += member.slots
        next_role_rank[member.role] += member.slots
    return assignments
