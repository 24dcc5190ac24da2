"""Ranks: who sits, in what order, and who is which rank.

Dense, unique, contiguous on each node, right for each role; and whoever was there before
stays where it was.
"""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.policy.ranks import assign, by_rank, natural, order, seat_holders, select
from holdfast.core.protocol.model import Assignment, Endpoint, NodeInfo

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


# --- the order of nodes -------------------------------------------------------------------


def names(members: tuple[NodeInfo, ...]) -> list[str]:
    return [member.node for member in members]


def node(name: str, hint: int | None = None, *, host: str = "", topology: str = "") -> NodeInfo:
    return NodeInfo(name, host or name, 1, rank_hint=hint, topology=topology)


def ordered(*arrived: NodeInfo, previous: tuple[str, ...] = ()) -> list[str]:
    return names(order(arrived, previous))


def test_at_first_hosts_are_in_natural_order() -> None:
    assert ordered(node("n10"), node("n9"), node("n2")) == ["n2", "n9", "n10"]


def test_topology_goes_before_the_host_name() -> None:
    nodes = [node("a", topology="rack10"), node("b", topology="rack2"), node("c", topology="rack2")]
    assert ordered(*nodes) == ["b", "c", "a"]
    assert ordered(node("0"), *nodes) == ["b", "c", "a", "0"]


def test_agents_on_one_host_are_in_order_of_arrival() -> None:
    assert ordered(node("y", host="h"), node("x", host="h")) == ["y", "x"]


HINTS = {
    "every node has one": ([("a", 2), ("b", 0), ("c", 1)], "bca"),
    "nobody has one": ([("b", None), ("a", None)], "ab"),
    "the others fill up": ([("a", None), ("b", 1), ("c", None), ("d", 3)], "abcd"),
    "a hint is a place": ([("z", 0), ("a", None), ("b", None)], "zab"),
    "the last place": ([("a", 2), ("b", None), ("c", None)], "bca"),
    "two with one hint": ([("x", 0), ("a", 0), ("b", None)], "xab"),
    "two with one hint at the end": ([("x", 2), ("a", 2), ("b", None)], "bxa"),
    "beyond the end": ([("a", 7), ("b", None), ("c", 9)], "bac"),
    "beyond the end and within": ([("a", 7), ("b", 1)], "ba"),
}


@pytest.mark.parametrize(("hints", "expected"), HINTS.values(), ids=HINTS)
def test_a_hint_is_honoured_where_it_can_be(
    hints: list[tuple[str, int | None]], expected: str
) -> None:
    assert ordered(*[node(name, hint) for name, hint in hints]) == list(expected)


def test_survivors_keep_their_order_and_newcomers_come_after() -> None:
    arrived = [node("a", 0), node("n10"), node("c"), node("n9"), node("b"), node("d", 5)]
    assert ordered(*arrived, previous=("c", "gone", "b")) == ["c", "b", "a", "d", "n9", "n10"]


@st.composite
def infos(draw: st.DrawFn, prefix: str = "n") -> list[NodeInfo]:
    """Any nodes in any order of arrival, with names that sort against it."""
    count = draw(st.integers(0, 9))
    each = st.tuples(
        st.sampled_from(["h1", "h2", "h10"]),
        st.sampled_from(["trainer", "ps", "master"]),
        st.none() | st.integers(0, 12),
        st.sampled_from(["", "r1", "r10", "r2"]),
    )
    described = draw(st.lists(each, min_size=count, max_size=count))
    found = [
        NodeInfo(f"{prefix}{place}", host, 1, role, hint, topology=topology)
        for place, (host, role, hint, topology) in enumerate(described)
    ]
    return draw(st.permutations(found))


@given(infos())
def test_the_order_has_every_node_once(arrived: list[NodeInfo]) -> None:
    assert sorted(names(order(arrived))) == sorted(member.node for member in arrived)


