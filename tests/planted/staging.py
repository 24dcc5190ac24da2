"""Where planted failures happen: one machine, three hosts, or `torchrun`; and what was said there.

Rules
- A stage is a folder with a folder for each host, in which its agent and its workers run and write.
- Three hosts are namespaces (`tests.integration.nodes.hosts`), with a worker each: host N has the
  rank N - 1, because it says so. One machine has three workers.
- What is checked is what a user sees: the text on the agents' standard error.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, NamedTuple

from ..free_ports import free_port
from ..integration.conftest import job_environment, name_of
from ..integration.nodes.hosts import Host, Network, Streams

PROGRAMS = Path(__file__).parent / "programs"
"""In a folder of their own: what lies beside a program may keep it from a warm start."""
BIN = Path(sys.executable).parent
WORKERS = 3
DEADLINE_S = 90.0
COORDINATES = "29400"
CONF = "--rdzv-conf=lease=6,heartbeat=0.8,last_call_timeout=1"
"""Short leases, so that a loss is noticed in seconds."""
SPAWNER = "holdfast-spawn"

CAUSE = re.compile(r"^  Cause: (?P<kind>.*), (?P<certainty>certain|likely|unclear)$", re.MULTILINE)
WHO = re.compile(r"^    who      (?P<who>.*)$", re.MULTILINE)


class Said(NamedTuple):
    """The verdict that somebody printed; empty where nobody printed one."""

    kind: str
    who: str
    certainty: str
    text: str


class Started(NamedTuple):
    """One `holdfast run`."""

    host: str
    process: subprocess.Popen[bytes]
    folder: Path

    @property
    def text(self) -> str:
        return (self.folder / "agent.txt").read_text(errors="backslashreplace")


class Stage:
    """One job with a planted failure."""

    def __init__(self, folder: Path, network: Network | None, program: Path) -> None:
        self.folder = folder
        self.network = network
        self.program = program
        self.agents: list[Started] = []
        self.variables: dict[str, str] = {}
        self.prefix: tuple[str, ...] = ()
        """What stands before the agent's command, on every host."""
        self.more_options: tuple[str, ...] = ()
        self.options_of: dict[str, tuple[str, ...]] = {}
        """What only one host is told, by its name."""
        names = [host.name for host in network.hosts] if network else [socket.gethostname()]
        self.homes = {name: folder / name for name in names}
        for home in self.homes.values():
            home.mkdir(parents=True)
        self._temporary = tempfile.mkdtemp(prefix="pl")
        """A short path, as sockets have to have."""

    @property
    def culprit_host(self) -> str:
        return list(self.homes)[1 if self.network else 0]

    @property
    def culprit_home(self) -> Path:
        return self.homes[self.culprit_host]

    def start(self, options: tuple[str, ...], failure: str) -> None:
        """Start the job, on all hosts."""
        for number, (name, home) in enumerate(self.homes.items()):
            host = self.network.hosts[number] if self.network else None
            given = (*options, *self.more_options, *self.options_of.get(name, ()))
            words = [*given, str(self.program), failure]
            command = [*self.prefix, str(BIN / "holdfast"), "run", *self._meeting(number), *words]
            own = {"TMPDIR": self._temporary, "HOME": str(home), "GLOO_SOCKET_IFNAME": "eth0"}
            if host is None:
                del own["GLOO_SOCKET_IFNAME"]
            environment = job_environment({**own, **self.variables})
            with open(home / "agent.txt", "wb") as output:
                process = _started(host, command, environment, home, output)
            self.agents.append(Started(name, process, home))

    def start_torchrun(self, failure: str) -> None:
        """The same program under PyTorch's own launcher, on one machine."""
        ((name, home),) = self.homes.items()
        given = ["--standalone", f"--nproc-per-node={WORKERS}", *self.more_options]
        command = [*self.prefix, str(BIN / "torchrun"), *given, str(self.program), failure]
        own = {"TMPDIR": self._temporary, "HOME": str(home), "PLANTED_PORT": str(free_port())}
        environment = job_environment({**own, **self.variables})
        with open(home / "agent.txt", "wb") as output:
            process = _started(None, command, environment, home, output)
        self.agents.append(Started(name, process, home))

    def _meeting(self, number: int) -> list[str]:
        given = ["--log-dir=logs", "--shutdown-timeout=5"]
        if self.network is None:
            return [*given, f"--nproc-per-node={WORKERS}"]
        endpoint = f"{self.network.hosts[0].address}:{COORDINATES}"
        meeting = ["--nnodes=3", f"--node-rank={number}", f"--rdzv-endpoint={endpoint}"]
        # Cold here, since one machine is warm: a zygote for each worker would be most of the work.
        return [*given, *meeting, "--rdzv-id=job", "--snapshot-dir=snapshots", "--no-warm", CONF]

    # What is done to it.

    def until(self, condition: Callable[[], object], what: str) -> None:
        deadline = time.monotonic() + DEADLINE_S
        while not condition():
            if time.monotonic() > deadline:
                raise AssertionError(f"waited in vain: {what}\n{self.record()}")
            time.sleep(0.02)

    def pid_of(self, rank: int) -> int:
        """A worker, once it has done its first steps."""
        home = list(self.homes.values())[rank] if self.network else self.culprit_home
        place = home / f"pid.{rank}"
        self.until(lambda: place.exists() and place.read_text(), f"the pid of rank {rank}")
        return int(place.read_text())

    def wait_for_workers(self) -> None:
        for rank in range(WORKERS):
            self.pid_of(rank)

    def send_worker(self, number: int, rank: int = 1) -> None:
        self.wait_for_workers()
        os.kill(self.pid_of(rank), number)

    def host(self) -> Host:
        assert self.network is not None, "this is done to hosts"
        return self.network.hosts[1]

    def kill_agent(self) -> None:
        self.wait_for_workers()
        self.agents[1].process.kill()

    def kill_spawner(self) -> None:
        self.wait_for_workers()
        pids = self.host().processes() if self.network else _below(self.agents[0].process.pid)
        for pid in pids:
            if name_of(pid) == SPAWNER:
                os.kill(pid, signal.SIGKILL)

    def cut(self) -> None:
        self.wait_for_workers()
        self.host().cut()

    def lose_host(self) -> None:
        self.wait_for_workers()
        self.host().cut()  # First, so that nobody is told of the ends of its connections.
        self.host().destroy()

    # What is said of it.

    def wait(self) -> None:
        self.until(lambda: all(one.process.poll() is not None for one in self.agents), "the end")

    def said(self) -> Said:
        """What the first agent says of it, which in a job of several hosts is the coordinator's."""
        text = self.agents[0].text
        _, _, report = text.rpartition("\nholdfast: the job failed")
        cause, who = CAUSE.search(text), WHO.search(text)
        if cause is None or who is None:
            return Said("", "", "", report or text)
        return Said(cause["kind"], who["who"], cause["certainty"], text)

    def record(self) -> str:
        return "\n".join(
            f"--- {one.host} ({one.process.poll()})\n{one.text}" for one in self.agents
        )

    def end(self) -> None:
        """Nothing of it is left, whatever happened."""
        for one in self.agents:
            if one.process.poll() is None:
                below = _below(one.process.pid)
                one.process.kill()
                for pid in below:
                    _kill(pid)
            one.process.wait()
        shutil.rmtree(self._temporary, ignore_errors=True)
        if self.network is not None:
            for host in self.network.hosts:
                host.heal()
                host.destroy()
            for process in self.network.started:
                process.wait()
            self.network.started.clear()


@contextmanager
def staged(folder: Path, network: Network | None, program: Path) -> Iterator[Stage]:
    stage = Stage(folder, network, program)
    try:
        yield stage
    finally:
        stage.end()


def _started(
    host: Host | None,
    command: list[str],
    environment: Mapping[str, str],
    home: Path,
    output: IO[bytes],
) -> subprocess.Popen[bytes]:
    if host is not None:
        return host.run(command, environment, home, Streams(stdout=output, stderr=output))
    return subprocess.Popen(
        command, cwd=home, env=environment, stdin=subprocess.DEVNULL, stdout=output, stderr=output
    )


def _below(pid: int) -> list[int]:
    """All descendants of a process."""
    found: list[int] = []
    waiting = [pid]
    while waiting:
        parent = waiting.pop()
        for name in Path(f"/proc/{parent}/task").glob("*/children"):
            try:
                children = [int(word) for word in name.read_text().split()]
            except OSError:
                continue
            found += children
            waiting += children
    return found


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        pass  # It went with the agent.
