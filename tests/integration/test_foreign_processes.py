"""Workers that start processes as another user, as with `sudo`, which the agent may not signal.

The agent is one of root's without the right to signal others (CAP_KILL); its worker may still
become another user. To the kernel that is what a user's agent is to a child of root's.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from holdfast.core.node_io import ProcessesStuck, SpawnerLost
from holdfast.core.policy import root_cause, sentences
from holdfast.core.protocol.model import ExitStatus

from ..waiting import until
from .conftest import Job, StartJob

pytestmark = [
    pytest.mark.root,
    pytest.mark.skipif(not shutil.which("setpriv"), reason="needs setpriv (util-linux)"),
]

BECOME = """
import os, signal, sys, time

def become_another(name):
    os.setgroups([])
    os.setresgid(65534, 65534, 65534)
    os.setresuid(65534, 65534, 65534)
    while True:
        signal.pause()

def leave_pid(name, pid):
    with open("new." + name, "w") as file:
        file.write(str(pid))
    os.replace("new." + name, name)

def wait_for(name):
    while not os.path.exists(name):
        time.sleep(0.002)
"""
CHILD = (
    BECOME
    + """
child = os.fork()
if child == 0:
    become_another("child")
while os.stat(f"/proc/{child}").st_uid == 0:
    time.sleep(0.002)
leave_pid("child", child)
wait_for("go")
sys.exit(int(open("go").read()))
"""
)
ITSELF = (
    BECOME
    + """
if os.environ["RANK"] == "0":
    leave_pid("child", os.getpid())
    become_another("itself")
wait_for("go")
sys.exit(3)
"""
)
PATIENCE = ("--shutdown-timeout=0.1", "--unkillable-timeout=0.5")


@pytest.fixture
def start(start_program: StartJob, holdfast: Path) -> Iterator[Callable[..., Job]]:
    """Start a job whose agent may signal its own user's processes only."""
    jobs: list[Job] = []

    def start(script: str, *words: str) -> Job:
        powerless = ("setpriv", "--bounding-set=-kill", "--inh-caps=-kill")
        command = (*powerless, holdfast, "run", *PATIENCE, "--log-dir=logs", *words, "program.py")
        jobs.append(start_program(*command, files={"program.py": script}))
        return jobs[-1]

    yield start
    for job in jobs:
        job.clean_up()


def foreign(job: Job) -> int:
    """The process of another user, once it is that."""
    job.until_files("child")
    pid = int(job.read("child"))
    status = Path(f"/proc/{pid}/status")
    job.until(lambda: "Uid:\t65534\t" in status.read_text(), "the other user")
    return pid


def described(pid: int) -> str:
    """Such a process, as the journal and sentences name it."""
    return f"pid {pid} (python, state S, of uid 65534)"


def expect_named(job: Job, pid: int) -> None:
    """The process is told to be out of reach."""
    (stuck,) = job.events(ProcessesStuck)
    assert stuck.forbidden == (described(pid),)
    for sentence in sentences.left_behind(stuck.processes, stuck.forbidden):
        assert sentence in job.stderr


def tell(job: Job, status: int) -> None:
    (job.folder / "new").write_text(str(status))
    (job.folder / "new").rename(job.folder / "go")


def expect_only(job: Job, pid: int) -> None:
    """Nothing is left but that process, which nobody else will end."""
    until(lambda: job.running() == [pid], lambda: f"all others to end: {job.running()}")
    os.kill(pid, signal.SIGKILL)
    job.expect_nothing_left()


@pytest.mark.parametrize("warm", ["--preload=json", "--no-warm"])
def test_a_failure_beside_a_process_of_another_user_ends_the_job_and_names_it(start, warm) -> None:
    job = start(CHILD, warm)
    pid = foreign(job)
    tell(job, 3)
    assert job.wait() == 1
    expect_named(job, pid)
    assert "rank 0" in job.stderr, "the failure itself is not told"
    assert "the spawner" not in job.stderr
    expect_only(job, pid)


def test_a_success_that_leaves_a_process_of_another_user_is_one_and_names_it(start) -> None:
    job = start(CHILD)
    pid = foreign(job)
    tell(job, 0)
    assert job.wait() == 0, job.stderr
    expect_named(job, pid)
    expect_only(job, pid)


def test_a_worker_that_is_another_users_can_be_asked_to_end_in_vain(start) -> None:
    job = start(ITSELF, "--nproc-per-node=2", "--no-warm")
    pid = foreign(job)
    job.send(signal.SIGTERM)
    assert job.wait() == 128 + signal.SIGTERM
    expect_named(job, pid)
    expect_only(job, pid)


def test_a_worker_that_is_another_users_is_no_harm_to_who_asks_for_stacks(start, holdfast) -> None:
    name = f"other-user-{os.getpid()}"
    job = start(ITSELF, "--nproc-per-node=2", "--no-warm", f"--rdzv-id={name}")
    pid = foreign(job)
    asked = subprocess.run([holdfast, "stacks", name], capture_output=True, text=True, check=False)
    assert "rank 1" in asked.stdout, asked
    os.kill(pid, signal.SIGKILL)
    assert job.wait() == 1
    cause = job.first_failure()
    assert (cause.rank, cause.pid, cause.status.signal) == (0, pid, signal.SIGKILL)
    assert root_cause.describe(cause) in job.stderr
    job.expect_nothing_left()


def test_a_killed_spawner_names_what_it_leaves_of_another_user(start) -> None:
    job = start(CHILD)
    pid = foreign(job)
    os.kill(job.spawner(), signal.SIGKILL)
    assert job.wait() == 1
    (lost,) = job.events(SpawnerLost)
    assert lost.left == (described(pid),)
    host = os.uname().nodename
    assert sentences.spawner_lost(host, lost.reason, lost.left) in job.stderr
    assert str(ExitStatus(signal=signal.SIGKILL)) in lost.reason
    expect_only(job, pid)


def test_a_killed_agent_leaves_nothing_but_what_is_another_users(start) -> None:
    job = start(CHILD)
    pid = foreign(job)
    job.process.kill()
    job.wait()
    expect_only(job, pid)
