"""The stock launcher with our rendezvous: `torchrun --rdzv-backend=holdfast`.

Holdfast is really installed for it: a wheel of this tree where it can be built, else what is
installed beside this interpreter. The launcher is PyTorch's own, each time a process of its own;
its workers say what they were told and stay until they are let go. They import nothing, so that
a job costs little more than its launchers.
"""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import subprocess
import sys
import uuid
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from ...free_ports import free_port
from ...waiting import DEADLINE_S, until

REPOSITORY = Path(__file__).parents[3]
FAILED = 1
WORKER = """
import json, os, sys, time
said = {"rank": os.environ["RANK"], "world": os.environ["WORLD_SIZE"], "pid": os.getpid()}
said["master"] = os.environ["MASTER_ADDR"] + ":" + os.environ["MASTER_PORT"]
said["restarts"] = os.environ["TORCHELASTIC_RESTART_COUNT"]
said["agent"] = os.getppid()
with open(sys.argv[1], "a") as file:
    file.write(json.dumps(said) + "\\n")
while not os.path.exists(sys.argv[2]):
    time.sleep(0.02)
"""

pytestmark = [pytest.mark.torch, pytest.mark.slow, pytest.mark.timeout(400)]


class Said(NamedTuple):
    """What a worker was told, and who it is."""

    rank: str
    world: str
    pid: int
    master: str
    restarts: str
    agent: int


class Launchers:
    """Agents of stock torchrun for one job, each in a session of its own, as are their workers."""

    def __init__(self, folder: Path, path: str) -> None:
        self.place = f"127.0.0.1:{free_port()}"
        self.run_id = uuid.uuid4().hex
        self.folder = folder
        self._path = path
        self._script, self._told, self._end = (folder / n for n in ("worker.py", "told", "end"))
        self._script.write_text(WORKER)
        self._told.touch()
        self._heard = 0
        self._started: list[subprocess.Popen[bytes]] = []

    def start(self, nodes: str, *options: str) -> subprocess.Popen[bytes]:
        """One more node of the job."""
        command = [sys.executable, "-m", "torch.distributed.run", "--nnodes", nodes]
        command += ["--rdzv-backend=holdfast", f"--rdzv-endpoint={self.place}"]
        command += ["--rdzv-id", self.run_id, *options]
        command += [str(self._script), str(self._told), str(self._end)]
        environment = {**os.environ, "PYTHONPATH": self._path, "OMP_NUM_THREADS": "1"}
        with open(self.folder / f"output-{len(self._started)}", "wb") as output:
            process = subprocess.Popen(
                command,
                env=environment,
                cwd=self.folder,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        self._started.append(process)
        return process

    def hear(self, number: int) -> list[Said]:
        """What the next so many workers say, by rank."""
        have_ended = lambda: all(one.poll() is not None for one in self._started)  # noqa: E731
        until(lambda: len(self._lines()) >= self._heard + number, self.output, over=have_ended)
        lines = self._lines()[self._heard :]
        self._heard += len(lines)
        return sorted(Said(**json.loads(line)) for line in lines)

    def let_go(self) -> None:
        """All workers may end."""
        self._end.touch()

    def output(self) -> str:
        """What all launchers have written."""
        files = sorted(self.folder.glob("output-*"))
        return "\n".join(f"{file.name}: {file.read_text(errors='replace')}" for file in files)

    def kill(self, node: subprocess.Popen[bytes], workers: list[Said]) -> None:
        """As if its machine were gone: the launcher alone would leave its workers behind."""
        for pid in (node.pid, *(said.pid for said in workers if said.agent == node.pid)):
            os.kill(pid, signal.SIGKILL)
        node.wait(DEADLINE_S)

    def clean_up(self) -> None:
        self.let_go()  # Workers whose launcher is gone end by this.
        for process in self._started:
            process.kill()
            process.wait()

    def _lines(self) -> list[str]:
        return self._told.read_text().splitlines()


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> str:
    """What `PYTHONPATH` has to be for a process that is to find an installed Holdfast."""
    if importlib.util.find_spec("hatchling") is None:
        return ""
    folder = tmp_path_factory.mktemp("installed")
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(build, cwd=REPOSITORY, check=True, capture_output=True)
    (wheel,) = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)  # All that pip does with a wheel of this kind.
    return str(folder)


