"""Cases 1 to 3: what comes back from workers, and what they are given."""

from __future__ import annotations

from pathlib import Path

import pytest

from ...free_ports import free_port
from . import entrypoints
from .conftest import ALONE, Job

ASYNC_ERRORS = "TORCH_NCCL_ASYNC_ERROR_HANDLING"
TIMER_FILE = "TORCHELASTIC_TIMER_FILE"
ENABLE_TIMER = "TORCHELASTIC_ENABLE_FILE_TIMER"
HEALTH_PORT = "TORCHELASTIC_HEALTH_CHECK_PORT"


@ALONE
@pytest.mark.torch
def test_case_01_a_tensor_comes_back_from_each_rank(job: Job) -> None:
    values = job.start(entrypoints.tensor).values()
    assert {rank: tuple(value.shape) for rank, value in values.items()} == {
        0: (100, 100),
        1: (100, 100),
    }


@ALONE
def test_case_01_a_function_that_returns_nothing_returns_none_for_each_rank(job: Job) -> None:
    assert job.start(entrypoints.nothing).values() == {0: None, 1: None}


def test_case_01_an_echo_comes_back_from_each_rank(job: Job) -> None:
    assert job.start(entrypoints.echo, "foo").values() == {0: "foo", 1: "foo"}


@ALONE
def test_case_02_a_master_that_is_named_reaches_the_workers_as_given(job: Job) -> None:
    master = {"master_addr": "there.example", "master_port": 12345}
    for value in job.start(entrypoints.environment, spec=master).seen():
        assert (value["MASTER_ADDR"], value["MASTER_PORT"]) == ("there.example", "12345")


def test_case_02_workers_have_all_variables(job: Job) -> None:
    agents = [
        job.start(entrypoints.environment, nodes=(2, 2), max_restarts=4, role=role, workers=size)
        for role, size in (("trainer", 2), ("ps", 1))
    ]
    seen = [value for agent in agents for value in agent.seen()]
    assert len({(value["MASTER_ADDR"], value["MASTER_PORT"]) for value in seen}) == 1
    groups = {(agent.pid, value["GROUP_RANK"]) for agent in agents for value in agent.seen()}
    assert sorted(group_rank for _, group_rank in groups) == ["0", "1"]
    for agent, role, size in zip(agents, ("trainer", "ps"), (2, 1), strict=True):
        first = min(agent.values())
        for rank, value in agent.values().items():
            local_rank = rank - first
            expected = {
                "RANK": f"{rank}",
                "LOCAL_RANK": f"{local_rank}",
                "ROLE_RANK": f"{local_rank}",
                "ROLE_NAME": role,
                "WORLD_SIZE": "3",
                "LOCAL_WORLD_SIZE": f"{size}",
                "GROUP_WORLD_SIZE": "2",
                "ROLE_WORLD_SIZE": f"{size}",
                "TORCHELASTIC_RESTART_COUNT": "0",
                "TORCHELASTIC_MAX_RESTARTS": "4",
                "TORCHELASTIC_RUN_ID": job.run_id,
                "TORCHELASTIC_USE_AGENT_STORE": "False",
                ASYNC_ERRORS: "1",
                "HOLDFAST_ROUND": "1",
            }
            assert {name: value.get(name) for name in expected} == expected
            assert value["MASTER_ADDR"]
            assert int(value["MASTER_PORT"]) > 0
            error_file = Path(value["TORCHELASTIC_ERROR_FILE"])
            assert error_file.parent.name == f"{local_rank}"
            assert error_file.is_relative_to(agent.folder)


@ALONE
def test_case_02_threads_and_errors_of_nccl_are_as_the_agent_has_them(job: Job) -> None:
    environment = {"OMP_NUM_THREADS": "7", ASYNC_ERRORS: "0"}
    for value in job.start(entrypoints.environment, environment=environment).seen():
        assert {name: value[name] for name in environment} == environment


@ALONE
def test_case_03_workers_see_where_the_watchdog_listens(job: Job) -> None:
    path = str(job.path("watchdog"))
    environment = {ENABLE_TIMER: "1", TIMER_FILE: path}
    seen = job.start(entrypoints.environment, environment=environment).seen()
    assert {value[TIMER_FILE] for value in seen} == {path}


@ALONE
def test_case_03_a_watchdog_without_a_path_makes_one(job: Job) -> None:
    agent = job.start(entrypoints.sees_a_pipe, TIMER_FILE, environment={ENABLE_TIMER: "1"})
    assert agent.values() == {0: True, 1: True}


@ALONE
def test_case_03_workers_see_the_health_port(job: Job) -> None:
    port = str(free_port())
    seen = job.start(entrypoints.environment, environment={HEALTH_PORT: port}).seen()
    assert {value[HEALTH_PORT] for value in seen} == {port}


@ALONE
def test_case_03_without_watchdog_and_health_workers_see_nothing_of_them(job: Job) -> None:
    for value in job.start(entrypoints.environment).seen():
        assert not {TIMER_FILE, ENABLE_TIMER, HEALTH_PORT} & value.keys()
