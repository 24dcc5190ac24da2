"""Hosts that come, stand by, leave and finish, none of which costs a restart."""

from __future__ import annotations

import signal

import pytest

from .conftest import MakeJob
from .nodes_job import PATIENT_CONF, PORT

pytestmark = pytest.mark.root

NO_RESTARTS = "--max-restarts=0"
ELASTIC = ("--nnodes=2:3", PATIENT_CONF, NO_RESTARTS)


def test_a_host_that_joins_later_is_taken_in(make_job: MakeJob) -> None:
    job = make_job(3)
    first, second = (job.start(host, *ELASTIC) for host in job.hosts[:2])
    number = job.until_stepping(world=2)
    members = job.hosts_of(number)
    third = job.start(job.hosts[2], *ELASTIC)
    number = job.until_stepping(world=3, after=number)
    assert job.hosts_of(number) == [*members, "host3"], "those with state come first"
    job.finish(first, second, third)


def test_a_spare_stands_by_and_takes_over(make_job: MakeJob) -> None:
    job = make_job(3)
    words = ("--nnodes=2:2", PATIENT_CONF, NO_RESTARTS)
    first, second = (job.start(host, *words) for host in job.hosts[:2])
    number = job.until_stepping(world=2)
    spare = job.start(job.hosts[2], *words)
    job.until(lambda: "stand" in spare.stderr, "the spare to say that it stands by")
    assert job.newest() == number, "a spare ends no round"
    second.kill_all()
    number = job.until_stepping(world=2, after=number)
    assert job.hosts_of(number) == ["host1", "host3"]
    job.finish(first, spare)


@pytest.mark.thorough
def test_a_spare_that_was_not_needed_ends_well(make_job: MakeJob) -> None:
    job = make_job(3)
    agents = job.start_all("--nnodes=2:2", PATIENT_CONF, NO_RESTARTS)
    job.until_stepping(world=2)
    job.until(lambda: any("stand" in a.stderr for a in agents), "one to say that it stands by")
    job.finish(*agents)


@pytest.mark.thorough
def test_an_agent_that_gets_sigterm_leaves_and_the_others_go_on(make_job: MakeJob) -> None:
    job = make_job(3)
    first, second, third = job.start_all(*ELASTIC)
    number = job.until_stepping(world=3)
    others = [name for name in job.hosts_of(number) if name != "host2"]
    second.send(signal.SIGTERM)
    assert job.wait(second) == 128 + signal.SIGTERM
    number = job.until_stepping(world=2, after=number)
    assert job.hosts_of(number) == others
    job.finish(first, third)


@pytest.mark.thorough
def test_the_host_of_the_endpoint_may_be_the_last_to_start(make_job: MakeJob) -> None:
    job = make_job(3)
    words = ("--nnodes=3", PATIENT_CONF, NO_RESTARTS)
    early = [job.start(host, *words) for host in job.hosts[1:]]
    awaits = "a line that says who is awaited"
    job.until(lambda: all(job.endpoint in agent.stderr for agent in early), awaits)
    last = job.start(job.hosts[0], *words)
    job.until_stepping(world=3)
    job.finish(*early, last)


@pytest.mark.thorough
def test_hosts_may_have_different_numbers_of_workers(make_job: MakeJob) -> None:
    job = make_job(3)
    words = ("--nnodes=3", PATIENT_CONF, NO_RESTARTS)
    agents = [
        job.start(host, *words, f"--nproc-per-node={count}")
        for count, host in enumerate(job.hosts, start=1)
    ]
    number = job.until_stepping(world=6)
    hosts = [worker.host for worker in job.workers(number)]
    assert {name: hosts.count(name) for name in hosts} == {"host1": 1, "host2": 2, "host3": 3}
    job.finish(*agents)


@pytest.mark.thorough
@pytest.mark.torch
def test_hosts_may_meet_over_ipv6(make_job: MakeJob) -> None:
    job = make_job(2)
    job.endpoint = f"[{job.hosts[0].address6}]:{PORT}"
    agents = job.start_all("--nnodes=2", PATIENT_CONF, NO_RESTARTS)
    job.until_stepping(world=2)
    job.finish(*agents)


@pytest.mark.thorough
def test_hosts_that_finish_at_different_times_all_succeed(make_job: MakeJob) -> None:
    job = make_job(3)
    agents = job.start_all("--nnodes=3", PATIENT_CONF, NO_RESTARTS)
    number = job.until_stepping(world=3)
    for name in ("linger.host2", "linger.host3"):
        job.say(name)
    job.say("finish")
    first, second, third = job.hosts
    job.until_gone([job.worker_on(first, number)])
    job.unsay("linger.host2")
    job.until_gone([job.worker_on(second, number)])
    assert job.worker_on(third, number).pid in third.processes()
    job.unsay("linger.host3")
    job.finish(*agents)
    assert job.newest() == number


def test_the_loss_of_a_host_that_has_finished_is_no_loss(make_job: MakeJob) -> None:
    job = make_job(3)
    first, second, third = job.start_all("--nnodes=3", PATIENT_CONF, NO_RESTARTS)
    number = job.until_stepping(world=3)
    job.say("linger.host2")
    job.say("finish")
    job.until_gone([job.worker_on(third.host, number)])
    job.until(lambda: job.has_noted(first.host, "WorkersSucceeded", "host3"), "that it is known")
    third.kill()
    job.unsay("linger.host2")
    job.finish(first, second)
    assert job.newest() == number