@pytest.fixture
def launchers(tmp_path: Path, path: str) -> Iterator[Launchers]:
    launchers = Launchers(tmp_path, path)
    yield launchers
    launchers.clean_up()


def test_after_installation_a_job_of_one_node_meets_through_holdfast(
    launchers: Launchers,
) -> None:
    node = launchers.start("1", "--nproc-per-node=2")
    said = launchers.hear(2)
    assert [(worker.rank, worker.world) for worker in said] == [("0", "2"), ("1", "2")]
    launchers.let_go()
    assert node.wait(DEADLINE_S) == 0, launchers.output()


@pytest.mark.thorough
def test_a_job_survives_a_killed_node_and_admits_a_new_one(launchers: Launchers) -> None:
    # Long, so that only a node that needs no last call can go on without it.
    options = ("--rdzv-conf=last_call_timeout=600",)
    survivor = launchers.start("1:2", *options)
    victim = launchers.start("1:2", *options)
    together = launchers.hear(2)
    # Either may carry the coordinator: they are on one machine, where the other can take over.
    launchers.kill(victim, together)
    alone = launchers.hear(1)
    newcomer = launchers.start("1:2", *options)
    again = launchers.hear(2)
    launchers.let_go()
    assert survivor.wait(DEADLINE_S) == 0, launchers.output()
    assert newcomer.wait(DEADLINE_S) == 0, launchers.output()
    rounds = [together, alone, again]
    ranks = [[(worker.rank, worker.world) for worker in said] for said in rounds]
    assert ranks == [[("0", "2"), ("1", "2")], [("0", "1")], [("0", "2"), ("1", "2")]]
    assert {worker.agent for worker in together} == {survivor.pid, victim.pid}
    assert {worker.agent for worker in alone} == {survivor.pid}
    assert {worker.agent for worker in again} == {survivor.pid, newcomer.pid}
    masters = [{worker.master for worker in said} for said in rounds]
    assert [len(agreed) for agreed in masters] == [1, 1, 1]
    assert len(set.union(*masters)) == 3, "no round is to find what an older one left"
    # Who comes and goes costs no restart.
    assert {worker.restarts for said in rounds for worker in said} == {"0"}


@pytest.mark.thorough
def test_settings_of_ours_reach_a_job_through_the_launcher(
    launchers: Launchers, tmp_path: Path
) -> None:
    files = [tmp_path / "token", tmp_path / "another"]
    for file in files:
        file.write_text(f"a token of thirty-two bytes or more: {file.name}\n")
        file.chmod(0o600)
    settings = "--rdzv-conf=join_timeout=600,token_file={},is_host={}"
    host = launchers.start("2", settings.format(files[0], True))
    stranger = launchers.start("2", settings.format(files[1], False))
    assert stranger.wait(DEADLINE_S) == FAILED, launchers.output()
    assert "RendezvousConnectionError" in launchers.output()
    assert "wrong token" in launchers.output()
    other = launchers.start("2", settings.format(files[0], False))
    said = launchers.hear(2)
    assert {worker.agent for worker in said} == {host.pid, other.pid}
    launchers.let_go()
    assert host.wait(DEADLINE_S) == 0, launchers.output()
    assert other.wait(DEADLINE_S) == 0, launchers.output()


@pytest.mark.thorough
def test_a_node_that_nobody_joins_gives_up_with_pytorchs_own_error(launchers: Launchers) -> None:
    # Long enough to be in touch with its own coordinator: else that is the error.
    node = launchers.start("2", "--rdzv-conf=join_timeout=4")
    assert node.wait(DEADLINE_S) == FAILED
    assert "torch.distributed.elastic.rendezvous.api.RendezvousTimeoutError" in launchers.output()


@pytest.mark.thorough
def test_a_wrong_setting_is_named_in_the_error(launchers: Launchers) -> None:
    nodes = [
        launchers.start("1", f"--rdzv-conf={setting}")
        for setting in ("join_timeout=soon", "scale_up_dealy=3")
    ]
    assert [node.wait(DEADLINE_S) for node in nodes] == [FAILED, FAILED]
    assert "join_timeout: 'soon' is not a number of seconds" in launchers.output()
    assert "'scale_up_dealy'" in launchers.output()
    assert "scale_up_delay" in launchers.output(), "the known ones are named"
