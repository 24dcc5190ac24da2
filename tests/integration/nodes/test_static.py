"""Hosts with fixed ranks and a fixed master: `--node-rank`, `--master-addr`, `--master-port`."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast.core.policy import sentences
from holdfast.core.protocol.model import Endpoint
from holdfast.engine.sentences import leads

from .hosts import Host
from .nodes_job import CONF, PATIENT_CONF, Agent, NodesJob, kill_worker

pytestmark = pytest.mark.root

MASTER_PORT = 29500
COORDINATOR_PORT = 29400
NO_RESTARTS = "--max-restarts=0"
GATE = Path(__file__).with_name("gate.py")
TELL = """
import json, os, sys
names = ("MASTER_ADDR", "MASTER_PORT", "GROUP_RANK", "RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE")
told = {name: os.environ[name] for name in names}
with open(f"{sys.argv[1]}/told.{told['RANK']}", "w") as file:
    json.dump(told, file)
"""


class StaticJob:
    """A job whose nodes are told their ranks, and who the master is."""

    def __init__(self, job: NodesJob, nodes: int) -> None:
        self.job = job
        self.nodes = nodes
        self.master = job.hosts[0].address
        self.conf = PATIENT_CONF
        job.endpoint = ""

    def start(self, host: Host, rank: int, *words: str) -> Agent:
        static = (f"--nnodes={self.nodes}", f"--node-rank={rank}", self.conf)
        master = (f"--master-addr={self.master}", f"--master-port={MASTER_PORT}")
        return self.job.start(host, *static, *master, *words)

    def start_all(self, *words: str) -> list[Agent]:
        """Ranks against the order of the hosts' names, but for the master's."""
        seats = [(host, self.rank_of(host)) for host in self.job.hosts[: self.nodes]]
        return [self.start(host, rank, *words) for host, rank in seats]

    def rank_of(self, host: Host) -> int:
        return (1 - host.number) % self.nodes

    def hosts_by_rank(self) -> list[str]:
        return [h.name for h in sorted(self.job.hosts[: self.nodes], key=self.rank_of)]


@pytest.fixture
def make_static(make_job: Callable[[int], NodesJob]) -> Callable[..., StaticJob]:
    """Make a static job of some nodes, on as many hosts or on more."""
    return lambda nodes, hosts=0: StaticJob(make_job(hosts or nodes), nodes)


@pytest.mark.thorough
def test_every_node_has_the_rank_that_it_was_given_whoever_comes_first(make_static) -> None:
    static = make_static(3)
    job = static.job
    last_first = [static.start(h, static.rank_of(h), NO_RESTARTS) for h in job.hosts[::-1]]
    number = job.until_stepping(world=3)
    assert job.hosts_of(number) == static.hosts_by_rank() == ["host1", "host3", "host2"]
    job.finish(*last_first)


@pytest.mark.parametrize(
    "start", ["--preload=json", pytest.param("--no-warm", marks=pytest.mark.thorough)]
)
def test_workers_get_the_master_as_it_was_given(make_static, start: str, tmp_path: Path) -> None:
    """Also where a node knows it by another address than the others do."""
    static = make_static(2)
    job = static.job
    job.program = tmp_path / "tell.py"
    job.program.write_text(TELL)
    words = (start, NO_RESTARTS)
    first = static.start(job.hosts[0], 0, *words, "--nproc-per-node=2")
    static.master = job.hosts[0].address6
    second = static.start(job.hosts[1], 1, *words, "--nproc-per-node=3")
    assert [job.wait(agent) for agent in (first, second)] == [0, 0], job.record()
    told = [json.loads((job.shared / f"told.{rank}").read_text()) for rank in range(5)]
    assert [one["MASTER_ADDR"] for one in told] == ["10.77.0.1"] * 2 + ["fd77::1"] * 3
    assert {one["MASTER_PORT"] for one in told} == {str(MASTER_PORT)}
    assert [one["GROUP_RANK"] for one in told] == ["0", "0", "1", "1", "1"]
    assert [one["LOCAL_WORLD_SIZE"] for one in told] == ["2", "2", "3", "3", "3"]
    assert {one["WORLD_SIZE"] for one in told} == {"5"}
    job.check()


@pytest.mark.thorough
@pytest.mark.torch
def test_a_failed_worker_restarts_all_and_costs_the_job_one_restart(make_static) -> None:
    """The port stays the same, so the listener of the old round must be gone."""
    static = make_static(2)
    job = static.job
    agents = static.start_all("--max-restarts=2", "--restart-backoff=0", "--nproc-per-node=2")
    number = job.until_stepping(world=4)
    for rank in (0, 3):
        kill_worker(job.workers(number)[rank])
        number = job.until_stepping(world=4, after=number)
        assert job.hosts_of(number) == static.hosts_by_rank()
    kill_worker(job.workers(number)[1])
    assert [job.wait(agent) for agent in agents] == [1, 1]
    job.check()
    assert len({agent.cause() for agent in agents}) == 1


@pytest.mark.parametrize("rank", [1, pytest.param(2, marks=pytest.mark.thorough)])
def test_a_lost_node_is_waited_for_and_gets_its_rank_back(make_static, rank: int) -> None:
    static = make_static(3)
    job = static.job
    agents = {static.rank_of(agent.host): agent for agent in static.start_all(NO_RESTARTS)}
    number = job.until_stepping(world=3)
    old = job.workers(number)
    agents[rank].kill_all()
    master = agents[0]
    job.until(
        lambda: f"(--join-timeout) for 1 more: rank {rank}\n" in master.stderr, "who is missing"
    )
    job.until_gone(old)
    agents[rank] = static.start(agents[rank].host, rank, NO_RESTARTS)
    number = job.until_stepping(world=3, after=number)
    assert job.hosts_of(number) == static.hosts_by_rank()
    job.finish(*agents.values())


@pytest.mark.parametrize("record", [True, pytest.param(False, marks=pytest.mark.thorough)])
def test_rank_0_that_comes_back_is_rank_0(make_static, record: bool) -> None:
    """It carries the coordinator: with what it had written down, or with an empty disk."""
    static = make_static(2)
    static.conf = CONF  # What it had promised ends with the leases.
    job = static.job
    first, second = static.start_all(NO_RESTARTS)
    number = job.until_stepping(world=2)
    first.kill_all()
    if not record:
        shutil.rmtree(job.home_of(first.host))
    again = static.start(first.host, 0, NO_RESTARTS)
    number = job.until_stepping(world=2, after=number)
    assert job.hosts_of(number) == ["host1", "host2"]
    job.finish(again, second)


@pytest.mark.thorough
def test_a_second_node_of_a_rank_says_why_it_stands_by_and_takes_over(make_static) -> None:
    static = make_static(2, hosts=3)
    job = static.job
    first, second = static.start_all(NO_RESTARTS)
    number = job.until_stepping(world=2)
    third = static.start(job.hosts[2], 1, NO_RESTARTS)
    taken = sentences.rank_taken(1, "host2")
    job.until(lambda: taken in third.stderr, "its word")
    assert job.newest() == number, "one node's mistake ends no round"
    second.kill_all()
    number = job.until_stepping(world=2, after=number)
    assert job.hosts_of(number) == ["host1", "host3"]
    job.finish(first, third)


@pytest.mark.thorough
def test_two_nodes_of_one_rank_do_not_make_up_for_the_missing_one(make_static) -> None:
    static = make_static(3)
    job = static.job
    first, second, third = (static.start(h, min(h.number - 1, 1), NO_RESTARTS) for h in job.hosts)
    both = ("rank 1 is claimed by host2 and by host3", "rank 1 is claimed by host3 and by host2")
    job.until(lambda: "waiting for 1 more: rank 2" in first.stderr, "who is missing")
    job.until(lambda: any(words in first.stderr for words in both), "who claims what")
    mistaken = third if both[0] in first.stderr else second
    job.until(lambda: "--node-rank 1 is taken" in mistaken.stderr, "its word")
    mistaken.kill_all()
    again = static.start(mistaken.host, 2, NO_RESTARTS)
    job.until_stepping(world=3)
    job.finish(first, again, second if mistaken is third else third)


def test_the_coordinator_s_port_can_be_named(make_static) -> None:
    static = make_static(2)
    job = static.job
    static.conf += ",coordinator_port=29999"
    agents = [static.start(host, static.rank_of(host)) for host in job.hosts]
    job.until_stepping(world=2)
    assert leads(Endpoint("10.77.0.1", 29999)) in agents[0].stderr
    assert f":{COORDINATOR_PORT}" not in agents[0].stderr
    job.finish(*agents)


@pytest.mark.thorough
@pytest.mark.torch
def test_rank_0_need_not_have_the_master_s_address_if_that_leads_to_it(make_static) -> None:
    """Host 3 passes on what comes to it: a balancer, or a machine that translates addresses."""
    static = make_static(2, hosts=3)
    job = static.job
    gate = job.hosts[2]
    static.master = gate.address
    ports = (COORDINATOR_PORT, MASTER_PORT)
    passing_on = [
        gate.run([sys.executable, GATE, str(port), job.hosts[0].address]) for port in ports
    ]
    agents = static.start_all(NO_RESTARTS)
    number = job.until_stepping(world=2)
    assert job.hosts_of(number) == ["host1", "host2"]
    job.say("finish")
    assert [job.wait(agent) for agent in agents] == [0, 0], job.record()
    for process in passing_on:
        process.kill()
        process.wait()
    job.check()
