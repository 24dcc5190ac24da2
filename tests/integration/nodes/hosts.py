"""Hosts on one machine: each has a network, a name and processes of its own.

Rules
- What runs on a host has its own loopback, one `eth0` to the other hosts and no way out, a
  host name of its own, and the files of this machine. The clock is one for all.
- `cut` is silence in both directions; nobody is told, no connection is reset.
- Everything ends with the test process: what runs on a host is killed with it, and a host
  is gone when the wire's process and the last of its own are.

How it works: the program `wire.py` makes the hosts and carries what they send; a command is
started through `nsenter`, which becomes the command, so that its process id is known.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, NamedTuple

from ...process_tree import family

KILL_DEADLINE_S = 30.0
WIRE = Path(__file__).with_name("wire.py")
DIES_WITH_THE_TEST = ("setpriv", "--pdeathsig", "KILL")


class Streams(NamedTuple):
    """What a command reads and where its output goes."""

    stdin: IO[bytes] | int = subprocess.DEVNULL
    stdout: IO[bytes] | int | None = None
    stderr: IO[bytes] | int | None = None


class Host:
    """One of the machines."""

    def __init__(self, network: Network, number: int) -> None:
        self.network = network
        self.number = number
        self.name = f"host{number}"
        self.address = f"10.77.0.{number}"
        self.address6 = f"fd77::{number}"
        self.spaces: tuple[str, str] = ("", "")

    def run(
        self,
        command: Sequence[str | Path],
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        streams: Streams | None = None,
    ) -> subprocess.Popen[bytes]:
        """Start a command; the process that is returned is its own, and is on this host."""
        stdin, out, err = streams or Streams()
        process = subprocess.Popen(
            [*self.entry, *command], stdin=stdin, stdout=out, stderr=err, env=env, cwd=cwd
        )
        self.network.started.append(process)
        while process.pid not in self.processes() and process.poll() is None:
            time.sleep(0.001)
        return process

    @property
    def entry(self) -> tuple[str, ...]:
        """What stands before a command that is to run on this host."""
        net, uts = self.spaces
        return (*DIES_WITH_THE_TEST, "nsenter", f"--net={net}", f"--uts={uts}", "--")

    def cut(self) -> None:
        """From now on everything to and from this host is lost without a word."""
        self.network.set_link(self, cut=True)

    def heal(self) -> None:
        """The link is whole again, fast and without loss."""
        self.network.set_link(self)

    def shape(self, delay_s: float, loss: float) -> None:
        """Delay whatever goes in or out, and lose this share of it."""
        self.network.set_link(self, delay_s=delay_s, loss=loss)

    def processes(self) -> list[int]:
        """Every process that runs on this host; a dead one has no network any more."""
        mine = os.stat(self.spaces[0]).st_ino
        below = (process.pid for process in family().running)
        return [pid for pid in below if _network_of(pid) == mine]

    def destroy(self) -> None:
        """Kill whatever runs here, and what it forks meanwhile, until nothing does."""
        deadline = time.monotonic() + KILL_DEADLINE_S
        while (pids := self.processes()) and time.monotonic() < deadline:
            for pid in pids:
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    pass  # it ended between the look and the kill
            time.sleep(0.005)


class Network:
    """Some hosts and the wire between them."""

    def __init__(self, count: int) -> None:
        self.hosts = [Host(self, number) for number in range(1, count + 1)]
        self.started: list[subprocess.Popen[bytes]] = []
        self._wire = subprocess.Popen(
            [*DIES_WITH_THE_TEST, sys.executable, WIRE],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            bufsize=1,
        )
        wanted = [
            {"name": h.name, "addresses": [f"{h.address}/24", f"{h.address6}/64"]}
            for h in self.hosts
        ]
        spaces = json.loads(self._ask(wanted))
        for host in self.hosts:
            net, uts = spaces[host.name]
            folder = f"/proc/{self._wire.pid}/fd"
            host.spaces = (f"{folder}/{net}", f"{folder}/{uts}")

    def set_link(
        self,
        host: Host,
        *,
        cut: bool = False,
        delay_s: float = 0.0,
        loss: float = 0.0,
        side: int = 0,
    ) -> None:
        """Set the state of a host's link; it holds when this returns."""
        link = {"name": host.name, "cut": cut, "delay_s": delay_s, "loss": loss, "side": side}
        self._ask(link)

    def part(self, *hosts: Host) -> None:
        """These reach each other and nobody else, and the others likewise, until each heals."""
        for host in hosts:
            self.set_link(host, side=1)

    def left(self) -> dict[str, list[int]]:
        """The hosts on which something runs, with its process ids."""
        return {host.name: pids for host in self.hosts if (pids := host.processes())}

    def close(self) -> None:
        """Kill what runs on the hosts, and end the wire, with which the hosts are gone."""
        try:
            if self._wire.poll() is None:
                for host in self.hosts:
                    host.destroy()
                for process in self.started:
                    process.wait()
        finally:
            self._wire.kill()
            self._wire.wait()
            for pipe in (self._wire.stdin, self._wire.stdout):
                if pipe is not None:
                    pipe.close()

    def _ask(self, order: object) -> str:
        orders, answers = self._wire.stdin, self._wire.stdout
        assert orders is not None
        assert answers is not None
        orders.write(json.dumps(order) + "\n")
        answer = answers.readline()
        if not answer:
            raise RuntimeError(f"the wire has ended with status {self._wire.wait()}")
        return answer


def _network_of(pid: int) -> int | None:
    try:
        return os.stat(f"/proc/{pid}/ns/net").st_ino
    except OSError:
        return None
