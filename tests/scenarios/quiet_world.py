"""The world of a story of several nodes: the simulator's, with nothing left to chance.

Every host runs the engine that ships, over the simulated ports of `tools.simulator`. Whatever the
simulator would draw at random is as small as it can be, nothing fails by itself, and hosts are
called `a`, `b`, ... What is seen of it: each decision of the coordinator, each word on a screen,
and what is done to workers.
"""

from __future__ import annotations

from math import floor, inf
from random import Random

from msgspec.structs import replace
from tools.simulator.cluster import Cluster
from tools.simulator.facts import CoreRaised, Fact, Recorded, WorkerSaved
from tools.simulator.machine import Machine
from tools.simulator.observing import Observer
from tools.simulator.plan import HostPlan, Plan
from tools.simulator.process import SimulatedProcess
from tools.simulator.spawner import SimulatedSpawner, SimulatedWorker
from tools.simulator.timeline import HostClock

from holdfast.core.coordinator import Beginning, Coordinator
from holdfast.core.coordinator_io import Explain
from holdfast.core.election import may_speak
from holdfast.core.node_io import (
    EndpointReserved,
    EndSpawner,
    KillEverything,
    NodeEffect,
    ReserveEndpoint,
    SignalWorkers,
    StartWorkers,
    StepReported,
)
from holdfast.core.policy.config import JobConfig
from holdfast.core.protocol.model import Endpoint, ErrorDetail, ExitStatus, Outcome, signal_name
from holdfast.core.protocol.naming import on_itself
from holdfast.engine.ports import Ports

from .node_wording import begins, ending, ledger, step_in_words, workers

NAMES = "abcdef"
FIRST_PORT = 29500


class NoChance(Random):
    """Always the smallest: no delay that need not be."""

    def random(self) -> float:
        return 0.0


class World(Cluster):
    """All hosts of a story, and what has been seen of them since somebody last emptied that."""

    def __init__(self, config: JobConfig, *, has_register: bool, saves: bool = False) -> None:
        plan = Plan(
            seed=0,
            profile="story",
            config=config,
            hosts=(),
            faults=(),
            heal_at=inf,
            embedded=not has_register,
            victims=False,
            reports_steps=False,
            saves=saves,
        )
        super().__init__(plan, False, NoChance())
        self.hosts = {name: Host(self, number, name) for number, name in enumerate(NAMES)}
        self.machines.extend(self.hosts.values())
        self.seen: list[str] = []

    def see(self, who: str, text: str) -> None:
        tenths = floor(10 * self.timeline.now + 1e-6)
        self.seen.append(f"{tenths / 10:6.1f} s  {who:<11}  {text}")

    def pass_time(self, seconds: float) -> None:
        self.timeline.run_until(self.timeline.now + seconds)

    def host_of(self, node: str) -> int:
        return self.hosts[node.partition("-")[0]].number

    def note(self, fact: Fact) -> None:
        if isinstance(fact, WorkerSaved):
            self.see(NAMES[fact.host], f"rank {fact.rank} saves at step {fact.step}")
        assert not isinstance(fact, CoreRaised), fact.error
        super().note(fact)
        if isinstance(fact, Recorded) and self.register.mute:
            self.register.mute = 0
            what = f"{NAMES[fact.host]}'s write, {ledger(fact.document.ledger)}"
            self.see("register", f"takes {what}; the reply is lost")


class Host(Machine):
    """One machine. Each start of an agent on it is a new life, and a new node."""

    def __init__(self, world: World, number: int, name: str) -> None:
        super().__init__(world, number, HostPlan())
        self.world, self.name, self.ports = world, name, FIRST_PORT
        self.stop_s = 0.0
        """How long workers take to end when they are asked to."""

    def equip(self, plan: HostPlan, node_rank: int | None, stop_s: float) -> None:
        """What its next agent is told, and what its clock is like."""
        told = {"slots": plan.slots, "role": plan.role, "node_rank": node_rank}
        self.config = replace(self.world.plan.config, **told)
        self.clock = HostClock(self.world.timeline, plan.clock_offset_s, plan.clock_rate)
        self.plan, self.stop_s = plan, stop_s

    def stop_delay(self) -> float:
        return self.stop_s

    def new_process(self, node: str) -> Agent:
        return Agent(self, node)

    @property
    def agent(self) -> Agent:
        assert isinstance(self.process, Agent), f"no agent runs on {self.name}"
        return self.process

    def see(self, text: str) -> None:
        self.world.see(self.name, text)


