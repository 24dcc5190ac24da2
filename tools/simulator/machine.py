"""A simulated host: its clock, its disk, whether it runs, and what runs on it.

A host that crashes says nothing to anybody; one that is paused freezes everything on it, and
when it goes on, the deadlines that its spawners hold come first.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec
from tools.simulator.liveness_locks import DISK_S
from tools.simulator.plan import HostPlan
from tools.simulator.process import SimulatedProcess
from tools.simulator.timeline import HostClock

from holdfast.core.policy.liveness_locks import LockRecord

if TYPE_CHECKING:
    from tools.simulator.cluster import Cluster


class Machine:
    """A host: its clock, its disk, and whether it runs."""

    def __init__(self, cluster: Cluster, number: int, plan: HostPlan) -> None:
        self.cluster = cluster
        self.number = number
        self.name = f"host{number}"
        self.plan = plan
        self.clock = HostClock(cluster.timeline, plan.clock_offset_s, plan.clock_rate)
        self.up = True
        self.boots = 0
        self.away_until = 0.0
        self.paused = 0
        self.agent_paused = 0
        self.slow_start = 0
        self.slow_stop = 0
        self.slow_spawner = 0
        self.slow_record = 0
        self.lives = 0
        self.pids = 1000 * number
        self.ports = 30000
        self.process: SimulatedProcess | None = None
        self.older: list[SimulatedProcess] = []
        """Processes whose agent is dead, while something of them may be left."""
        self.disk: Any = None
        self.notes: dict[str, LockRecord] = {}
        """Of the nodes that were here, on its disk."""
        self._deferred: deque[tuple[Callable[..., None], tuple[Any, ...]]] = deque()
        self.config = msgspec.structs.replace(cluster.plan.config, slots=plan.slots, role=plan.role)

    # What processes on it do, in their own time.

    def after(self, delay_s: float, happen: Callable[..., None], *arguments: Any) -> None:
        self.cluster.timeline.after(delay_s, self._happen, self.boots, happen, arguments)

    def _happen(self, boot: int, happen: Callable[..., None], arguments: tuple[Any, ...]) -> None:
        if boot != self.boots or not self.up:
            return
        if self.paused:
            self._deferred.append((happen, arguments))
        else:
            happen(*arguments)

    def start_delay(self) -> float:
        most_s = 2.5 if self.slow_start else 0.1
        return 0.005 + most_s * self.cluster.random.random()

    def stop_delay(self) -> float | None:
        """How long a worker takes to end when asked to; None: it does not."""
        random = self.cluster.random
        if self.slow_stop:
            return None if random.random() < 0.5 else 1.2 * random.random()
        return 0.005 + 0.05 * random.random()

    def kill_delay(self) -> float:
        """Until everything below a dead agent is killed: mostly at once, never beyond K."""
        random = self.cluster.random
        most_s = 0.9 * self.config.leases.kill_margin_s
        return most_s * random.random() if random.random() < 0.3 else 0.005 * random.random()

    def has_of(self, node: str) -> bool:
        """Whether anything of that node is left here."""
        return any(process.node == node and process.is_left for process in self.processes())

    def freed(self) -> None:
        """Nothing is left of a node that was here; whoever waits for that is told."""
        if self.process is not None:
            self.after(DISK_S, self.process.post, self.process.spawner.notes.look)

    # Its life.

    def start_agent(self) -> None:
        if not self.up or (self.process is not None and self.process.alive):
            return
        self.lives += 1
        self.agent_paused = 0
        self.process = self.new_process(f"{self.name}-{self.lives}")
        self.process.begin()

    def new_process(self, node: str) -> SimulatedProcess:
        return SimulatedProcess(self, node)

    def crash(self) -> None:
        """Power off: nobody is told."""
        for process in self.processes():
            process.vanish()
        self.up = False
        self.boots += 1
        self.paused = self.agent_paused = 0
        self._deferred.clear()

    def boot(self) -> None:
        self.up = True

    def processes(self) -> list[SimulatedProcess]:
        return [*self.older, self.process] if self.process is not None else [*self.older]

    def pause(self) -> None:
        self.paused += 1
        if self.paused == 1:
            for process in self.processes():
                process.spawner.suspend()

    def resume(self) -> None:
        if not self.paused:
            return
        self.paused -= 1
        if self.paused:
            return
        for process in self.processes():
            process.spawner.resume()
        deferred, self._deferred = self._deferred, deque()
        for happen, arguments in deferred:
            happen(*arguments)
        if self.process is not None:
            self.process.wake()

    def pause_agent(self) -> None:
        self.agent_paused += 1

    def resume_agent(self) -> None:
        if self.agent_paused:
            self.agent_paused -= 1
            if not self.agent_paused and self.process is not None:
                self.process.wake()
