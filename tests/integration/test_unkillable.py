"""A process that not even SIGKILL can end does not hold the agent up.

A process in a frozen control group is such a one: like a process that waits for a dead file
server, it is in uninterruptible sleep, and dies of its SIGKILL only when it is let go.
"""

from __future__ import annotations

import os
import signal
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.core.node_io import ProcessesStuck
from holdfast.core.policy import sentences

from ..waiting import until

pytestmark = pytest.mark.root

# Rank 0 is to be frozen; rank 1 fails, or ends well, when it is told to.
PAIR = """
import os, signal, sys, time

rank = os.environ["RANK"]
open(f"new.{rank}", "w").write(str(os.getpid()))
os.replace(f"new.{rank}", f"pid.{rank}")
while rank == "0" or not os.path.exists("go"):
    time.sleep(0.002)
sys.exit(3)
"""
PATIENCE = ("--shutdown-timeout=0.1", "--unkillable-timeout=0.5")


class Freezer:
    """A control group whose members can be frozen."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()

    def freeze(self, pid: int) -> None:
        (self.folder / "cgroup.procs").write_text(str(pid))
        self._state.write_text("FROZEN")
        until(lambda: self._state.read_text().strip() == "FROZEN", "the frost")

    def thaw(self) -> None:
        self._state.write_text("THAWED")

    @property
    def members(self) -> str:
        return (self.folder / "cgroup.procs").read_text()

    @property
    def _state(self) -> Path:
        return self.folder / "freezer.state"


@pytest.fixture
def freezer() -> Iterator[Freezer]:
    """A fresh group of the first kind of control groups: the second kind lets SIGKILL in."""
    mount = _freezer_mount()
    if mount is None:
        pytest.skip("needs a freezer of the first kind of control groups, and none is mounted")
    group = Freezer(mount / f"holdfast-test-{uuid.uuid4().hex}")
    try:
        yield group
    finally:
        group.thaw()
        for pid in group.members.split():
            os.kill(int(pid), signal.SIGKILL)
        until(lambda: not group.members, "the group to be empty")
        group.folder.rmdir()


def _freezer_mount() -> Path | None:
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        where, _, what = line.partition(" - ")
        kind, _, options = what.split(" ", 2)
        if kind == "cgroup" and "freezer" in options.split(","):
            return Path(where.split(" ")[4])
    return None


@pytest.fixture
def start_pair(start_job, freezer):
    """Start two workers and freeze the first; returns the job and the frozen process."""

    def start(*words):
        job = start_job("--nproc-per-node=2", *words, script=PAIR)
        job.until_files("pid.0", "pid.1")
        frozen = int(job.read("pid.0"))
        freezer.freeze(frozen)
        return job, frozen

    return start


def expect_gone_after_thaw(job, freezer: Freezer, frozen: int) -> None:
    """It was sent SIGKILL and executes nothing more, whenever it wakes up."""
    assert str(frozen) in freezer.members.split(), "it was not stuck at all"
    freezer.thaw()
    job.expect_nothing_left()


def expect_stuck(job, frozen: int) -> None:
    """It is told that this process did not end."""
    (stuck,) = job.events(ProcessesStuck)
    (named,) = stuck.processes
    assert named.startswith(f"pid {frozen} ")
    (sentence,) = sentences.left_behind(stuck.processes, stuck.forbidden)
    assert sentence in job.stderr


@pytest.mark.parametrize("start", ["--preload=json", "--no-warm"])
@pytest.mark.parametrize("restarts", ["--max-restarts=0", "--max-restarts=3"])
def test_a_failure_beside_a_stuck_worker_ends_the_job(start_pair, freezer, start, restarts) -> None:
    job, frozen = start_pair(*PATIENCE, start, restarts)
    (job.folder / "go").touch()
    assert job.wait() == 1
    expect_stuck(job, frozen)
    assert "rank 1" in job.stderr, "the failure itself is not told"
    expect_gone_after_thaw(job, freezer, frozen)


def test_a_signal_ends_a_job_with_a_stuck_worker(start_pair, freezer) -> None:
    job, frozen = start_pair(*PATIENCE)
    job.send(signal.SIGTERM)
    assert job.wait() == 128 + signal.SIGTERM
    expect_stuck(job, frozen)
    expect_gone_after_thaw(job, freezer, frozen)


def test_a_second_interrupt_ends_a_job_with_a_stuck_worker(start_pair, freezer) -> None:
    job, frozen = start_pair("--shutdown-timeout=600", "--unkillable-timeout=0.5")
    job.send(signal.SIGINT)
    passed_on = sentences.passed_on(2, 600.0, is_interrupt=True)
    job.until(lambda: passed_on in job.stderr, "the agent to pass it on")
    job.send(signal.SIGINT)
    assert job.wait() == 128 + signal.SIGINT
    assert f"pid {frozen}" in job.stderr
    expect_gone_after_thaw(job, freezer, frozen)


def test_a_success_with_a_stuck_child_left_behind_is_still_a_success(start_job, freezer) -> None:
    script = """
        import os, signal, time
        child = os.fork()
        if child == 0:
            while True:
                signal.pause()
        open("new", "w").write(str(child))
        os.replace("new", "child")
        while not os.path.exists("go"):
            time.sleep(0.002)
    """
    job = start_job(*PATIENCE, script=script)
    job.until_files("child")
    frozen = int(job.read("child"))
    freezer.freeze(frozen)
    (job.folder / "go").touch()
    assert job.wait() == 0
    assert f"pid {frozen}" in job.stderr
    expect_gone_after_thaw(job, freezer, frozen)


def test_a_killed_agent_leaves_nothing_but_what_is_stuck(start_pair, freezer) -> None:
    job, frozen = start_pair()
    job.process.kill()
    job.wait()
    until(lambda: job.running() == [frozen], "all others to end")
    expect_gone_after_thaw(job, freezer, frozen)


def test_a_killed_spawner_is_reported_beside_a_stuck_worker(start_pair, freezer) -> None:
    job, frozen = start_pair()
    os.kill(job.spawner(), signal.SIGKILL)
    assert job.wait() == 1
    assert "the spawner" in job.stderr
    expect_gone_after_thaw(job, freezer, frozen)
