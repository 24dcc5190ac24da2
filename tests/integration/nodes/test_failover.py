"""The node that carries the coordinator dies, leaves, or falls silent; another one takes over.

Where the dead node had no workers of the round, nobody's workers are touched. Otherwise the
others form the next round at once. Neither costs a restart, and there is none to spend.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from tools.journals.explaining import story

from holdfast.engine.sentences import LEADS_NO_MORE
from holdfast.observe.causes import StepId
from holdfast.observe.journal import CoordinatorBegan

from ...waiting import DEADLINE_S
from .conftest import Ground, MakeEtcdJob, MakeHosts
from .etcd_hosts import EtcdJob, boot_time, cluster_on
from .nodes_job import SILENT_STEPS, Agent, kill_worker

pytestmark = pytest.mark.root

NO_RESTARTS = "--max-restarts=0"
STATUS_FAILED = 1
USED_UP = "the only restart was used"
# How long after the death of a worker: it is not known yet, its round stops, the next one forms.
INSTANTS_S = (0.0, 0.01, 0.05, 0.15)
# Short leases, where a test waits for the end of one and nothing is measured.
SHORT = "--rdzv-conf=lease=6"
# The time between a takeover and the end of the leases is long beside what the test does.
LONG = "--rdzv-conf=lease=20,heartbeat=1"


Note = Callable[[str, object], None]


@pytest.fixture
def note(
    record_property: Callable[[str, object], None], capsys: pytest.CaptureFixture[str]
) -> Note:
    """Put a measured time where it can be seen: nothing is judged by it."""

    def write(what: str, measured: object) -> None:
        record_property(what, str(measured))
        with capsys.disabled():
            print(f"\n  measured: {what}: {measured}")

    return write


def start(job: EtcdJob, *words: str, world: int = 3) -> int:
    job.start_all(*words)
    return job.until_stepping(world=world)


def names(agents: list[Agent]) -> set[str]:
    return {agent.host.name for agent in agents}


def takeovers(job: EtcdJob) -> list[str]:
    """Of each coordinator of which the journals tell: with what the way to it began."""
    journals = list(job.journals())
    began = [
        StepId(header.node, step.seq)
        for header, steps in journals
        for step in steps
        if isinstance(step, CoordinatorBegan)
    ]
    return [story(journals, line)[0] for line in began]


@pytest.mark.torch
def test_the_death_of_the_coordinators_agent_is_survived(
    make_etcd_job: MakeEtcdJob, note: Note
) -> None:
    job = make_etcd_job(3)
    number = start(job, "--nnodes=1:3", NO_RESTARTS)
    leader, epoch = job.leader(), job.epoch()
    others, since = job.others(leader), boot_time()
    leader.kill()
    number = job.until_stepping(world=2, after=number)
    assert set(job.hosts_of(number)) == names(others)
    assert job.leader(epoch) in others
    job.finish(*others)
    roots = takeovers(job)
    assert len(roots) == 2, "the journals tell of two coordinators"
    assert any(f"LeaderTetherEnded (leader={leader.host.name}" in root for root in roots)
    assert job.ledger().charges == 0
    note("takeover, agent killed", job.takeover(since, leader))


def test_no_worker_is_touched_when_a_coordinator_without_workers_dies(
    make_etcd_job: MakeEtcdJob, note: Note
) -> None:
    job = make_etcd_job(3)
    leader, others, number = job.start_with_a_leader_that_stands_by(NO_RESTARTS)
    pids, epoch, since = job.pids(), job.epoch(), boot_time()
    leader.kill()
    successor = job.leader(epoch)
    assert successor in others
    goes_on = f"all 2 nodes of round {number} have reported: it goes on"
    job.until(lambda: goes_on in successor.stderr, "that the round goes on")
    job.until_steps_more(SILENT_STEPS)
    job.finish(*others)
    assert (job.newest(), job.pids()) == (number, pids), job.record()
    note("takeover, agent killed, no workers on it", job.takeover(since, leader))


def test_a_coordinator_that_gets_sigterm_hands_over(make_etcd_job: MakeEtcdJob, note: Note) -> None:
    job = make_etcd_job(3)
    number = start(job, "--nnodes=1:3", NO_RESTARTS)
    leader, epoch = job.leader(), job.epoch()
    others, since = job.others(leader), boot_time()
    leader.send(signal.SIGTERM)
    assert job.wait(leader) == 128 + signal.SIGTERM
    assert job.leader(epoch) in others
    number = job.until_stepping(world=2, after=number)
    pids = job.pids()
    assert set(job.hosts_of(number)) == names(others)
    job.until_steps_more(SILENT_STEPS)
    job.finish(*others)
    assert (job.newest(), job.pids()) == (number, pids), "the takeover disturbs nobody"
    assert (job.epoch(), job.ledger().charges) == (epoch + 1, 0)
    note("takeover, SIGTERM", job.takeover(since, leader))


def test_a_coordinator_whose_machine_falls_silent_is_replaced_and_fenced(
    make_etcd_job: MakeEtcdJob, note: Note
) -> None:
    job = make_etcd_job(3)
    number = start(job, "--nnodes=1:3", NO_RESTARTS)
    silent, epoch, since = job.leader(), job.epoch(), boot_time()
    goes_and_comes_back(job, silent, silent.host.cut, silent.host.heal)
    assert job.epoch() == epoch + 1, "who comes back takes nobody's place"
    note("takeover, machine silent", job.takeover(since, silent))
    note("survivors step again, machine silent", first_step(job, number + 1, since))


def goes_and_comes_back(
    job: EtcdJob, leader: Agent, go: Callable[[], None], come: Callable[[], None]
) -> None:
    """The coordinator is silent for longer than its lease: fenced, and taken in as a node."""
    number, epoch, others = job.newest(), job.epoch(), job.others(leader)
    survivors = [name for name in job.hosts_of(number) if name != leader.host.name]
    go()
    assert job.leader(epoch) in others
    number = job.until_stepping(world=len(others), after=number)
    assert job.hosts_of(number) == survivors
    come()
    job.until(lambda: LEADS_NO_MORE in leader.stderr, "the old coordinator to give up")
    number = job.until_stepping(world=len(others) + 1, after=number)
    assert job.hosts_of(number) == [*survivors, leader.host.name]
    job.finish(*others, leader)
    assert job.ledger().charges == 0


def test_no_worker_is_touched_when_only_the_coordinators_process_stands_still(
    make_etcd_job: MakeEtcdJob, note: Note
) -> None:
    """Paused for long enough to be replaced, and not for so long that its node's lease ends."""
    job = make_etcd_job(3)
    number = start(job, "--nnodes=1:3", LONG, NO_RESTARTS)
    pids, epoch = job.pids(), job.epoch()
    leader, since = job.leader(), boot_time()
    leader.send(signal.SIGSTOP)
    successor = job.leader(epoch)
    leader.send(signal.SIGCONT)
    job.until(lambda: LEADS_NO_MORE in leader.stderr, "the old coordinator to give up")
    goes_on = f"all 3 nodes of round {number} have reported: it goes on"
    job.until(lambda: goes_on in successor.stderr, "that the round goes on")
    job.until_steps_more(SILENT_STEPS)
    job.finish(*job.agents)
    assert (job.newest(), job.pids()) == (number, pids), job.record()
    note("takeover, agent paused, lease 20 s", job.takeover(since, leader))


