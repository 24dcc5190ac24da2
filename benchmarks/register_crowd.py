"""`python -m benchmarks.register_crowd`: many whole nodes in one process, without workers.

Unlike those of `crowd.py`, these do all that a node does where any node can lead: each is the
engine that ships, over a network and a register of its own with all their threads and connections;
it listens on a port, can be a successor and can lead. Only what is behind the port for processes
is made up here: workers that start and stop at once, and a lease kept as a spawner would.

A line goes through the named pipe of the benchmark (`programs/stamp.py` has its form) when all
nodes of the process run the same round: the number of the process for the rank, that of the
round for the attempt, the number of nodes for the size of the world.
"""

from __future__ import annotations

import contextlib
import gc
import os
import resource
import signal
import sys
import time
from collections.abc import Callable

from holdfast.core.node_io import (
    AllGone,
    EndpointReserved,
    EndSpawner,
    KillEverything,
    KillSpawner,
    LeaseRanOut,
    NodeEffect,
    NodeStarted,
    ReserveEndpoint,
    SetDeadlines,
    SignalWorkers,
    SpawnerEnded,
    StartWorkers,
    WorkerExited,
    WorkerStarted,
)
from holdfast.core.policy.config import JobConfig, Program, Rendezvous, RestartPolicy
from holdfast.core.protocol.model import Endpoint, ExitStatus, Outcome
from holdfast.engine.engine import Engine
from holdfast.engine.network import Means, add_network
from holdfast.engine.ports import Ports
from holdfast.engine.secrets import Secrets
from holdfast.observe.journal import SCHEMA, ClockPair, Journal, JournalHeader
from holdfast.runtime.disk import Disk
from holdfast.runtime.loop import EventLoop, Timers

LEASE_TIMER = "the spawner's"
MASTER_PORT = 1
"""Nobody connects to it: there are no workers."""
HOST_NAME_LENGTH = 64
"""The longest that Linux allows."""
OnRound = Callable[[int], None]


class SimulatedAgent:
    """A node as `agent.agent.Agent` composes it, and its processes, of which there are none."""

    def __init__(self, config: JobConfig, loop: EventLoop, number: int, on_round: OnRound) -> None:
        host = f"simulated-{number}-".ljust(HOST_NAME_LENGTH, "x")
        node = f"{host}-{number:08x}"
        self._loop, self._on_round = loop, on_round
        self._lease = Timers(loop, lambda name: self._lease_ends())
        self._round = 0
        self._tether: int | None = None
        self._shared: list[int] = []
        self._name = node[:20]
        journal = Journal(
            None, JournalHeader(SCHEMA, config.run_id, node, host, "", config, ClockPair(0.0, 0.0))
        )
        ports = Ports(loop, self, journal, say=self._say, finished=self._finished)
        add_network(ports, config, node, Means(loop, Disk(loop, self._say), Secrets()))
        self.engine = Engine(config, node, host, ports)
        self.engine.post(NodeStarted(cold="there is nothing to preload"))

    def do(self, effect: NodeEffect) -> None:
        match effect:
            case ReserveEndpoint():
                self.engine.post(EndpointReserved(Endpoint("", MASTER_PORT)))
            case StartWorkers():
                self._start(effect)
            case SignalWorkers():
                self._end_workers(effect.signal)
            case KillEverything():
                self._lease.cancel()
                self.engine.post(AllGone())
            case EndSpawner() | KillSpawner():
                self.engine.post(SpawnerEnded())
            case SetDeadlines():
                self._lease.set(LEASE_TIMER, effect.stop_at - self._loop.now())

    def _start(self, effect: StartWorkers) -> None:
        self._round = effect.assignment.round
        for local_rank in effect.local_ranks:
            self.engine.post(WorkerStarted(self._round, local_rank, os.getpid()))
        self._on_round(self._round)

    def _end_workers(self, number: int) -> None:
        for local_rank in self.engine.state.workers:
            status = ExitStatus(signal=number)
            self.engine.post(WorkerExited(self._round, local_rank, os.getpid(), status))

    def _lease_ends(self) -> None:
        self._say("its lease ran out")
        self.engine.post(LeaseRanOut())
        self._end_workers(signal.SIGTERM)

    def hold_tether(self, tether: int) -> None:
        if self._tether is not None:
            os.close(self._tether)
        self._tether = tether

    def share_tethers(self, tethers: list[int]) -> None:
        for tether in self._shared:
            os.close(tether)
        self._shared = tethers

    def _finished(self, outcome: Outcome) -> None:
        self._say(f"finished: {outcome.reason}")

    def _say(self, text: str) -> None:
        print(f"{self._name}: {text}", file=sys.stderr, flush=True)


class Crowd:
    """The nodes of one process."""

    def __init__(self, place: int, size: int) -> None:
        self._place, self._size = place, size
        self._running: dict[int, int] = {}

    def on_round(self, number: int) -> None:
        """One of them runs this round now."""
        self._running[number] = self._running.get(number, 0) + 1
        if self._running[number] == self._size:
            now = time.monotonic()
            line = f"{self._place} {number} {os.getpid()} {now} {now} {self._size}\n"
            with contextlib.suppress(OSError):
                pipe = os.open(os.environ["BENCH_REPORTS"], os.O_WRONLY | os.O_NONBLOCK)
                os.write(pipe, line.encode())
                os.close(pipe)


def config_of(endpoint: str, job: str, nodes: str) -> JobConfig:
    """As `holdfast run` makes it from the flags that the real nodes get."""
    least, _, most = nodes.partition(":")
    return JobConfig(
        job,
        Program("script", "simulated.py"),
        min_nodes=int(least),
        max_nodes=int(most),
        local_address="127.0.0.1",
        rendezvous=Rendezvous("etcd", endpoint),
        restarts=RestartPolicy(max_restarts=3),
    ).validate()


def main() -> None:
    endpoint, job, nodes, place, first, size = sys.argv[1:]
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    config = config_of(endpoint, job, nodes)
    loop = EventLoop()
    crowd = Crowd(int(place), int(size))
    numbers = range(int(first), int(first) + int(size))
    agents = [SimulatedAgent(config, loop, number, crowd.on_round) for number in numbers]
    gc.disable()  # Looking for garbage among so many takes time that a real node would not lose.
    loop.run_until(lambda: not agents)


if __name__ == "__main__":
    main()
