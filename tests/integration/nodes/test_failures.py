"""What dies while a job runs over several hosts, and who goes on.

A worker that fails costs a restart. A host that is lost costs none, although the workers of
the other hosts fail first, when their connections break: those jobs have no restart to
spend, and go on all the same.
"""

from __future__ import annotations

import pytest

from .conftest import MakeJob
from .nodes_job import PATIENT_CONF, NodesJob, kill_worker

pytestmark = pytest.mark.root

ELASTIC = ("--nnodes=2:3", PATIENT_CONF)
NO_RESTARTS = "--max-restarts=0"
STATUS_FAILED = 1


def test_a_killed_worker_costs_a_round_and_nobody_leaves(make_job: MakeJob) -> None:
    job = make_job(3)
    agents = job.start_all(*ELASTIC, "--max-restarts=2")
    number = job.until_stepping(world=3)
    members = job.hosts_of(number)
    for host in job.hosts[::2]:
        kill_worker(job.worker_on(host, number))
        number = job.until_stepping(world=3, after=number)
        assert job.hosts_of(number) == members
    job.finish(*agents)


def test_a_killed_agent_is_replaced_by_its_next_life(make_job: MakeJob) -> None:
    job = make_job(3)
    first, second, third = job.start_all(*ELASTIC, NO_RESTARTS)
    number = job.until_stepping(world=3)
    others = [name for name in job.hosts_of(number) if name != "host2"]
    second.kill()
    number = job.until_stepping(world=2, after=number)
    assert job.hosts_of(number) == others
    again = job.start(second.host, *ELASTIC, NO_RESTARTS)
    number = job.until_stepping(world=3, after=number)
    assert job.hosts_of(number) == [*others, "host2"], "those with state come first"
    job.finish(first, third, again)


@pytest.mark.thorough
def test_a_host_on_which_everything_is_killed_is_done_without(make_job: MakeJob) -> None:
    job = make_job(3)
    first, second, third = job.start_all(*ELASTIC, NO_RESTARTS)
    number = job.until_stepping(world=3)
    third.kill_all()
    number = job.until_stepping(world=2, after=number)
    assert set(job.hosts_of(number)) == {"host1", "host2"}
    job.finish(first, second)


@pytest.mark.thorough
def test_a_worker_and_another_host_may_be_lost_at_once(make_job: MakeJob) -> None:
    job = make_job(3)
    first, second, third = job.start_all(*ELASTIC, "--max-restarts=1")
    number = job.until_stepping(world=3)
    kill_worker(job.worker_on(second.host, number))
    third.kill_all()
    number = job.until_stepping(world=2, after=number)
    assert set(job.hosts_of(number)) == {"host1", "host2"}
    job.finish(first, second)


@pytest.mark.thorough
def test_two_hosts_may_be_lost_at_once(make_job: MakeJob) -> None:
    job = make_job(4)
    first, second, third, fourth = job.start_all("--nnodes=2:4", PATIENT_CONF, NO_RESTARTS)
    number = job.until_stepping(world=4)
    second.kill()
    fourth.kill_all()
    number = job.until_stepping(world=2, after=number)
    assert set(job.hosts_of(number)) == {"host1", "host3"}
    job.finish(first, third)


@pytest.mark.thorough(but=("False",))
@pytest.mark.parametrize("everything", [pytest.param(True, marks=pytest.mark.torch), False])
def test_a_host_may_be_lost_while_the_workers_find_each_other(
    make_job: MakeJob, everything: bool
) -> None:
    """The others wait in the store for the lost one, which has not connected to them yet."""
    job = make_job(3)
    job.say("hold.host2")
    first, second, third = job.start_all("--nnodes=2:3", PATIENT_CONF, NO_RESTARTS)
    job.until(lambda: _round_with(job, 3), "a round of three that has not formed its group")
    if everything:
        second.kill_all()
    else:
        second.kill()
    number = job.until_stepping(world=2, after=_round_with(job, 3))
    assert set(job.hosts_of(number)) == {"host1", "host3"}
    job.finish(first, third)


@pytest.mark.thorough
def test_a_host_may_be_lost_before_the_first_round(make_job: MakeJob) -> None:
    """Two are there and wait for a third; one of them goes before it comes."""
    job = make_job(3)
    words = ("--nnodes=3", PATIENT_CONF, NO_RESTARTS)
    first, second = (job.start(host, *words) for host in job.hosts[:2])
    job.until(lambda: "2 of" in first.stderr, "a line that says who is there")
    second.kill()
    third, again = (job.start(host, *words) for host in job.hosts[:0:-1])
    job.until_stepping(world=3)
    job.finish(first, third, again)


def test_a_failure_without_restarts_ends_every_node_with_the_same_cause(make_job: MakeJob) -> None:
    job = make_job(3)
    agents = job.start_all("--nnodes=3", PATIENT_CONF, NO_RESTARTS)
    job.until_stepping(world=3)
    job.say("fail.host2")
    assert [job.wait(agent) for agent in agents] == [STATUS_FAILED] * 3, job.record()
    job.check()
    causes = [agent.cause() for agent in agents]
    assert len(set(causes)) == 1, causes
    assert "host2" in causes[0]
    for agent in agents:
        assert "RuntimeError: told to fail on host2" in agent.stderr


@pytest.mark.thorough
def test_the_restarts_are_counted_for_the_whole_job(make_job: MakeJob) -> None:
    job = make_job(2)
    agents = job.start_all("--nnodes=2", PATIENT_CONF, "--max-restarts=1", "--restart-backoff=0")
    number = job.until_stepping(world=2)
    kill_worker(job.worker_on(job.hosts[0], number))
    number = job.until_stepping(world=2, after=number)
    kill_worker(job.worker_on(job.hosts[1], number))
    assert [job.wait(agent) for agent in agents] == [STATUS_FAILED] * 2, job.record()
    job.check()


def _round_with(job: NodesJob, world: int) -> int:
    """The newest round, if so many workers of it have started, else none."""
    rounds = job.story.rounds()
    newest = max(rounds, default=0)
    return newest if len(rounds.get(newest, [])) == world else 0
