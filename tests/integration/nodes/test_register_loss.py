"""etcd servers die, stand still or are cut off: a job that runs does not notice.

As long as most of the servers answer, nothing happens. When none does, what runs goes on, and
it is said; only a takeover has to wait for them.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.core.policy.sentences import REGISTER_ANSWERS

from ...etcd_cluster import EtcdServer
from .conftest import MakeHosts
from .etcd_hosts import SERVERS, EtcdJob, cluster_on

pytestmark = pytest.mark.root

WORDS = ("--nnodes=1:3", "--max-restarts=0")
SHORT = "--rdzv-conf=lease=6"
# Of a twentieth of a second each: as long as a short lease.
STEPS = 120


@pytest.fixture
def job(make_network: MakeHosts, tmp_path: Path, holdfast: Path) -> Iterator[EtcdJob]:
    """A job of three hosts, with an etcd on three others that a test may harm."""
    hosts = make_network(3 + SERVERS).hosts
    with cluster_on(hosts[3:], tmp_path / "etcd") as cluster:
        yield EtcdJob(hosts[:3], tmp_path, holdfast, cluster)


def start(job: EtcdJob, *words: str) -> dict[int, int]:
    """Returns the workers that must be the same at the end."""
    job.start_all(*WORDS, *words)
    job.until_stepping(world=3)
    return job.pids()


def finish_undisturbed(job: EtcdJob, pids: dict[int, int]) -> None:
    number = job.newest()
    job.finish(*job.agents)
    assert (job.newest(), job.pids()) == (number, pids), job.record()


def host_of(job: EtcdJob, server: EtcdServer):
    return next(h for h in job.hosts[0].network.hosts if h.address == server.place.address)


def test_one_server_of_three_may_die_whichever_it_is_and_be_cut_off(job) -> None:
    pids = start(job)
    for which in ("followers", "leader"):
        server = job.cluster.leader if which == "leader" else job.cluster.followers[0]
        server.kill()
        job.until_steps_more(STEPS)
        server.start()
        job.cluster.wait_healthy(server)
    cut_off = host_of(job, job.cluster.leader)
    cut_off.cut()
    job.until_steps_more(STEPS)
    cut_off.heal()
    job.until_steps_more(STEPS // 5)
    finish_undisturbed(job, pids)


@pytest.mark.thorough
def test_all_servers_may_be_restarted_one_after_the_other(job) -> None:
    pids = start(job)
    for server in job.cluster.servers:
        server.restart()
        job.cluster.wait_healthy(server)
        job.until_steps_more(STEPS // 5)
    finish_undisturbed(job, pids)


@pytest.mark.thorough
def test_a_register_that_is_out_of_reach_for_a_while_stops_nothing(job) -> None:
    pids = start(job, SHORT)
    leader = job.leader()
    for server in job.cluster.servers:
        server.pause()
    job.until(lambda: "the register cannot be reached" in leader.stderr, "that it is said")
    job.until_steps_more(STEPS)
    for server in job.cluster.servers:
        server.resume()
    job.until(lambda: REGISTER_ANSWERS in leader.stderr, "that it is over")
    job.until_steps_more(STEPS // 5)
    finish_undisturbed(job, pids)


@pytest.mark.thorough
def test_a_takeover_waits_for_a_register_that_is_out_of_reach(job) -> None:
    """The workers run as long as their leases last; the job waits, and goes on."""
    leader, others, number = job.start_with_a_leader_that_stands_by(SHORT, "--max-restarts=0")
    workers = job.workers(number)
    for server in job.cluster.servers:
        server.pause()
    leader.kill()
    job.until_gone(workers)
    # The spawners ended them, which the agents may hear of later.
    job.until(lambda: all(job.has_noted(a.host, "LeaseRanOut") for a in others), "that it is known")
    for server in job.cluster.servers:
        server.resume()
    job.until_stepping(world=2, after=number)
    job.finish(*others)
    assert job.document().ledger.charges == 0
