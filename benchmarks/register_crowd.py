"""`python -m benchmarks.register_crowd`: many whole nodes in one process, without workers.

Unlike those of `crowd.py`, these do all that a node does where any node can lead: each has the
agent of the core, a `RegisterContact` of its own with all its threads and connections, listens
on a port, can be a successor and can lead. Only what stands around workers is made up here:
a spawner that starts and stops them at once, and keeps the lease as a real one would.

A line goes through the named pipe of the benchmark (`programs/stamp.py` has its form) when all
nodes of the process run the same round: the number of the process for the rank, that of the
round for the attempt, the number of nodes for the size of the world.
"""

from __future__ import annotations

import contextlib
import gc
import os
import resource
import sys
import time
from collections.abc import Callable

from holdfast.node.contact import Owner, Secrets
from holdfast.node.register_contact import RegisterContact

from holdfast.core.node import step as agent
from holdfast.core.node.io import (
    AgentEffect,
    AgentEvent,
    AgentStarted,
    AgentTimerFired,
    AllGone,
    Dial,
    EndpointReserved,
    EndSpawner,
    Finish,
    HangUp,
    KillEverything,
    KillSpawner,
    LeaseRanOut,
    Report,
    ReserveEndpoint,
    SetDeadlines,
    SignalWorkers,
    SpawnerEnded,
    StartWorkers,
    WakeAgent,
    WorkerExited,
    WorkerStarted,
)
from holdfast.core.node.state import AgentState
from holdfast.core.policy.config import JobConfig, Program, Rendezvous, RestartPolicy
from holdfast.core.protocol.model import Endpoint, ExitStatus
from holdfast.observe.journal import SCHEMA, Journal, JournalHeader
from holdfast.processes.bare import linux
from holdfast.runtime.loop import Cancellable, EventLoop, Inbox

LEASE_TIMER = "the spawner's"
MASTER_PORT = 1
"""Nobody connects to it: there are no workers."""
HOST_NAME_LENGTH = 64
"""The longest that Linux allows."""
OnRound = Callable[[int], None]


class SimulatedAgent:
    """A node as `node.agent.Agent` composes it, with a workplace in which nothing runs."""

    def __init__(self, config: JobConfig, loop: EventLoop, number: int, on_round: OnRound) -> None:
        host = f"simulated-{number}-".ljust(HOST_NAME_LENGTH, "x")
        node = f"{host}-{number:08x}"
        self._loop, self._on_round = loop, on_round
        self._state = AgentState(config, node, host)
        self._inbox: Inbox[AgentEvent] = Inbox(self._take)
        self._timers: dict[str, Cancellable] = {}
        self._round = 0
        self._tether: int | None = None
        self._shared: list[int] = []
        self.leases_lost = 0
        owner = Owner(
            config=config,
            loop=loop,
            node=node,
            post=self.post,
            say=self._say,
            journal=Journal(None, JournalHeader(SCHEMA, config.run_id, node, host, "", config)),
            on_tether=self._hold_tether,
            share_tethers=self._share_tethers,
        )
        self._contact = RegisterContact(owner, Secrets())
        self.post(AgentStarted(cold="there is nothing to preload"))

    def post(self, event: AgentEvent) -> None:
        self._inbox.put(event)

    def _take(self, event: AgentEvent) -> None:
        for effect in agent.step(self._state, event, linux.now()):
            self._carry_out(effect)

    def _carry_out(self, effect: AgentEffect) -> None:
        match effect:
            case Dial():
                self._contact.dial()
            case HangUp():
                self._contact.hang_up()
            case Report():
                self._contact.send(effect.message)
            case WakeAgent():
                self._wake(effect.name, effect.after_s, self.post, AgentTimerFired(effect.name))
            case ReserveEndpoint():
                self.post(EndpointReserved(Endpoint("", MASTER_PORT)))
            case StartWorkers():
                self._start(effect)
            case SignalWorkers():
                self._end_workers(effect.signal)
            case KillEverything():
                self._stop_timer(LEASE_TIMER)
                self.post(AllGone())
            case EndSpawner() | KillSpawner():
                self.post(SpawnerEnded())
            case SetDeadlines():
                self._wake(LEASE_TIMER, effect.stop_at - linux.now(), self._lease_ends)
            case Finish():
                self._say(f"finished: {effect.outcome.reason}")

    # The workers.

    def _start(self, effect: StartWorkers) -> None:
        self._round = effect.assignment.round
        for local_rank in effect.local_ranks:
            self.post(WorkerStarted(self._round, local_rank, os.getpid()))
        self._on_round(self._round)

    def _end_workers(self, number: int) -> None:
        for local_rank in self._state.workers:
            status = ExitStatus(signal=number)
            self.post(WorkerExited(self._round, local_rank, os.getpid(), status))

    def _lease_ends(self) -> None:
        self.leases_lost += 1
        self._say("its lease ran out")
        self.post(LeaseRanOut())
        self._end_workers(15)

    # What the rest of the workplace does.

    def _wake(
        self, name: str, after_s: float, callback: Callable[..., None], *args: object
    ) -> None:
        self._stop_timer(name)
        self._timers[name] = self._loop.call_later(after_s, callback, *args)

    def _stop_timer(self, name: str) -> None:
        if name in self._timers:
            self._timers[name].cancel()

    def _hold_tether(self, descriptor: int) -> None:
        if self._tether is not None:
            os.close(self._tether)
        self._tether = descriptor

    def _share_tethers(self, descriptors: list[int]) -> None:
        for descriptor in self._shared:
            os.close(descriptor)
        self._shared = descriptors

    def _say(self, text: str) -> None:
        print(f"{self._state.node[:20]}: {text}", file=sys.stderr, flush=True)


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