def first_step(job: EtcdJob, number: int, since: float) -> str:
    """When the first round from that number on did its first step."""
    offset = boot_time() - time.monotonic()
    steps = [w.first_step for w in job.workers(number) if w.first_step is not None]
    return f"{min(steps) + offset - since:.3f} s"


@pytest.mark.thorough
def test_a_paused_agent_that_carried_the_coordinator_is_fenced(
    make_etcd_job: MakeEtcdJob, note: Note
) -> None:
    job = make_etcd_job(3)
    start(job, "--nnodes=1:3", SHORT, NO_RESTARTS)
    leader, since = job.leader(), boot_time()
    goes_and_comes_back(
        job, leader, lambda: leader.send(signal.SIGSTOP), lambda: leader.send(signal.SIGCONT)
    )
    note("takeover, agent paused, lease 6 s", job.takeover(since, leader))


@pytest.mark.thorough
def test_a_paused_machine_that_carried_the_coordinator_is_fenced(
    make_etcd_job: MakeEtcdJob,
) -> None:
    """Its workers get no instant of time again: its spawner wakes up first, and kills them."""
    job = make_etcd_job(3)
    start(job, "--nnodes=1:3", SHORT, NO_RESTARTS)
    leader = job.leader()
    worker = job.worker_on(leader.host, job.newest())
    stopped: list[int] = []

    def pause() -> None:
        stopped.extend(leader.host.processes())
        signal_all(signal.SIGSTOP, stopped)

    def resume() -> None:
        signal_all(signal.SIGCONT, [pid for pid in stopped if pid != worker.pid])
        job.until_gone([worker])

    goes_and_comes_back(job, leader, pause, resume)


