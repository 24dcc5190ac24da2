"""Cases 6 to 8, 10 and 13: workers that fail, and what becomes of them and of the others."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable

import pytest

from holdfast.elastic.agent.server.api import WorkerState
from holdfast.elastic.multiprocessing.errors import ChildFailedError
from holdfast.elastic.rendezvous import RendezvousClosedError

from . import entrypoints
from .agents import FAILED, Agent, note_every_close, note_the_barrier
from .conftest import ALONE, Job


@ALONE
def test_case_06_the_first_failure_of_all_is_in_the_error_file_of_the_agent(job: Job) -> None:
    own_file = job.path("error.json")
    agent = job.start(
        entrypoints.fails,
        is_launched=True,
        environment={"TORCHELASTIC_ERROR_FILE": str(own_file)},
    )
    assert agent.wait() == FAILED
    assert agent.ending.raised is ChildFailedError
    assert agent.ending.first_failure is not None
    rank, failure = agent.ending.first_failure
    assert rank in (0, 1)
    assert failure.local_rank == rank
    assert failure.exitcode == 1
    assert failure.message["message"] == f"RuntimeError: rank {rank} cannot go on"
    own = json.loads(own_file.read_text())["message"]
    assert own["message"] == failure.message["message"]
    assert own["extraInfo"] == failure.message["extraInfo"]
    assert int(own["extraInfo"]["timestamp"]) == failure.timestamp
    assert own["errorCode"] == 1


def test_case_07_half_of_the_ranks_fail_until_no_restart_is_left(job: Job) -> None:
    agent = job.start(entrypoints.half_fail, workers=4, max_restarts=2)
    assert agent.wait() == FAILED
    ending = agent.ending
    assert ending.result is not None
    assert ending.result.is_failed()
    assert ending.result.failures
    assert set(ending.result.failures) <= {0, 2}
    assert not ending.result.return_values
    assert ending.remaining_restarts == 0
    assert ending.state == WorkerState.FAILED
    assert ending.run_time_s is not None
    assert ending.run_time_s > 0
    attempts = {path.name for path in agent.folder.glob("logs/*/attempt_*")}
    assert attempts == {"attempt_0", "attempt_1", "attempt_2"}


@ALONE
def test_case_08_a_rank_that_kills_itself_once_has_all_ranks_restarted(job: Job) -> None:
    agent = job.start(entrypoints.rank_1_kills_itself_once, max_restarts=2)
    assert agent.values() == {0: (0, 2), 1: (1, 2)}
    assert agent.ending.remaining_restarts == 1


def test_case_08_a_rank_that_kills_itself_once_has_the_ranks_of_all_agents_restarted(
    job: Job,
) -> None:
    agents = [
        job.start(entrypoints.rank_1_kills_itself_once, workers=1, nodes=(2, 2), max_restarts=2)
        for _ in range(2)
    ]
    values = {rank: value for agent in agents for rank, value in agent.values().items()}
    assert values == {0: (0, 2), 1: (1, 2)}
    left = [agent.ending.remaining_restarts for agent in agents]
    assert set(left) == {1, 2}  # What another one caused is free.


@pytest.mark.parametrize("is_launched", [True, False], ids=["launched", "by_hand"])
@pytest.mark.parametrize("failing", [0, 1], ids=["the_first_fails", "the_second_fails"])
def test_case_10_a_failure_for_good_ends_the_agent_whose_workers_sleep(
    job: Job, failing: int, is_launched: bool
) -> None:
    settings = {
        "nodes": (2, 2),
        "workers": 1,
        "is_launched": is_launched,
        "before": note_the_barrier,
    }
    programs = [entrypoints.sleeps, entrypoints.fails_beside_one_who_sleeps]
    agents: list[Agent] = []
    for place in range(2):
        agents.append(job.start(programs[place == failing], str(job.folder), **settings))
        agents[0].until_it_leads()
    assert [agent.wait() for agent in agents] == [FAILED, FAILED], job.outputs()
    if is_launched:
        assert agents[failing].ending.raised is ChildFailedError
    else:
        assert agents[failing].ending.state == WorkerState.FAILED
    assert agents[1 - failing].ending.raised is RendezvousClosedError
    assert [path.read_text() for path in job.folder.glob("stopped.?")] == [f"{signal.SIGTERM:d}"]
    assert not list(job.folder.glob("slept.?"))
    assert not list(job.folder.glob("*/in_barrier"))
    assert not job.processes()


@pytest.mark.parametrize("failing", [0, 1], ids=["the_first_fails", "the_second_fails"])
def test_case_10_who_is_in_the_exit_barrier_does_not_wait_for_one_who_failed_for_good(
    job: Job, failing: int
) -> None:
    in_barrier = job.path(f"agent{1 - failing}") / "in_barrier"
    settings = {"nodes": (2, 2), "workers": 1, "before": note_the_barrier}
    settings["settings"] = {"exit_barrier_timeout": entrypoints.LONG_S}
    agents: list[Agent] = []
    for place in range(2):
        if place == failing:
            agents.append(job.start(entrypoints.fails_when, str(in_barrier), **settings))
        else:
            agents.append(job.start(entrypoints.nothing, **settings))
        agents[0].until_it_leads()
    assert agents[failing].wait() == FAILED
    assert agents[1 - failing].seen() == [None]
    assert not list(job.folder.glob("*/met_in_barrier"))


@ALONE
@pytest.mark.parametrize(
    ("program", "max_restarts", "status"),
    [
        (entrypoints.nothing, 0, 0),
        (entrypoints.fails_once, 1, 0),
        (entrypoints.fails, 1, FAILED),
    ],
    ids=["success", "success_after_a_restart", "failure"],
)
def test_case_13_processes_are_closed_exactly_once(
    job: Job, program: Callable[[], None], max_restarts: int, status: int
) -> None:
    agent = job.start(program, max_restarts=max_restarts, before=note_every_close)
    assert agent.wait() == status
    told = (agent.folder / "closes").read_text().split()
    assert told == ["started", "closed"] * (max_restarts + 1)
