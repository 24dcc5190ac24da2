"""However a job ends, and whatever its workers started, no process of it is left."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

import pytest

from .conftest import Job, StartJob

# Each rank grows the family that it is asked for, waits until all of it lives, and then
# stays, succeeds or fails; a rank that fails does so only when the other one is complete.
FAMILY = """
import os, signal, sys, time

rank = os.environ["RANK"]
shape, then = sys.argv[1:]
expected = []

def wait_for(*names):
    while not all(map(os.path.exists, names)):
        time.sleep(0.002)

def stay(name):
    open(f"{name}.{rank}", "w").close()
    while True:
        signal.pause()

if shape == "everything":
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    expected += [f"child.{rank}", f"grandchild.{rank}"]
    if os.fork() == 0:
        stay("grandchild" if os.fork() == 0 else "child")
if shape in ("daemon", "everything"):
    expected += [f"daemon.{rank}"]
    middle = os.fork()
    if middle == 0:
        os.setsid()
        if os.fork() == 0:
            os.closerange(0, 3)
            stay("daemon")
        os._exit(0)
    os.waitpid(middle, 0)
wait_for(*expected)
open(f"ready.{rank}", "w").close()
wait_for("ready.0", "ready.1")
if then == "stay" or (then == "fail" and rank == "0"):
    while True:
        signal.pause()