def signal_all(number: int, pids: list[int]) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


@pytest.mark.thorough
def test_a_coordinator_on_the_smaller_side_is_replaced(
    make_etcd_job: MakeEtcdJob, ground: Ground
) -> None:
    """On its side is one etcd of three; on the other all that it takes to go on."""
    job = make_etcd_job(3)
    start(job, "--nnodes=1:3", SHORT, NO_RESTARTS)
    leader = job.leader()
    side = [leader.host, ground.network.hosts[-1]]

    def heal() -> None:
        for host in side:
            host.heal()

    goes_and_comes_back(job, leader, lambda: ground.network.part(*side), heal)


def test_the_machine_of_the_coordinator_and_of_the_leading_etcd_may_die(
    make_network: MakeHosts, tmp_path: Path, holdfast: Path
) -> None:
    """Each host has an etcd of its own, as where nothing but the job's machines is there."""
    hosts = make_network(3).hosts
    with cluster_on(hosts, tmp_path / "etcd") as cluster:
        job = EtcdJob(hosts, tmp_path, holdfast, cluster)
        number = start(job, "--nnodes=1:3", NO_RESTARTS)
        leader = job.leader()
        lead_etcd_on(job, leader)
        others = job.others(leader)
        leader.kill_all()
        number = job.until_stepping(world=2, after=number)
        assert set(job.hosts_of(number)) == names(others)
        job.finish(*others)


def lead_etcd_on(job: EtcdJob, agent: Agent) -> None:
    """Have the server on that agent's host lead the others."""
    wanted = next(s for s in job.cluster.servers if s.place.address == agent.host.address)
    if not wanted.is_leader():
        status = wanted.ask("/v3/maintenance/status", {}, deadline_s=DEADLINE_S)
        move = {"targetID": status["header"]["member_id"]}
        leader = job.cluster.leader
        leader.ask("/v3/maintenance/transfer-leadership", move, deadline_s=DEADLINE_S)
    job.until(wanted.is_leader, f"{wanted.name} to lead")


@pytest.mark.thorough
def test_the_coordinator_may_die_before_the_first_round(make_etcd_job: MakeEtcdJob) -> None:
    """Two wait for a third; the one of them that leads dies before it comes."""
    job = make_etcd_job(4)
    words = ("--nnodes=3", SHORT, NO_RESTARTS)
    for host in job.hosts[:2]:
        job.start(host, *words)
    leader, epoch = job.leader(), job.epoch()
    job.until(lambda: "2 of" in leader.stderr, "a line that says who is there")
    leader.kill()
    (other,) = job.others(leader)
    assert job.leader(epoch) is other
    late = [job.start(host, *words) for host in job.hosts[2:]]
    number = job.until_stepping(world=3)
    assert number == 1
    job.finish(other, *late)


