"""`holdfast run` with several jobs at one endpoint, at once and one after the other."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from ..free_ports import free_port
from ..waiting import DEADLINE_S, until

WORKER = """
import os, pathlib, sys, time
run = os.environ["TORCHELASTIC_RUN_ID"]
pathlib.Path(f"{run}.{os.environ['RANK']}").write_text(os.environ["WORLD_SIZE"])
while run in sys.argv[1:] and not pathlib.Path(f"{run}.released").exists():
    time.sleep(0.02)
"""


class Agents:
    """Agents of several jobs, in one folder, at one endpoint."""

    def __init__(self, command: Path, folder: Path) -> None:
        self._command, self.folder = command, folder
        self._port = free_port()
        self._all: list[subprocess.Popen[str]] = []
        (folder / "worker.py").write_text(WORKER)

    def start(self, job: str, *options: str) -> subprocess.Popen[str]:
        """A node of a job; those of `held` jobs run until they are released."""
        variables = {k: v for k, v in os.environ.items() if not k.startswith("HOLDFAST_")}
        where = (f"--rdzv-endpoint=localhost:{self._port}", f"--rdzv-id={job}")
        words = (*options, "worker.py", "held", "also held")
        agent = subprocess.Popen(
            [self._command, "run", "--nnodes=2", *where, "--no-warm", *words],
            cwd=self.folder,
            env=variables,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._all.append(agent)
        return agent

    def both(self, job: str, *options: str) -> list[subprocess.Popen[str]]:
        return [self.start(job, *options) for _ in range(2)]

    def until_running(self, job: str) -> None:
        until(lambda: all((self.folder / f"{job}.{rank}").exists() for rank in range(2)))

    def close(self) -> None:
        for agent in self._all:
            agent.kill()
            agent.communicate()


@pytest.fixture
def agents(holdfast: Path, tmp_path: Path) -> Iterator[Agents]:
    agents = Agents(holdfast, tmp_path)
    yield agents
    agents.close()


def statuses(agents: list[subprocess.Popen[str]]) -> list[int]:
    for agent in agents:
        agent.communicate(timeout=DEADLINE_S)
    return [agent.returncode for agent in agents]


@pytest.mark.timeout(200)
def test_jobs_run_at_one_endpoint_at_once_and_one_after_the_other(agents: Agents) -> None:
    held = agents.both("held")
    agents.until_running("held")
    assert statuses(agents.both("quick", "--rdzv-conf=is_host=1")) == [0, 0]
    assert [agent.poll() for agent in held] == [None, None]
    next_ones = agents.both("also held")
    agents.until_running("also held")
    (agents.folder / "held.released").touch()
    assert statuses(held) == [0, 0]
    assert statuses(agents.both("last")) == [0, 0]
    (agents.folder / "also held.released").touch()
    assert statuses(next_ones) == [0, 0]
    for job in ("held", "quick", "also held", "last"):
        assert (agents.folder / f"{job}.1").read_text() == "2"


@pytest.mark.thorough
@pytest.mark.timeout(200)
def test_a_job_outlives_the_one_that_held_the_port(agents: Agents) -> None:
    killed = agents.both("held")
    agents.until_running("held")
    others = agents.both("also held")
    agents.until_running("also held")
    for agent in killed:
        agent.kill()
    assert statuses(agents.both("quick")) == [0, 0]
    (agents.folder / "also held.released").touch()
    assert statuses(others) == [0, 0]


@pytest.mark.timeout(200)
def test_a_job_that_nobody_hosts_at_the_endpoint_of_another_is_told_at_once(
    agents: Agents,
) -> None:
    held = agents.both("held")
    agents.until_running("held")
    stranger = agents.start("stranger", "--rdzv-conf=is_host=0")
    assert stranger.stderr is not None
    told = ""
    while "serves job held, not stranger" not in told:
        told = stranger.stderr.readline()
        assert told, "it ended without a word"
    assert "another port" in told
    stranger.send_signal(signal.SIGTERM)
    assert statuses([stranger]) == [128 + signal.SIGTERM]
    (agents.folder / "held.released").touch()
    assert statuses(held) == [0, 0]
