"""A job all of whose machines are killed, and that is started again under its id at once.

Each agent stands for a machine: it has a folder of its own for what outlives its processes. Leases
are far longer than a test may take, so a next round that waits for one fails it.
"""

from __future__ import annotations

import os
import signal
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

from holdfast.core.policy.liveness_locks import LockRecord, RecordedSeat
from holdfast.engine.sentences import LEADS

from ..etcd_cluster import EtcdCluster
from ..free_ports import free_port
from ..waiting import until
from .conftest import Job, StartJob

LEASE = "--lease=600"
NODES = 3
WAITS = "which may still run"
# Says that it runs, leaves a child in a session of its own when it is told how, and ends when it is
# told to. The child has its parent's descriptors, or none of them.
PROGRAM = """
import os, subprocess, sys, time
folder, machine = sys.argv[1:]
names = ("HOLDFAST_ROUND", "RANK")
wanted, outlives = os.path.join(folder, "wanted." + machine), os.path.join(folder, "outlives")
open(os.path.join(folder, "worker." + ".".join(os.environ[n] for n in names)), "w").close()
while not os.path.exists(os.path.join(folder, "finish")):
    if os.path.exists(wanted) and not os.path.exists(outlives):
        command = [sys.executable, "-c", "import time\\nwhile True: time.sleep(1)"]
        closes = open(wanted).read() == "without descriptors"
        child = subprocess.Popen(command, start_new_session=True, close_fds=closes)
        with open(outlives + ".part", "w") as file:
            file.write(str(child.pid))
        os.rename(outlives + ".part", outlives)
    time.sleep(0.02)
"""


class Machines:
    """A job of three nodes, each on what stands for a machine."""

    def __init__(self, start_job: StartJob, folder: Path, where: list[str]) -> None:
        self._start_job, self._where = start_job, where
        self.run_id = uuid.uuid4().hex
        self.folder = folder
        self.shared = folder / "shared"
        self.shared.mkdir()
        self.agents: list[Job] = []
        self.killed: list[Job] = []

    def start(self) -> None:
        """An agent on each machine."""
        embedded = "--rdzv-backend=holdfast" in self._where
        for number in range(NODES):
            # The host of an endpoint is one machine, whoever of them is it.
            disk = self.folder / ("machine" if embedded else f"machine{number}")
            self.agents.append(
                self._start_job(
                    *(*self._where, f"--rdzv-id={self.run_id}", f"--nnodes={NODES}", LEASE),
                    *(f"--snapshot-dir={disk}", "--no-warm", "--rdzv-conf=last_call_timeout=1"),
                    script=PROGRAM,
                    args=(str(self.shared), str(number)),
                )
            )

    def kill_all(self, spare: int = 0) -> None:
        """SIGKILL to every process of the job, but one: all at once, so that none clears up."""
        found = {pid for agent in self.agents for pid in agent.running()} - {spare}
        for number in (signal.SIGSTOP, signal.SIGKILL):
            for pid in found:
                send(pid, number)
        for agent in self.agents:
            agent.process.wait()
        self.killed, self.agents = self.agents, []

    def not_leading(self) -> int:
        """A machine that does not carry the coordinator: its end would have to be waited for."""
        agents = enumerate(self.agents)
        return next(number for number, agent in agents if LEADS not in agent.stderr)

    def leave_a_child(self, how: str) -> int:
        """Have a worker leave a process that will outlive it."""
        (self.shared / "part").write_text(how)
        (self.shared / "part").rename(self.shared / f"wanted.{self.not_leading()}")
        outlives = self.shared / "outlives"
        self.until(outlives.exists, "a child of a worker")
        return int(outlives.read_text())

    def has_round(self, number: int) -> bool:
        return len(list(self.shared.glob(f"worker.{number}.*"))) == NODES

    def until(self, condition: Callable[[], object], what: str) -> None:
        said = lambda: "\n".join([what, *(agent.stderr for agent in self.agents)])  # noqa: E731
        until(condition, said)

    def says_that_it_waits(self) -> bool:
        return any(WAITS in agent.stderr for agent in self.agents)

    def has_noted(self, number: int) -> bool:
        """Whether each node has its seat in this round in its note, which is written beside it."""
        found = [_noted(path) for path in notes(self)]
        return sum(seat is not None and seat.round == number for seat in found) == NODES

    def until_round(self, number: int) -> None:
        self.until(lambda: self.has_round(number) and self.has_noted(number), f"round {number}")

    def finish(self) -> None:
        (self.shared / "finish").touch()
        assert [agent.wait() for agent in self.agents] == [0] * NODES, self.agents[0].stderr