class Agent(SimulatedProcess):
    """The agent's process, and what can be seen of it."""

    def __init__(self, host: Host, node: str) -> None:
        super().__init__(host, node)
        self._here = host
        self.observer = self._witness = Witness(self, host)
        self.spawner = self.below = Below(self, host)

    def _ports(self) -> Ports:
        ports = super()._ports()
        ports.instance = lambda: self._here.lives
        return ports

    def _say(self, text: str) -> None:
        if not self._witness.has_seen(text):
            self._here.see(text)

    def _finished(self, outcome: Outcome) -> None:
        for text in ending(outcome):
            self._here.see(text)
        super()._finished(outcome)


class Witness(Observer):
    """Sees what the coordinator decides, where that is on this host."""

    def __init__(self, agent: Agent, host: Host) -> None:
        super().__init__(agent)
        self._here, self._world = host, host.world
        self._explained: list[Explain] = []

    def began(self, at: float, beginning: Beginning) -> None:
        self._world.see("coordinator", begins(self._here.name, beginning))

    def taken(self, at: float, liveness: Coordinator) -> None:
        is_mute = self._election is not None and not may_speak(self._election, at)
        for taken in liveness.taken:
            for text in step_in_words(taken, is_mute):
                self._world.see("coordinator", text)
            self._explained += [one for one in taken.effects if isinstance(one, Explain)]
        super().taken(at, liveness)

    def has_seen(self, text: str) -> bool:
        """Whether this is what the coordinator explains, on the screen of its host."""
        for one in self._explained:
            if text in (one.text, on_itself(one.text, one.about, one.about)):
                self._explained.remove(one)
                return True
        return False


class Below(SimulatedSpawner):
    """The spawner and its workers: what they are told, and what a story has them do."""

    def __init__(self, agent: Agent, host: Host) -> None:
        super().__init__(agent)
        self._here = host

    @property
    def running(self) -> list[SimulatedWorker]:
        return [worker for worker in self.workers if worker.executes]

    def do(self, effect: NodeEffect) -> None:
        config = self._here.config
        match effect:
            case ReserveEndpoint() if config.master_address and config.master_port:
                master = Endpoint(config.master_address, config.master_port)
                self._tell(EndpointReserved(master))
                return
            case StartWorkers():
                count, master = workers(len(effect.local_ranks)), effect.assignment.master
                self._here.see(f"starts {count}, the master is {master}")
            case SignalWorkers():
                count = workers(len(effect.local_ranks))
                self._here.see(f"sends {signal_name(effect.signal)} to {count}")
            case KillEverything() | EndSpawner() if self.running:
                self._here.see(f"kills {workers(len(self.running))}")
        super().do(effect)

    def _run_out(self) -> None:
        if not self.ran_out:
            count = workers(len(self.running))
            self._here.see(f"its spawner sends SIGTERM to {count}: the lease runs out")
        super()._run_out()

    def check_lease(self) -> None:
        count = len(self.running)
        super().check_lease()
        if count and not self.running:
            self._here.see(f"its spawner kills {workers(count)}: the lease is over")

    # What a story has workers do.

    def exit(self, local_rank: int, status: ExitStatus, error: str = "") -> None:
        (worker,) = [one for one in self.running if one.local_rank == local_rank]
        self._ends(worker, "failed", status, ErrorDetail(error))

    def finish(self) -> None:
        for worker in self.running:
            self.succeed(worker)

    def step(self, number: int) -> None:
        self._tell(StepReported(self.running[0].round, 0, number))