@pytest.mark.thorough
def test_the_coordinator_may_die_during_the_last_call(make_etcd_job: MakeEtcdJob) -> None:
    job = make_etcd_job(3)
    job.start_all("--nnodes=2:4", SHORT, NO_RESTARTS)
    leader, epoch = job.leader(), job.epoch()
    job.until(lambda: "last call" in leader.stderr, "the last call")
    others = job.others(leader)
    leader.kill()
    assert job.leader(epoch) in others
    number = job.until_stepping(world=2)
    assert set(job.hosts_of(number)) == names(others)
    job.finish(*others)


@pytest.mark.thorough
def test_the_coordinator_may_die_while_a_restart_is_under_way(make_etcd_job: MakeEtcdJob) -> None:
    """At several instants of it, one after the other, each of which costs a restart at most."""
    job = make_etcd_job(5)
    number = start(job, "--nnodes=1:5", SHORT, "--max-restarts=4", "--restart-backoff=0", world=5)
    for charged, after_s in enumerate(INSTANTS_S):
        assert job.ledger().charges <= charged
        leader = job.leader()
        others = job.others(leader)
        kill_worker(job.worker_on(others[0].host, number))
        time.sleep(after_s)
        leader.kill()
        number = job.until_stepping(world=len(others), after=number)
        assert set(job.hosts_of(number)) == names(others)
    job.finish(*others)
    assert job.ledger().charges <= len(INSTANTS_S)


@pytest.mark.thorough
def test_the_next_coordinator_counts_rounds_and_restarts_on(make_etcd_job: MakeEtcdJob) -> None:
    job = make_etcd_job(3)
    words = ("--max-restarts=1", "--restart-backoff=0")
    number = start(job, "--nnodes=1:3", SHORT, *words)
    kill_worker(job.workers(number)[0])
    number = job.until_stepping(world=3, after=number)
    leader = job.leader()
    others = job.others(leader)
    leader.kill()
    number = job.until_stepping(world=2, after=number)
    assert job.ledger().charges == 1
    kill_worker(job.workers(number)[0])
    assert [job.wait(agent) for agent in others] == [STATUS_FAILED] * 2, job.record()
    job.check()
    job.check_what_is_left_in_etcd()
    ledger = job.ledger()
    assert (ledger.round, ledger.charges) == (number, 2), "rounds that a failure ended"
    assert all(USED_UP in agent.stderr for agent in others), job.record()


@pytest.mark.thorough
def test_one_coordinator_after_the_other_may_die(make_etcd_job: MakeEtcdJob) -> None:
    job = make_etcd_job(5)
    number = start(job, "--nnodes=1:5", SHORT, NO_RESTARTS, world=5)
    epoch = 0
    for left in (4, 3, 2, 1):
        leader, epoch = job.leader(epoch), job.epoch()
        leader.kill()
        number = job.until_stepping(world=left, after=number)
    last = job.leader(epoch)
    assert job.hosts_of(number) == [last.host.name]
    last.kill_all()
    job.check()
    version = job.version()
    assert version is not None
    assert job.lease_s(version) > 0, "what nobody comes back for is forgotten one day"


@pytest.mark.thorough(but=("the outcome is written",))
@pytest.mark.parametrize("moment", ["its workers have ended", "the outcome is written"])
def test_the_outcome_survives_the_coordinator(make_etcd_job: MakeEtcdJob, moment: str) -> None:
    """It dies when the work is done; whoever comes later learns how it ended."""
    job = make_etcd_job(3)
    words = ("--nnodes=1:3", SHORT, NO_RESTARTS)
    number = start(job, *words)
    leader = job.leader()
    others = job.others(leader)
    job.say("finish")
    if moment == "the outcome is written":
        job.until(lambda: job.ledger().outcome is not None, "the outcome")
    else:
        job.until(lambda: job.worker_on(leader.host, number).ended, "the end of its worker")
    leader.kill()
    assert [job.wait(agent) for agent in others] == [0, 0], job.record()
    newest = job.newest()
    assert job.wait(job.start(leader.host, *words)) == 0, job.record()
    assert job.newest() == newest, "there is nothing to do for a latecomer"
    job.check()
    job.check_what_is_left_in_etcd()
