"""Cases 4, 5 and 12: agents that share ranks, and workers that talk to each other."""

from __future__ import annotations

from collections import Counter

import pytest

from holdfast.elastic.multiprocessing import Std

from . import entrypoints
from .agents import Agent
from .conftest import Job

ONE_THREAD = {"OMP_NUM_THREADS": "1"}
TEMPLATE = "[${role_name}-${local_rank}-${rank} ${pid}]: "


@pytest.mark.torch
def test_case_04_an_all_reduce_of_one_agent_with_two_workers(job: Job) -> None:
    agent = job.start(entrypoints.sum_of_ranks, environment=ONE_THREAD)
    assert agent.values() == {0: 1, 1: 1}


@pytest.mark.torch
def test_case_04_an_all_reduce_of_two_agents_with_four_workers_each_and_their_output(
    job: Job,
) -> None:
    agents = [
        job.start(
            entrypoints.sum_of_ranks,
            "the sum is",
            workers=4,
            nodes=(2, 2),
            tee=Std.ALL,
            settings={"log_line_prefix_template": TEMPLATE},
            environment=ONE_THREAD,
        )
        for _ in range(2)
    ]
    values = {rank: value for agent in agents for rank, value in agent.values().items()}
    assert values == dict.fromkeys(range(8), 28)
    for agent in agents:
        lines = [line for line in agent.output.splitlines() if "the sum is" in line]
        pids = [line.rpartition(" from ")[2] for line in sorted(lines)]
        assert sorted(lines) == [
            f"[trainer-{local_rank}-{rank} {pid}]: the sum is 28 from {pid}"
            for (local_rank, rank), pid in zip(enumerate(agent.values()), pids, strict=True)
        ]
        kept = [path.read_text() for path in agent.folder.glob("logs/*/attempt_0/*/stdout.log")]
        assert len(kept) == 4
        assert all(text.startswith("the sum is 28 from ") for text in kept)


@pytest.mark.torch
def test_case_04_an_all_reduce_of_agents_with_one_two_and_three_workers(job: Job) -> None:
    sizes = (1, 2, 3)
    agents = [
        job.start(entrypoints.sum_of_ranks, workers=size, nodes=(3, 3), environment=ONE_THREAD)
        for size in sizes
    ]
    assert [len(agent.values()) for agent in agents] == list(sizes)
    ranks = [rank for agent in agents for rank in agent.values()]
    assert sorted(ranks) == list(range(6))
    assert {value for agent in agents for value in agent.seen()} == {15}


@pytest.mark.parametrize(
    "roles",
    [
        [("master", 8)]
        + [("trainer", size) for size in (1, 2, 3, 4)]
        + [("ps", size) for size in (5, 2)],
        [("master", 1)] + [("trainer", 4)] * 4 + [("ps", 3)] * 2,
    ],
    ids=["of_many_sizes", "of_one_size_each"],
)
def test_case_05_ranks_in_roles(job: Job, roles: list[tuple[str, int]]) -> None:
    agents = [
        job.start(entrypoints.place, role=role, workers=size, nodes=(len(roles), len(roles)))
        for role, size in roles
    ]
    found = [place for agent in agents for place in agent.seen()]
    expected_sizes: Counter[str] = Counter()
    for role, size in roles:
        expected_sizes[role] += size
    world_size = expected_sizes.total()

    assert {place["WORLD_SIZE"] for place in found} == {world_size}
    for place in found:
        assert place["ROLE_WORLD_SIZE"] == expected_sizes[place["role"]]
    assert sorted(place["RANK"] for place in found) == list(range(world_size))
    for role, size in expected_sizes.items():
        role_ranks = [place["ROLE_RANK"] for place in found if place["role"] == role]
        assert sorted(role_ranks) == list(range(size))
    assert sorted({place["GROUP_RANK"] for place in found}) == list(range(len(roles)))
    for agent, (role, size) in zip(agents, roles, strict=True):
        expect_a_row(agent, role, size)


def expect_a_row(agent: Agent, role: str, size: int) -> None:
    """The agent's own ranks follow upon each other, and are those that its workers see."""
    places = list(agent.seen())
    assert [place["RANK"] for place in places] == list(agent.values())
    assert {place["role"] for place in places} == {role}
    for name in ("RANK", "ROLE_RANK"):
        first = places[0][name]
        assert [place[name] for place in places] == list(range(first, first + size))


@pytest.mark.torch
def test_case_12_the_master_calls_the_worker_of_another_agent(job: Job) -> None:
    settings = {"workers": 1, "nodes": (2, 2), "environment": ONE_THREAD}
    folder = str(job.folder)
    master = job.start(entrypoints.calls_the_worker, "hello", folder, role="master", **settings)
    worker = job.start(entrypoints.answers_the_master, folder, role="worker", **settings)
    assert master.seen() == ["hello"]
    assert worker.seen() == [None]
    assert sorted([*master.values(), *worker.values()]) == [0, 1]
