"""No step is lost when a round ends on purpose, nor when a scheduler signals every process."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ..conftest import RunHoldfast
from ..free_ports import free_port
from ..process_tree import running_below, status_of
from ..waiting import DEADLINE_S, once, until

PROGRAM = """
import os, signal, time
from pathlib import Path
import holdfast

rank, number, world = (os.environ[name] for name in ("RANK", "HOLDFAST_ROUND", "WORLD_SIZE"))

def put(name, text):
    Path(f"{name}.new.{rank}").write_text(text)
    os.replace(f"{name}.new.{rank}", name)

step = int(Path("kept").read_text()) if Path("kept").exists() else 0
put(f"began.{number}.{rank}", f"{step} {world}")
while not Path("finish").exists():
    step += 1
    if drain := holdfast.draining(step):
        put(f"saved.{number}.{rank}", str(step))
        if rank == "0":
            put("kept", str(step))
        drain.saved()
        if Path("breaks").exists():
            break
    if step % 5 == 0:
        put(f"steps.{number}.{rank}", str(step))
    if Path(f"fails.{number}.{rank}").exists():
        raise RuntimeError("told to fail")
    time.sleep(0.01)
"""


class Job:
    """A job of several agents on this machine, and what its workers have written."""

    def __init__(self, holdfast: Path, folder: Path) -> None:
        self.folder, self.name = folder, f"in-order-{os.getpid()}-{folder.name}"
        (folder / "steps.py").write_text(PROGRAM)
        self.command = [holdfast, "run", f"--rdzv-id={self.name}", "--no-warm"]
        self.command += [f"--save-timeout={DEADLINE_S:g}", "--max-restarts=0"]
        conf = "last_call_timeout=1,min_round_time=0,scale_up_delay=0"
        self.meet = [f"--rdzv-endpoint=127.0.0.1:{free_port()}", f"--rdzv-conf={conf}"]
        self.agents: list[subprocess.Popen[str]] = []

    def start(self, *words: str) -> subprocess.Popen[str]:
        with (self.folder / f"said.{len(self.agents)}").open("w") as said:
            agent = subprocess.Popen(
                [*self.command, *words, "steps.py"], cwd=self.folder, stderr=said, text=True
            )
        self.agents.append(agent)
        return agent

    def read(self, name: str) -> str | None:
        path = self.folder / name
        return path.read_text() if path.exists() else None

    def said(self) -> str:
        return "\n".join(path.read_text() for path in sorted(self.folder.glob("said.*")))

    def round_of(self, world: int, after: int = 0) -> tuple[int, list[int]]:
        """The first such round that steps, and the steps at which its workers began."""

        def look() -> tuple[int, list[int]] | None:
            for number in range(after + 1, after + 10):
                began = [self.read(f"began.{number}.{rank}") for rank in range(world)]
                known = [one.split() for one in began if one is not None]
                if len(known) == world == int(known[0][1]) and self.steps(number, world):
                    return number, [int(one[0]) for one in known]
            return None

        return once(look, f"a round of {world} workers; {self.said()}")

    def steps(self, number: int, world: int) -> bool:
        """Whether each worker has taken steps in this round."""
        return all(self.read(f"steps.{number}.{rank}") for rank in range(world))

    def saved(self, number: int, world: int) -> list[int]:
        return [int(self.read(f"saved.{number}.{rank}") or -1) for rank in range(world)]

    def check_nothing_lost(self, number: int, world: int, began: list[int]) -> None:
        """All workers of the round have saved one step, and the next began there."""
        saved = self.saved(number, world)
        assert saved == [saved[0]] * world, self.said()
        assert began == [saved[0]] * len(began), self.said()
        assert saved[0] > 0


@pytest.fixture
def job(holdfast: Path, tmp_path: Path) -> Iterator[Job]:
    job = Job(holdfast, tmp_path)
    yield job
    for agent in job.agents:
        agent.kill()
        agent.wait()


Change = Callable[[], object]


@pytest.mark.parametrize("breaks", [False, True])
def test_no_step_is_lost_when_a_node_joins_at_a_restart_and_at_another_size(
    job: Job, run_holdfast: RunHoldfast, breaks: bool
) -> None:
    if breaks:
        (job.folder / "breaks").touch()
    words = ("--nnodes=2:3", *job.meet)
    job.start(*words)
    job.start(*words)
    number, _ = job.round_of(world=2)
    changes: list[tuple[int, Change]] = [
        (3, lambda: job.start(*words)),
        (3, lambda: run_holdfast("restart", job.name)),
        (2, lambda: run_holdfast("scale", job.name, "1:2")),  # One of the three is a spare then.
        (3, lambda: run_holdfast("scale", job.name, "3")),  # It takes a seat.
    ]
    world = 2
    for later, change in changes:
        change()
        following, began = job.round_of(later, after=number)
        job.check_nothing_lost(number, world, began)
        assert following == number + 1
        number, world = following, later
    (job.folder / "finish").touch()
    assert [agent.wait(DEADLINE_S) for agent in job.agents] == [0, 0, 0], job.said()


def test_no_step_is_lost_when_a_spare_takes_the_seat_of_a_node_that_leaves(job: Job) -> None:
    words = ("--nnodes=2", *job.meet)
    for _ in range(2):
        job.start(*words)
    number, _ = job.round_of(world=2)
    is_hosted_by_first = "this node is the coordinator" in (job.read("said.0") or "")
    leaving = job.agents[1 if is_hosted_by_first else 0]
    job.start(*words)
    until(lambda: "standing by" in job.said(), job.said)
    leaving.send_signal(signal.SIGTERM)
    following, began = job.round_of(2, after=number)
    job.check_nothing_lost(number, 2, began)
    assert following == number + 1, job.said()
    (job.folder / "finish").touch()
    assert leaving.wait(DEADLINE_S) == 128 + signal.SIGTERM
    assert [agent.wait(DEADLINE_S) for agent in job.agents if agent is not leaving] == [0, 0]


def test_a_signal_to_every_process_of_a_job_loses_no_step(job: Job) -> None:
    agent = job.start("--nproc-per-node=2")
    number, _ = job.round_of(world=2)
    itself = status_of(agent.pid)
    assert itself is not None
    for process in (*running_below([itself.process]), itself.process):
        os.kill(process.pid, signal.SIGTERM)
    assert agent.wait(DEADLINE_S) == 128 + signal.SIGTERM
    saved = job.saved(number, 2)
    assert saved == [saved[0]] * 2, job.said()
    for name in job.folder.glob("*.1.*"):
        name.unlink()
    job.start("--nproc-per-node=2")
    _, began = job.round_of(world=2)
    assert began == saved
    (job.folder / "finish").touch()
    assert job.agents[-1].wait(DEADLINE_S) == 0


def test_a_round_that_fails_ends_at_once_though_its_workers_are_shielded(job: Job) -> None:
    agent = job.start("--nproc-per-node=2", "--shutdown-timeout=1000")
    job.round_of(world=2)
    (job.folder / "fails.1.1").touch()
    assert agent.wait(DEADLINE_S) == 1
    assert "did not stop within" not in job.said()