@given(infos())
def test_a_hint_that_no_other_has_is_the_place_where_all_hints_are_places(
    arrived: list[NodeInfo],
) -> None:
    hints = Counter(member.rank_hint for member in arrived if member.rank_hint is not None)
    if any(count > 1 or hint >= len(arrived) for hint, count in hints.items()):
        return
    for place, member in enumerate(order(arrived)):
        assert member.rank_hint in (None, place)


@given(infos())
def test_hinted_nodes_are_in_the_order_of_their_hints_and_then_of_arrival(
    arrived: list[NodeInfo],
) -> None:
    hinted = [member for member in arrived if member.rank_hint is not None]
    found = [member for member in order(arrived) if member.rank_hint is not None]
    assert found == sorted(hinted, key=lambda member: member.rank_hint or 0)


@given(infos(), infos("m"), st.randoms())
def test_who_was_there_before_stays_before(
    former: list[NodeInfo], newcomers: list[NodeInfo], chance: Random
) -> None:
    previous = [member.node for member in former]
    survivors = former[::2]
    arrived = survivors + newcomers
    chance.shuffle(arrived)
    found = names(order(arrived, previous))
    if previous:
        assert found[: len(survivors)] == [member.node for member in survivors]
    assert sorted(found) == sorted(member.node for member in arrived)


@given(st.integers(0, 10**30), st.integers(0, 10**30))
def test_numbers_in_names_count_as_numbers(one: int, other: int) -> None:
    assert (natural(f"n{one}") < natural(f"n{other}")) == (one < other)
    assert (natural(f"n{one}-x") < natural(f"n{other}-x")) == (one < other)


@given(st.text(max_size=9), st.text(max_size=9))
def test_only_equal_names_are_equal(one: str, other: str) -> None:
    assert (natural(one) == natural(other)) == (one == other)
    assert (natural(one) < natural(other)) or (natural(other) <= natural(one))


def test_leading_zeros_do_not_count_but_tell_names_apart() -> None:
    assert natural("n002") < natural("n10") < natural("n011")
    assert natural("n02") != natural("n2")


def test_a_name_of_very_many_digits_is_a_name() -> None:
    assert natural("9" * 5000) > natural("1" * 5000)


# --- who sits -----------------------------------------------------------------------------


def team(*described: str) -> list[NodeInfo]:
    """Nodes named as `role:name`."""
    parts = [one.partition(":") for one in described]
    return [NodeInfo(name, name, 1, role) for role, _, name in parts]


def test_at_first_those_who_arrived_first_sit() -> None:
    assert names(select(team("t:c", "p:a", "t:b"), (), 2)) == ["c", "a"]


def test_a_former_member_sits_before_a_newcomer_that_arrived_earlier() -> None:
    assert names(select(team("t:new", "t:old"), team("t:old"), 1)) == ["old"]


def test_a_spare_takes_the_seat_of_its_own_role_only() -> None:
    former = team("t:a", "t:b", "p:c")
    assert names(select(team("t:a", "t:b", "t:x"), former, 3)) == ["a", "b"]
    assert names(select(team("t:a", "t:b", "t:x", "p:y"), former, 3)) == ["a", "b", "y"]
    assert names(select(team("p:c", "t:b", "t:x", "p:y"), former, 3)) == ["b", "c", "x"]


def test_a_seat_that_nobody_ever_held_is_anybody_s() -> None:
    former = team("t:a", "p:b")
    assert names(select(team("t:a", "t:x", "t:y"), former, 3)) == ["a", "x"]
    assert names(select(team("t:a", "t:x", "p:y"), former, 3)) == ["a", "x", "y"]


def test_an_empty_seat_stays_with_its_role_through_later_rounds() -> None:
    holders = seat_holders((), team("t:a", "t:b", "p:c"), 3)
    formed = select(team("t:a", "t:b", "t:x"), holders, 3)
    holders = seat_holders(holders, formed, 3)
    assert names(holders) == ["a", "b", "c"]
    assert names(select(team("t:a", "t:b", "t:x"), holders, 3)) == ["a", "b"]
    formed = select(team("t:a", "t:b", "t:x", "p:y"), holders, 3)
    assert names(seat_holders(holders, formed, 3)) == ["a", "b", "y"]