sys.exit(3 if then == "fail" else 0)
"""
STARTS = ("--preload=json", "--no-warm")
MEMBERS = {"daemon": 4, "everything": 8}
CASES = [("daemon", STARTS[0]), *(("everything", start) for start in STARTS)]
LARGEST = pytest.mark.parametrize("start_family", CASES[-2:], ids=" ".join, indirect=True)


StartFamily = Callable[[str], tuple[Job, int]]
"""Takes what the workers do then; returns the job, and how many processes its workers are."""


@pytest.fixture(params=CASES, ids=" ".join)
def start_family(request: pytest.FixtureRequest, start_job: StartJob) -> StartFamily:
    """Start two workers with a family of one shape; returns once all of it lives."""
    shape, start = request.param

    def start_it(then: str) -> tuple[Job, int]:
        words = (start, "--nproc-per-node=2", "--shutdown-timeout=0.2")
        job = start_job(*words, script=FAMILY, args=(shape, then))
        job.until_files("ready.0", "ready.1")
        return job, MEMBERS[shape]

    return start_it


@pytest.mark.thorough(but=("everything --preload=json", "everything --no-warm"))
def test_nothing_is_left_after_a_success(start_family: StartFamily) -> None:
    job, _ = start_family("succeed")
    assert job.wait() == 0
    job.expect_nothing_left()


@pytest.mark.thorough(
    but=("everything --preload=json", "daemon --preload=json", "everything --no-warm")
)
def test_nothing_is_left_after_a_failure(start_family: StartFamily) -> None:
    job, _ = start_family("fail")
    assert job.wait() == 1
    job.expect_nothing_left()


@pytest.mark.thorough(
    but=("everything --preload=json", "stubborn --preload=json", "everything --no-warm")
)
def test_nothing_is_left_after_a_signal_to_the_agent(start_family: StartFamily) -> None:
    job, members = start_family("stay")
    assert len(job.running()) >= members + 2, "the mark does not show the whole family"
    job.send(signal.SIGTERM)
    assert job.wait() == 128 + signal.SIGTERM
    job.expect_nothing_left()


@pytest.mark.thorough(
    but=("everything --preload=json", "stubborn --preload=json", "everything --no-warm")
)
def test_nothing_is_left_after_the_agent_was_killed(start_family: StartFamily) -> None:
    job, _ = start_family("stay")
    job.process.kill()
    job.wait()
    job.expect_nothing_left()


@pytest.mark.thorough(but=("everything --preload=json", "everything --no-warm"))
def test_nothing_is_left_after_the_spawner_was_killed_and_the_agent_says_so(
    start_family: StartFamily,
) -> None:
    job, _ = start_family("stay")
    os.kill(job.spawner(), signal.SIGKILL)
    assert job.wait() == 1
    assert "the spawner" in job.stderr
    assert "SIGKILL" in job.stderr
    job.expect_nothing_left()


@LARGEST
def test_nothing_is_left_after_the_spawner_was_killed_while_it_ended_the_job(
    start_family: StartFamily,
) -> None:
    job, _ = start_family("stay")
    spawner = job.spawner()
    os.kill(spawner, signal.SIGSTOP)  # It is asked to end, and does not get to it.
    job.send(signal.SIGTERM)
    journal = job.journal()
    assert journal is not None
    job.until(lambda: '"EndSpawner"' in journal.read_text(), "the end of the grace")
    os.kill(spawner, signal.SIGKILL)
    assert job.wait() == 128 + signal.SIGTERM
    job.expect_nothing_left()


def test_a_spawner_that_does_not_answer_does_not_hold_the_agent_up(start_job: StartJob) -> None:
    words = ("--nproc-per-node=2", "--shutdown-timeout=0.1", "--unkillable-timeout=0.2")
    job = start_job(*words, script=FAMILY, args=("everything", "stay"))
    job.until_files("ready.0", "ready.1")
    os.kill(job.spawner(), signal.SIGSTOP)
    job.send(signal.SIGTERM)
    assert job.wait() == 128 + signal.SIGTERM
    job.expect_nothing_left()


@pytest.mark.parametrize("start", STARTS)
def test_no_worker_survives_when_agent_and_spawner_are_killed_at_once(
    start_job: StartJob, start: str
) -> None:
    job = start_job(start, "--nproc-per-node=2", script=FAMILY, args=("plain", "stay"))
    job.until_files("ready.0", "ready.1")
    both = (job.process.pid, job.spawner())
    for pid in both:  # Neither can react to the other's end.
        os.kill(pid, signal.SIGSTOP)
    for pid in both:
        os.kill(pid, signal.SIGKILL)
    job.wait()
    job.expect_nothing_left()


@LARGEST
def test_a_frozen_agent_that_is_killed_leaves_nothing(start_family: StartFamily) -> None:
    """A debugger or a job scheduler may have stopped it: its end must show all the same."""
    job, _ = start_family("stay")
    job.send(signal.SIGSTOP)
    job.process.kill()
    job.wait()
    job.expect_nothing_left()


def test_a_stopped_worker_is_woken_to_hear_the_signal(start_job: StartJob) -> None:
    script = """
        import os, signal, sys, time
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(open("heard", "w").close()))
        open("ready", "w").write(str(os.getpid()))
        os.kill(os.getpid(), signal.SIGSTOP)
        while True:
            time.sleep(0.01)  # Not `pause`, which sleeps through a signal just before it.
    """
    job = start_job(script=script)
    job.until(lambda: job.read("ready"), "the worker")
    pid = int(job.read("ready"))
    job.until(lambda: _state_of(pid) == "T", "the worker to be stopped")
    job.send(signal.SIGTERM)
    assert job.wait() == 128 + signal.SIGTERM
    assert (job.folder / "heard").exists()
    job.expect_nothing_left()


def test_workers_hold_no_descriptor_but_their_own_three_and_that_of_their_stacks(
    run_job: StartJob,
) -> None:
    """Else a worker could speak as the spawner, or keep the agent from seeing its end."""
    script = """
        import os
        with open(f"found.{os.environ['RANK']}", "w") as file:
            for name in os.listdir("/proc/self/fd"):
                if int(name) > 2 and int(name) != file.fileno():
                    try:
                        print(name, os.readlink(f"/proc/self/fd/{name}"), file=file)
                    except FileNotFoundError:
                        pass  # the one that listed them
    """
    for start in STARTS:
        job = run_job(start, "--nproc-per-node=3", script=script)
        assert job.process.returncode == 0
        for rank in range(3):
            assert _not_inherited(job.read(f"found.{rank}")) == [STACKS], start


STACKS = "960 /memfd:holdfast-stacks (deleted)"
"""Where a worker writes where it is, when it is asked: memory of the agent's, closed on exec."""


def _not_inherited(found: str) -> list[str]:
    """Descriptors that the tests themselves do not pass on to every child."""
    ours = {f"{n} {os.readlink(f'/proc/self/fd/{n}')}" for n in _inheritable()}
    return [line for line in found.splitlines() if line not in ours]


def _inheritable() -> list[int]:
    found = []
    for name in os.listdir("/proc/self/fd"):
        try:
            if os.get_inheritable(int(name)):
                found.append(int(name))
        except OSError:
            pass  # the one that listed them
    return found


def _state_of(pid: int) -> str:
    with open(f"/proc/{pid}/stat") as file:
        return file.read().rpartition(")")[2].split()[0]
