"""Hosts that are asked to leave: who saves, who hears of it, and what everybody ends with."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast.core.policy import sentences
from holdfast.core.policy.config import Timeouts

from ...placement.environments import variables
from .etcd_hosts import EtcdJob
from .nodes_job import PATIENT_CONF, Agent, NodesJob

pytestmark = pytest.mark.root

NO_RESTARTS = "--max-restarts=0"
ELASTIC = ("--nnodes=1:3", PATIENT_CONF, NO_RESTARTS, "--nproc-per-node=2")
BROADCASTING = Path(__file__).with_name("broadcasting_job.py")
KILLED = "did not stop within"


def signal_tree(agent: Agent, number: int) -> None:
    """To every process on the host, as some schedulers do it: the agent is the last to hear."""
    others = [pid for pid in agent.host.processes() if pid != agent.process.pid]
    for pid in (*others, agent.process.pid):
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            pass  # It has died of one that was sent before.


def saved_at(job: NodesJob, number: int) -> list[list[int]]:
    return [worker.saved_at for worker in job.workers(number)]


def until_ready(job: NodesJob, *names: str) -> None:
    job.until(lambda: all((job.shared / name).exists() for name in names), f"{names}")


def test_all_workers_of_all_hosts_save_at_one_step_before_one_leaves(
    make_job: Callable[[int], NodesJob],
) -> None:
    job = make_job(3)
    job.say("saves")
    first, second, third = job.start_all(*ELASTIC)
    number = job.until_stepping(world=6)
    second.send(signal.SIGUSR1)
    assert job.wait(second) == 128 + signal.SIGUSR1
    saved = saved_at(job, number)
    assert len(saved) == 6
    assert len({tuple(steps) for steps in saved}) == 1, job.record()
    assert len(saved[0]) == 1, job.record()
    can_save = sentences.can_save("", 2, 20.0)
    assert can_save in first.stderr
    assert "this node has left the job, which goes on" in second.stderr
    job.until_stepping(world=4, after=number)
    job.finish(first, third)


def test_where_everybody_is_asked_all_save_and_nobody_waits_for_a_replacement(
    make_job: Callable[[int], NodesJob],
) -> None:
    job = make_job(2)
    job.say("saves")
    words = ("--nnodes=2", PATIENT_CONF, NO_RESTARTS, "--drain-timeout=90")
    agents = job.start_all(*words)
    number = job.until_stepping(world=2)
    for agent in agents:
        agent.send(signal.SIGTERM)
    assert [job.wait(agent) for agent in agents] == [128 + signal.SIGTERM] * 2
    first, second = saved_at(job, number)
    assert first == second != []
    assert job.newest() == number
    job.check()


@pytest.mark.thorough(but=("0",))
@pytest.mark.parametrize("asked_first", [0, 1])
def test_where_everybody_is_asked_one_after_the_other_through_etcd_nobody_waits(
    make_etcd_job: Callable[[int], EtcdJob], asked_first: int
) -> None:
    """Whether or not the first is the one that carries the coordinator."""
    job = make_etcd_job(2)
    agents = job.start_all("--nnodes=2", NO_RESTARTS, "--drain-timeout=90", "--rdzv-conf=lease=60")
    number = job.until_stepping(world=2)
    first, second = agents[asked_first], agents[1 - asked_first]
    first.send(signal.SIGTERM)
    job.until(lambda: "this node leaves the job" in first.stderr, "the first to hear of it")
    assert first.process.poll() is None, "it waits for a replacement"
    second.send(signal.SIGTERM)
    assert [job.wait(agent) for agent in agents] == [128 + signal.SIGTERM] * 2
    assert job.newest() == number


@pytest.mark.thorough(but=("15",))
@pytest.mark.parametrize("number", [signal.SIGUSR1, signal.SIGTERM])
def test_a_signal_to_every_process_of_a_host_is_no_failure_of_its_workers(
    make_job: Callable[[int], NodesJob], number: signal.Signals
) -> None:
    job = make_job(3)
    first, second, third = job.start_all(*ELASTIC)
    round_number = job.until_stepping(world=6)
    signal_tree(second, number)
    assert job.wait(second) == 128 + number
    assert "the job failed" not in second.stderr
    job.until_stepping(world=4, after=round_number)
    assert sentences.FREE in first.stderr
    job.finish(first, third)


@pytest.mark.thorough(but=("True",))
@pytest.mark.torch
@pytest.mark.parametrize("whole_tree", [False, True])
def test_handlers_that_broadcast_hang_nobody_though_one_host_alone_is_told(
    make_job: Callable[[int], NodesJob], whole_tree: bool
) -> None:
    job = make_job(2)
    job.program = BROADCASTING
    words = ("--nnodes=2", PATIENT_CONF, NO_RESTARTS, "--drain-timeout=1")
    first, second = job.start_all(*words)
    until_ready(job, "ready.0", "ready.1")
    if whole_tree:
        signal_tree(second, signal.SIGTERM)
    else:
        second.send(signal.SIGTERM)
    assert job.wait(second) == 128 + signal.SIGTERM
    until_ready(job, "saved.0", "saved.1")
    first.send(signal.SIGTERM)
    assert job.wait(first) == 128 + signal.SIGTERM
    assert [(job.shared / f"saved.{rank}").read_text() for rank in (0, 1)] == ["42", "42"]
    assert KILLED not in first.stderr + second.stderr


def test_ctrl_c_on_one_of_two_hosts_says_what_the_other_does(
    make_job: Callable[[int], NodesJob],
) -> None:
    job = make_job(2)
    first, second = job.start_all("--nnodes=2", PATIENT_CONF, NO_RESTARTS)
    job.until_stepping(world=2)
    second.send(signal.SIGINT)
    assert job.wait(second) == 128 + signal.SIGINT
    assert sentences.passed_on(1, Timeouts().shutdown_s, is_interrupt=True) in second.stderr
    assert sentences.others_wait(1, 600.0) in second.stderr
    waits = "waiting up to 600 s (--join-timeout) for 1 more"
    job.until(lambda: waits in first.stderr, "the other to say for how long it waits")
    first.send(signal.SIGINT)
    assert job.wait(first) == 128 + signal.SIGINT
    job.check()


def under_slurm(rank: int) -> dict[str, str]:
    """What Slurm says of a step of two hosts."""
    known = variables("slurm-srun-4-nodes-node0")
    own = {
        "SLURM_STEP_NUM_NODES": "2",
        "SLURM_STEP_NODELIST": "host[1-2]",
        "SLURM_STEP_NUM_TASKS": "2",
        "SLURM_STEP_TASKS_PER_NODE": "1(x2)",
        "SLURM_NODEID": str(rank),
        "SLURM_PROCID": str(rank),
    }
    return {**known, **own}


def test_under_slurm_who_is_drained_ends_with_0_and_who_ends_the_job_with_75(
    make_job: Callable[[int], NodesJob],
) -> None:
    job = make_job(2)
    words = ("--nnodes=1:2", PATIENT_CONF, NO_RESTARTS)
    first, second = (
        job.start(host, *words, env=under_slurm(rank)) for rank, host in enumerate(job.hosts)
    )
    number = job.until_stepping(world=2)
    second.send(signal.SIGTERM)
    assert job.wait(second) == 0, job.record()
    job.until_stepping(world=1, after=number)
    first.send(signal.SIGTERM)
    assert job.wait(first) == 75, job.record()
    job.check()