def send(pid: int, number: int) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        pass  # It died with another one.


@pytest.fixture(scope="module")
def etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdCluster]:
    with EtcdCluster(tmp_path_factory.mktemp("etcd")) as cluster:
        yield cluster


@pytest.fixture(params=["etcd", "file", "embedded"])
def machines(
    request: pytest.FixtureRequest, start_job: StartJob, tmp_path: Path
) -> Iterator[Machines]:
    match request.param:
        case "etcd":
            cluster = request.getfixturevalue("etcd")
            where = ["--rdzv-backend=etcd", f"--rdzv-endpoint={cluster.endpoints}"]
        case "file":
            (tmp_path / "register").mkdir()
            where = ["--rdzv-backend=file", f"--rdzv-endpoint={tmp_path / 'register'}"]
        case _:
            where = ["--rdzv-backend=holdfast", f"--rdzv-endpoint=127.0.0.1:{free_port()}"]
    job = Machines(start_job, tmp_path, where)
    yield job
    outlives = job.shared / "outlives"
    if outlives.exists():
        send(int(outlives.read_text()), signal.SIGKILL)


def _noted(path: Path) -> RecordedSeat | None:
    try:
        return msgspec.json.decode(path.read_bytes(), type=LockRecord).seat
    except (FileNotFoundError, msgspec.DecodeError):
        return None  # It is being written, or its node has ended.


def notes(machines: Machines) -> list[Path]:
    return list(machines.folder.glob("machine*/*.note"))


@pytest.mark.thorough(but=("etcd", "embedded"))
def test_a_job_that_was_killed_everywhere_goes_on_at_once(machines: Machines) -> None:
    machines.start()
    machines.until_round(1)
    for number in (2, 3):
        machines.kill_all()
        machines.start()
        machines.until_round(number)
    machines.finish()
    assert not notes(machines), "a job that is over leaves none"


@pytest.mark.thorough(but=("file-with descriptors", "embedded-without descriptors"))
@pytest.mark.parametrize(
    ("machines", "how"),
    [("etcd", "with descriptors"), ("embedded", "without descriptors")],
    indirect=["machines"],
)
def test_but_not_while_a_process_of_the_old_round_is_left(
    machines: Machines, how: str, is_running: Callable[[int], bool]
) -> None:
    machines.start()
    machines.until_round(1)
    left = machines.leave_a_child(how)
    machines.kill_all(spare=left)
    assert is_running(left)
    machines.start()
    machines.until(machines.says_that_it_waits, "the wait")
    assert not machines.has_round(2)
    send(left, signal.SIGKILL)
    machines.until_round(2)
    machines.finish()


@pytest.mark.thorough(but=("embedded",))
@pytest.mark.parametrize("machines", ["file"], indirect=True)
def test_a_machine_without_its_disk_is_waited_for(machines: Machines) -> None:
    machines.start()
    machines.until_round(1)
    kept = {f"machine{number}" for number in range(NODES)} - {f"machine{machines.not_leading()}"}
    machines.kill_all()
    next(note for note in notes(machines) if note.parent.name not in kept).unlink()
    machines.start()
    machines.until(machines.says_that_it_waits, "the wait")
    assert not machines.has_round(2)
