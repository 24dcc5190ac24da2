"""Hosts that say nothing for a while: paused agents, cut links, slow and lossy ones.

What was silent for less than its lease is not disturbed. What was silent for longer has
lost its workers before the others go on without it, and comes back as a newcomer. Nothing
of this costs a restart, and there is none to spend.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

import pytest

from ..conftest import name_of
from .conftest import MakeJob
from .hosts import Host
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
DIALS = 4
"""After so many in vain the lease of the one that sleeps is over: its spawner has killed all."""
# Each takes about half a second when packets have to be sent again.
SLOW_STEPS = 8


@pytest.fixture
def job(make_job: MakeJob) -> NodesJob:
    """A job of three hosts that do steps."""
    return start(make_job(3), CONF)


def start(job: NodesJob, settings: str) -> NodesJob:
    job.start_all("--nnodes=2:3", "--max-restarts=0", settings)
    job.until_stepping(world=3)
    return job


@pytest.mark.thorough(but=("0",))
@pytest.mark.parametrize("which", [COORDINATOR, OTHER])
def test_an_agent_paused_for_less_than_its_lease_is_not_missed(
    make_job: MakeJob, which: int
) -> None:
    job = start(make_job(3), RESTLESS_CONF)
    number = job.newest()
    job.agents[which].send(signal.SIGSTOP)
    job.until_steps_more(SILENT_STEPS)
    job.agents[which].send(signal.SIGCONT)
    job.until_steps_more(SILENT_STEPS)
    assert job.newest() == number, job.record()
    job.finish(*job.agents)


@pytest.mark.thorough
def test_a_link_cut_for_less_than_the_lease_is_not_missed(make_job: MakeJob) -> None:
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
def test_a_pause_that_ends_the_round_costs_nobody_its_seat(make_job: MakeJob) -> None:
    """Silence long enough to be suspected, and over before the lease is."""
    job = start(make_job(3), SUSPICIOUS_CONF)
    number, agent = job.newest(), job.agents[OTHER]
    agent.send(signal.SIGSTOP)
    job.until_gone(w for w in job.workers(number) if w.host != agent.host.name)
    agent.send(signal.SIGCONT)
    job.until_stepping(world=3, after=number)
    assert {w.world for n in range(number, job.newest() + 1) for w in job.workers(n)} == {3}
    job.finish(*job.agents)


def test_an_agent_paused_for_longer_than_its_lease_comes_back(job: NodesJob) -> None:
    agent = job.agents[OTHER]
    comes_back(job, lambda: agent.send(signal.SIGSTOP), lambda: agent.send(signal.SIGCONT))


def test_a_link_that_is_cut_and_healed_brings_its_host_back(job: NodesJob) -> None:
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


def test_a_job_survives_a_long_pause_of_its_coordinator(job: NodesJob) -> None:
    agent = job.agents[COORDINATOR]
    all_come_back(job, lambda: agent.send(signal.SIGSTOP), lambda: agent.send(signal.SIGCONT))


def test_an_agent_that_slept_through_its_lease_waits_for_the_answer_to_its_own_kill(
    job: NodesJob,
) -> None:
    """Its spawner has killed all for the lease, and says so; it answers the agent only later."""
    agent, number = job.agents[COORDINATOR], job.newest()
    spawner = next(pid for pid in agent.host.processes() if name_of(pid) == "holdfast-spawn")
    agent.send(signal.SIGSTOP)
    job.until_gone(job.workers(number))
    others = [host for host in job.hosts if host is not agent.host]
    job.until(lambda: all(dials_in_vain(job, host) >= DIALS for host in others), "many dials")
    os.kill(spawner, signal.SIGSTOP)
    agent.send(signal.SIGCONT)
    job.until(
        lambda: job.has_noted(agent.host, '"ListStuck"') or agent.stderr.count(": node 1") > 1,
        "the agent to miss its answer, or to begin another round without it",
    )
    os.kill(spawner, signal.SIGCONT)
    job.until_stepping(world=3, after=number)
    job.finish(*job.agents)


def dials_in_vain(job: NodesJob, host: Host) -> int:
    """How often a host has not reached the coordinator, as its journal has it."""
    journals = job.home_of(host).glob("logs/*/journal.jsonl")
    return sum(path.read_text().count('"CoordinatorLost"') for path in journals)


@pytest.mark.thorough
def test_a_job_survives_that_its_coordinator_is_cut_off(job: NodesJob) -> None:
    all_come_back(job, job.hosts[COORDINATOR].cut, job.hosts[COORDINATOR].heal)


def all_come_back(job: NodesJob, go: Callable[[], None], come: Callable[[], None]) -> None:
    """Without a coordinator all workers end with their leases; with it all are back."""
    number = job.newest()
    go()
    job.until_gone(job.workers(number))
    come()
    number = job.until_stepping(world=3, after=number)
    job.finish(*job.agents)


def test_slow_and_lossy_links_are_no_failure(make_job: MakeJob) -> None:
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
