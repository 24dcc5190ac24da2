"""Cases 9, 11 and 14: agents that are killed, that come back, that leave, and that finish."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast.elastic.multiprocessing import SignalException

from ...waiting import until
from . import entrypoints
from .agents import DEADLINE_S, Agent, break_the_barrier, note_the_barrier
from .conftest import LOSSES, Job


def start_two(job: Job, entrypoint: Callable[..., object], **plan: object) -> list[Agent]:
    """Two agents, the first of which carries the coordinator, when their workers run."""
    agents: list[Agent] = []
    for _ in range(2):
        agents.append(job.start(entrypoint, str(job.folder), workers=1, **plan))
        agents[0].until_it_leads()
    job.until_round(world_size=2)
    return agents


def pids(job: Job, number: int) -> list[int]:
    """Of the workers of a round."""
    return [int(path.read_text()) for path in job.folder.glob(f"runs.{number}.*")]


@pytest.mark.parametrize(("backend", "lost"), LOSSES, indirect=["backend"])
def test_case_09_an_agent_that_is_killed_and_started_again_is_back_in_the_group(
    job: Job, lost: int
) -> None:
    settings = {"nodes": (2, 2), "max_restarts": 2}
    agents = start_two(job, entrypoints.until_the_end, **settings)
    first_round = job.newest_round(world_size=2)
    assert job.processes().keys() >= {*pids(job, first_round)}
    agents[lost].send(signal.SIGKILL)
    assert agents[lost].wait() == -signal.SIGKILL
    again = job.start(entrypoints.until_the_end, str(job.folder), workers=1, **settings)
    job.until_round(world_size=2, after=first_round)
    until(lambda: not job.processes().keys() & {*pids(job, first_round)})
    job.path("end").touch()
    values = {**agents[1 - lost].values(), **again.values()}
    assert values == {0: 2, 1: 2}


@pytest.mark.parametrize(("backend", "lost"), LOSSES, indirect=["backend"])
def test_case_09_an_agent_whose_peer_is_killed_for_good_ends_well_on_its_own(
    job: Job, lost: int
) -> None:
    agents = start_two(job, entrypoints.until_alone, nodes=(1, 2), max_restarts=2)
    agents[lost].send(signal.SIGKILL)
    assert agents[lost].wait() == -signal.SIGKILL
    assert agents[1 - lost].values() == {0: 1}


@pytest.mark.parametrize("quick", [0, 1], ids=["the_first_is_quick", "the_second_is_quick"])
def test_case_11_who_finishes_before_the_other_waits_for_it_in_the_barrier(
    job: Job, quick: int
) -> None:
    agents = finish_apart(job, quick, "in_barrier", DEADLINE_S)
    assert [len(agent.values()) for agent in agents] == [1, 1]
    for agent in agents:
        assert (agent.folder / "met_in_barrier").read_text() == "agent0 agent1"


@pytest.mark.parametrize("quick", [0, 1], ids=["the_first_is_quick", "the_second_is_quick"])
def test_case_11_who_does_not_wait_in_the_barrier_succeeds_all_the_same(
    job: Job, quick: int
) -> None:
    # The slow one goes on until the quick one has come back from its run.
    agents = finish_apart(job, quick, "ran", 0)
    assert [len(agent.values()) for agent in agents] == [1, 1]
    assert (agents[quick].folder / "in_barrier").read_text() == "0"
    assert not (agents[quick].folder / "met_in_barrier").exists()


def finish_apart(job: Job, quick: int, told: str, timeout_s: float) -> list[Agent]:
    """Two agents, one of which has work to do until the quick one has told something."""
    settings = {"nodes": (2, 2), "workers": 1, "before": note_the_barrier}
    agents: list[Agent] = []
    for place in range(2):
        path = job.folder if place == quick else job.path(f"agent{quick}") / told
        agents.append(
            job.start(
                entrypoints.returns_when,
                str(path),
                settings={"exit_barrier_timeout": timeout_s},
                **settings,
            )
        )
        agents[0].until_it_leads()
    return agents


def test_case_11_a_barrier_that_raises_does_not_fail_the_job(job: Job) -> None:
    agents = [
        job.start(entrypoints.echo, "foo", workers=1, nodes=(2, 2), before=break_the_barrier)
        for _ in range(2)
    ]
    assert [agent.seen() for agent in agents] == [["foo"], ["foo"]]
    assert all((agent.folder / "in_barrier").exists() for agent in agents)


@pytest.mark.parametrize("is_launched", [True, False], ids=["launched", "by_hand"])
@pytest.mark.parametrize(("backend", "lost"), LOSSES, indirect=["backend"])
def test_case_14_an_agent_that_is_sent_a_signal_ends_with_it_and_the_others_go_on(
    job: Job, lost: int, is_launched: bool
) -> None:
    agents = start_two(job, entrypoints.takes_leave, nodes=(1, 2), is_launched=is_launched)
    rank = rank_on(job, agents[lost])
    agents[lost].send(signal.SIGTERM)
    assert job.until_there_is(f"got.{rank}") == f"{signal.SIGTERM:d}"
    job.path("let_go").touch()
    assert agents[lost].wait() == 128 + signal.SIGTERM
    assert agents[lost].ending.raised is SignalException
    assert job.path(f"left.{rank}").exists()
    assert agents[1 - lost].values() == {0: 1}


def rank_on(job: Job, agent: Agent) -> str:
    """The rank of its worker. That of the other is told to stop, too, when the round ends."""
    for path in job.folder.glob("runs.*"):
        if Path(f"/proc/{path.read_text()}/cwd").samefile(agent.folder):
            return path.suffix[1:]
    raise AssertionError(f"{agent.folder.name} has no worker: {job.outputs()}")
