"""Hosts that say nothing for a while: paused agents, cut links, slow and lossy ones.

What was silent for less than its lease is not disturbed. What was silent for longer has
lost its workers before the others go on without it, and comes back as a newcomer. Nothing
of this costs a restart, and there is none to spend.
"""

from __future__ import annotations

import signal
from collections.abc import Callable

import pytest

from .nodes_job import (
    CONF,
    PATIENT_CONF,
    RESTLESS_CONF,
    SILENT_STEPS,
    SUSPICIOUS_CONF,
    NodesJob,
    kill_worker,
)

pytestmark = pytest.mark.root

COORDINATOR, OTHER = 0, 2
# Each takes about half a second when packets have to be sent again.
SLOW_STEPS = 8


@pytest.fixture
def job(make_job) -> NodesJob:
    """A job of three hosts that do steps."""
    return start(make_job(3), CONF)


def start(job: NodesJob, settings: str) -> NodesJob:
    job.start_all("--nnodes=2:3", "--max-restarts=0", settings)
    job.until_stepping(world=3)
    return job


@pytest.mark.thorough(but=("0",))
@pytest.mark.parametrize("which", [COORDINATOR, OTHER])
def test_an_agent_paused_for_less_than_its_lease_is_not_missed(make_job, which) -> None:
    job = start(make_job(3), RESTLESS_CONF)
    number = job.newest()
    job.agents[which].send(signal.SIGSTOP)
    job.until_steps_more(SILENT_STEPS)
    job.agents[which].send(signal.SIGCONT)
    job.until_steps_more(SILENT_STEPS)
    assert job.newest() == number, job.record()
    job.finish(*job.agents)


@pytest.mark.thorough
def test_a_link_cut_for_less_than_the_lease_is_not_missed(make_job) -> None:
    """The workers wait for each other's packets; nobody's connection breaks."""
    job = start(make_job(3), PATIENT_CONF)
    number = job.newest()
    job.hosts[OTHER].cut()
    job.until_seen_waiting(number)
    job.hosts[OTHER].heal()
    job.until_steps_more(SILENT_STEPS)
    assert job.newest() == number, job.record()
    job.finish(*job.agents)


@pytest.mark.thorough
def test_a_pause_that_ends_the_round_costs_nobody_its_seat(make_job) -> None:
    """Silence long enough to be suspected, and over before the lease is."""
    job = start(make_job(3), SUSPICIOUS_CONF)
    number, agent = job.newest(), job.agents[OTHER]
    agent.send(signal.SIGSTOP)
    job.until_gone(w for w in job.workers(number) if w.host != agent.host.name)
    agent.send(signal.SIGCONT)
    job.until_stepping(world=3, after=number)
    assert {w.world for n in range(number, job.newest() + 1) for w in job.workers(n)} == {3}
    job.finish(*job.agents)


def test_an_agent_paused_for_longer_than_its_lease_comes_back(job) -> None:
    agent = job.agents[OTHER]
    comes_back(job, lambda: agent.send(signal.SIGSTOP), lambda: agent.send(signal.SIGCONT))


def test_a_link_that_is_cut_and_healed_brings_its_host_back(job) -> None:
    comes_back(job, job.hosts[OTHER].cut, job.hosts[OTHER].heal)


def comes_back(job: NodesJob, go: Callable[[], None], come: Callable[[], None]) -> None:
    """The third host goes silent, the others go on without it, and it comes back."""
    number, third = job.newest(), job.hosts[OTHER]
    others = [name for name in job.hosts_of(number) if name != third.name]
    silent = job.worker_on(third, number)
    go()
    number = job.until_stepping(world=2, after=number)
    assert job.hosts_of(number) == others
    assert silent.pid not in third.processes(), "its workers end with its lease"
    come()
    number = job.until_stepping(world=3, after=number)
    assert job.hosts_of(number) == [*others, third.name]
    job.finish(*job.agents)


def test_a_job_survives_a_long_pause_of_its_coordinator(job) -> None:
    agent = job.agents[COORDINATOR]
    all_come_back(job, lambda: agent.send(signal.SIGSTOP), lambda: agent.send(signal.SIGCONT))


@pytest.mark.thorough
def test_a_job_survives_that_its_coordinator_is_cut_off(job) -> None:
    all_come_back(job, job.hosts[COORDINATOR].cut, job.hosts[COORDINATOR].heal)


def all_come_back(job: NodesJob, go: Callable[[], None], come: Callable[[], None]) -> None:
    """Without a coordinator all workers end with their leases; with it all are back."""
    number = job.newest()
    go()
    job.until_gone(job.workers(number))
    come()
    number = job.until_stepping(world=3, after=number)
    job.finish(*job.agents)


def test_slow_and_lossy_links_are_no_failure(make_job) -> None:
    job = make_job(3)
    for host in job.hosts:
        host.shape(delay_s=0.01, loss=0.02)
    agents = job.start_all("--nnodes=3", PATIENT_CONF, "--max-restarts=1")
    number = job.until_stepping(world=3)
    job.until_steps_more(SLOW_STEPS)
    assert job.newest() == number, job.record()
    kill_worker(job.worker_on(job.hosts[OTHER], number))
    job.until_stepping(world=3, after=number)
    job.finish(*agents)
