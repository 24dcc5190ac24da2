"""Ranks: dense, unique, contiguous on each node, and right for each role."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.model import Assignment, Endpoint, NodeInfo
from holdfast.core.ranks import assign

MASTER = Endpoint("10.0.0.1", 29501)


def nodes(*sizes: tuple[str, int]) -> list[NodeInfo]:
    """One node for each (role, slots), named after its place."""
    return [
        NodeInfo(node=f"n{place}", host=f"host{place}", slots=slots, role=role)
        for place, (role, slots) in enumerate(sizes)
    ]


def assigned(members: list[NodeInfo]) -> dict[str, Assignment]:
    return assign(members, round=7, restart_count=3, master=MASTER)


def seats(members: list[NodeInfo]) -> list[tuple[str, str, int]]:
    """The oracle: every worker of the job, written down one by one in order."""
    return [(one.node, one.role, local) for one in members for local in range(one.slots)]


any_nodes = st.lists(
    st.tuples(st.sampled_from(["default", "master", "trainer", "ps"]), st.integers(1, 9)),
    min_size=1,
    max_size=12,
).map(lambda sizes: nodes(*sizes))


@given(any_nodes)
def test_a_worker_s_rank_is_its_place_in_the_whole_list(members: list[NodeInfo]) -> None:
    found = assigned(members)
    given = [
        (node, ranks.local_rank, ranks.rank)
        for node, assignment in found.items()
        for ranks in assignment.workers
    ]
    expected = [(node, local, rank) for rank, (node, _, local) in enumerate(seats(members))]
    assert given == expected


@given(any_nodes)
def test_a_worker_s_role_rank_is_its_place_among_its_role(members: list[NodeInfo]) -> None:
    found = assigned(members)
    for role in {member.role for member in members}:
        alike = [(node, local) for node, other, local in seats(members) if other == role]
        role_ranks = [
            (member.node, ranks.local_rank, ranks.role_rank)
            for member in members
            if member.role == role
            for ranks in found[member.node].workers
        ]
        assert role_ranks == [(*who, place) for place, who in enumerate(alike)]
        sizes = {found[m.node].role_world_size for m in members if m.role == role}
        assert sizes == {len(alike)}


@given(any_nodes)
def test_all_nodes_are_told_the_same_about_the_whole(members: list[NodeInfo]) -> None:
    found = assigned(members)
    assert list(found) == [member.node for member in members]
    assert [one.group_rank for one in found.values()] == list(range(len(members)))
    for assignment in found.values():
        assert assignment.world_size == len(seats(members))
        assert assignment.group_size == len(members)
        assert (assignment.round, assignment.restart_count) == (7, 3)
        assert assignment.master == MASTER


@given(any_nodes)
def test_the_ranks_of_a_node_are_neighbours(members: list[NodeInfo]) -> None:
    for assignment in assigned(members).values():
        first = assignment.workers[0]
        for place, ranks in enumerate(assignment.workers):
            assert ranks.local_rank == place
            assert ranks.rank == first.rank + place
            assert ranks.role_rank == first.role_rank + place


ROLES = {
    "eight masters, four trainers, two parameter servers": (
        [("master", 8), *[("trainer", n) for n in (1, 2, 3, 4)], ("ps", 5), ("ps", 2)],
        25,
        {"master": 8, "trainer": 10, "ps": 7},
    ),
    "one master, four trainers of four, three parameter servers of two": (
        [("master", 1), *[("trainer", 4)] * 4, *[("ps", 2)] * 3],
        23,
        {"master": 1, "trainer": 16, "ps": 6},
    ),
}


@pytest.mark.parametrize(("sizes", "world_size", "role_sizes"), ROLES.values(), ids=ROLES)
def test_roles_have_sizes_and_ranks_of_their_own(
    sizes: list[tuple[str, int]], world_size: int, role_sizes: dict[str, int]
) -> None:
    members = nodes(*sizes)
    found = assigned(members)
    assert {one.world_size for one in found.values()} == {world_size}
    assert {m.role: found[m.node].role_world_size for m in members} == role_sizes
    ranks = [ranks.rank for one in found.values() for ranks in one.workers]
    assert sorted(ranks) == list(range(world_size))
    for role, size in role_sizes.items():
        within = [r.role_rank for m in members if m.role == role for r in found[m.node].workers]
        assert sorted(within) == list(range(size))


def test_roles_may_be_mixed_in_any_order() -> None:
    found = assigned(nodes(("a", 2), ("b", 1), ("a", 1)))
    last = found["n2"].workers[0]
    assert (last.rank, last.role_rank) == (3, 2)
    assert found["n1"].workers[0].role_rank == 0
