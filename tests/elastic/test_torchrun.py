"""The stock launcher with our rendezvous: `torchrun --rdzv-backend=holdfast`."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
import tomllib
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]
GROUP = "torchrun.handlers"
DEADLINE_S = 60.0
WORKER = """
import os, sys, time
with open(sys.argv[1], "a") as file:
    file.write(f"{os.environ['RANK']} of {os.environ['WORLD_SIZE']}\\n")
while not os.path.exists(sys.argv[2]):
    time.sleep(0.05)
"""


class Launchers:
    """Agents of stock torchrun for one job of one or two nodes, each in a session of its own."""

    def __init__(self, folder: Path) -> None:
        with socket.socket() as sock:
            sock.bind(("127.0.0.1", 0))
            self.place = f"127.0.0.1:{sock.getsockname()[1]}"
        self.run_id = uuid.uuid4().hex
        self.script, self.told, self.stop = (folder / name for name in ("w.py", "told", "stop"))
        self.script.write_text(WORKER)
        self.told.touch()
        project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
        # As if this very tree were installed, whatever is.
        info = folder / "holdfast_here-0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: holdfast-here\nVersion: 0\n")
        offers = project["entry-points"][GROUP].items()
        lines = [f"[{GROUP}]", *(f"{name} = {value}" for name, value in offers)]
        (info / "entry_points.txt").write_text("\n".join(lines))
        self.path = os.pathsep.join([str(REPOSITORY / "src"), str(folder)])
        self.started: list[subprocess.Popen[bytes]] = []

    def start(self) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "torch.distributed.run", "--nnodes", "1:2"]
        command += ["--rdzv-backend", "holdfast", "--rdzv-endpoint", self.place]
        command += ["--rdzv-id", self.run_id, "--rdzv-conf", "last_call_timeout=30"]
        command += [str(self.script), str(self.told), str(self.stop)]
        environment = {**os.environ, "PYTHONPATH": self.path}
        self.started.append(subprocess.Popen(command, env=environment, start_new_session=True))
        return self.started[-1]

    def wait_for(self, lines: list[str]) -> None:
        """Until the workers have told exactly this since the last time."""
        deadline = time.monotonic() + DEADLINE_S
        while sorted(self.told.read_text().splitlines()) != lines:
            assert time.monotonic() < deadline, self.told.read_text()
            time.sleep(0.02)
        self.told.write_text("")


@pytest.fixture
def launchers(tmp_path: Path) -> Iterator[Launchers]:
    launchers = Launchers(tmp_path)
    yield launchers
    launchers.stop.touch()  # Workers are in sessions of their own, and end by this.
    for each in launchers.started:
        each.kill()
        each.wait()


@pytest.mark.torch
@pytest.mark.slow
def test_a_job_survives_a_killed_node_and_admits_a_new_one(launchers: Launchers) -> None:
    host = launchers.start()
    other = launchers.start()
    launchers.wait_for(["0 of 2", "1 of 2"])
    # Either may carry the coordinator: they are on one machine, where the other can take over.
    other.send_signal(signal.SIGKILL)
    launchers.wait_for(["0 of 1"])
    newcomer = launchers.start()
    launchers.wait_for(["0 of 2", "1 of 2"])
    launchers.stop.touch()
    assert host.wait(DEADLINE_S) == 0
    assert newcomer.wait(DEADLINE_S) == 0