@given(infos(), infos("m"), st.integers(1, 12), st.randoms())
def test_who_sits_and_who_stands_by(
    former: list[NodeInfo], newcomers: list[NodeInfo], maximum: int, chance: Random
) -> None:
    former = former[:maximum]
    back = former[::2]
    arrived = back + newcomers
    chance.shuffle(arrived)
    sitting = select(arrived, former, maximum)
    assert len(sitting) == len(set(names(sitting))) <= maximum
    assert {member.node for member in back} <= set(names(sitting))
    left = Counter(member.role for member in former if member not in back)
    taken = Counter(member.role for member in sitting if member not in back)
    beyond = sum((taken - left).values())
    never_held = maximum - len(former)
    assert beyond <= never_held
    standing = [member for member in arrived if member not in sitting]
    for member in standing:  # nobody stands by beside a seat that it could take
        assert taken[member.role] >= left[member.role]
        assert beyond == never_held
    order_of_arrival = [m for m in arrived if m not in back and m in sitting]
    assert [m for m in sitting if m not in back] == order_of_arrival
    for role in {member.role for member in newcomers}:  # the first to arrive is served first
        alike = [m in sitting for m in arrived if m.role == role and m not in back]
        assert alike == sorted(alike, reverse=True)


@given(
    st.lists(st.tuples(infos(), st.integers(0, 2**9)), min_size=1, max_size=5), st.integers(1, 9)
)
def test_seats_never_change_their_role_nor_grow_in_number(
    rounds: list[tuple[list[NodeInfo], int]], maximum: int
) -> None:
    holders: tuple[NodeInfo, ...] = ()
    for number, (arrivals, leaving) in enumerate(rounds):
        stay = [h for place, h in enumerate(holders) if not leaving >> place & 1]
        fresh = [NodeInfo(f"{number}-{m.node}", m.host, 1, m.role) for m in arrivals]
        sitting = select([*stay, *fresh], holders, maximum)
        before, holders = holders, seat_holders(holders, sitting, maximum)
        assert set(sitting) <= set(holders)
        assert len(holders) == len(set(names(holders))) <= maximum
        roles = Counter(member.role for member in holders)
        assert not Counter(member.role for member in before) - roles


# --- fixed ranks --------------------------------------------------------------------------


def test_a_fixed_rank_is_kept_whatever_the_order_of_arrival_and_before() -> None:
    arrived = [node("a", 2), node("b", 0), node("c", 1)]
    assert names(tuple(by_rank(arrived, ("a", "c"), 3).values())) == ["b", "c", "a"]


def test_who_has_no_rank_of_the_job_sits_nowhere() -> None:
    strangers = [node("a"), node("b", 2), node("c", -1)]
    assert by_rank([*strangers, node("d", 1)], (), 2) == {1: node("d", 1)}


def test_of_two_with_one_rank_state_decides_and_then_arrival() -> None:
    first, second, third = node("x", 0), node("a", 0), node("m", 0)
    assert by_rank([first, second, third], (), 1) == {0: first}
    assert by_rank([first, second, third], ("a",), 1) == {0: second}
    assert by_rank([first, second, third], ("gone", "m", "a"), 1) == {0: third}


@given(infos(), st.randoms(), st.integers(1, 12))
def test_every_claimed_rank_of_the_job_has_exactly_one_of_those_who_claim_it(
    arrived: list[NodeInfo], chance: Random, size: int
) -> None:
    previous = chance.sample([member.node for member in arrived], len(arrived) // 2)
    seated = by_rank(arrived, previous, size)
    claimed = {m.rank_hint for m in arrived if m.rank_hint is not None and m.rank_hint < size}
    assert list(seated) == sorted(claimed)
    for rank, member in seated.items():
        rivals = [m.node for m in arrived if m.rank_hint == rank]
        with_state = [name for name in previous if name in rivals]
        assert member.node == (with_state or rivals)[0]
