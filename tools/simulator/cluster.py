"""A whole cluster in virtual time: run a plan, and write down what happened.

A run has three parts. While the faults last, only safety is demanded. Then everything is
healed, and within a bound that follows from the configuration the job has to run with as many
nodes as it may have, or to have ended for a reason that the checkers accept. Then the workers
finish, and every agent has to end with the same outcome.
"""

from __future__ import annotations

from pathlib import Path
from random import Random

from msgspec import Struct
from msgspec.structs import replace
from tools.simulator import faults
from tools.simulator.checkers import check, quarantined
from tools.simulator.facts import Fact, Healed, History, Late, Recorded, Violation
from tools.simulator.lockstep import Lockstep
from tools.simulator.machine import Machine
from tools.simulator.network import ClusterNetwork
from tools.simulator.plan import LEADER, Plan
from tools.simulator.process import SimulatedProcess
from tools.simulator.register import ClusterRegister
from tools.simulator.spawner import LOST_PEER, SimulatedSpawner, SimulatedWorker
from tools.simulator.timeline import Storm, Timeline
from tools.simulator.turns import StruckDead

from holdfast.core.protocol.model import Outcome

LOOK_EVERY_S = 0.5
STEADY_LOOKS = 4


class Run(Struct):
    """What came of a plan."""

    plan: Plan
    history: History
    violations: list[Violation]
    story: list[str]
    virtual_s: float
    points: list[float]
    """When each point of the protocol was reached at which a leader may be struck."""


class Cluster:
    """All hosts, and what lies between them."""

    def __init__(
        self,
        plan: Plan,
        with_story: bool,
        random: Random | None = None,
        journals: Path | None = None,
    ) -> None:
        """`random` decides what the plan leaves open; by default its seed does.

        Every agent writes its journal into the folder of `journals`, if there is one.
        """
        self.plan, self.journals = plan, journals
        self.random = random or Random(plan.seed)
        self.timeline = Timeline()
        self.network = ClusterNetwork(self.timeline, self.random)
        leases = plan.config.leases
        self.register = ClusterRegister(self.timeline, self.random, leases, plan.register)
        self.history: History = []
        self.story: list[str] | None = [] if with_story else None
        self.steps = 0
        self.lockstep = Lockstep()
        self.pace = Random(f"pace {plan.seed}") if random is None else random
        """When workers look whether they are to save: apart, so that it disturbs nothing else."""
        self.points: list[float] = []
        """When each point of the protocol was reached at which a leader may be struck."""
        self.finishing = False
        self.healed = False
        self.outcome: Outcome | None = None
        """That of the job, once it is written down."""
        self.mid_word: dict[int, float] = {}
        self.deaf_to_hang: set[int] = set()
        self.machines = [Machine(self, number, host) for number, host in enumerate(plan.hosts)]
        for machine in self.machines:
            self.timeline.at(machine.plan.start_at, machine.start_agent)
        for fault in plan.faults:
            self.timeline.at(fault.at, faults.strike, self, fault)

    # What others ask.

    def note(self, fact: Fact) -> None:
        self.history.append(fact)
        if isinstance(fact, Recorded):
            outcome = fact.document.ledger.outcome
            self.outcome = outcome if outcome is not None or fact.blank else self.outcome

    def tell_story(self, machine: Machine, text: str) -> None:
        if self.story is not None:
            self.story.append(f"{self.timeline.now:9.3f}  {machine.name:>7}  {text}")

    def host_of(self, node: str) -> int:
        """Of a node, or of a host, by its name."""
        return int(node.removeprefix("host").partition("-")[0])

    def leader(self) -> Machine | None:
        """Whoever coordinates under the highest term."""
        found, highest = None, None
        for machine in self.machines:
            process = machine.process
            liveness = process.liveness if process is not None else None
            if liveness is not None and (highest is None or liveness.state.term > highest):
                found, highest = machine, liveness.state.term
        return found

    def target(self, host: int) -> Machine | None:
        return self.leader() if host == LEADER else self.machines[host]

    def reached_point(self, process: SimulatedProcess) -> float:
        """A process that leads is about to say, ask or take in something.

        Returns for how long it sleeps, if that is what strikes it.
        """
        self.points.append(self.timeline.now)
        strike = self.plan.strike
        if strike is not None and strike.point == len(self.points):
            faults.strike(self, replace(strike.fault, at=self.timeline.now, host=process.host))
        if not process.alive:
            raise StruckDead
        if strike is None:
            return 0.0
        return min(strike.fault.lasts_s, max(self.plan.heal_at - self.timeline.now, 0.0))

    def is_outcome_of_the_job(self, outcome: Outcome) -> bool:
        return self.outcome is not None and self.outcome.verdict == outcome.verdict

    def pause_mid_word(self, process: SimulatedProcess) -> float:
        """A leader falls asleep between what it has decided and what it says of it."""
        machine = process.machine
        # When everything is healed it wakes up, whatever is left of it.
        lasts_s = min(self.mid_word.pop(process.host), self.plan.heal_at - self.timeline.now)
        if lasts_s <= 0:
            return 0.0
        machine.pause_agent()
        text = f"the agent is paused in the middle of what it does, for {lasts_s:.1f} s"
        self.tell_story(machine, text)
        self.timeline.after(lasts_s, machine.resume_agent)
        return lasts_s

    # The users' program.

    def workers(self, round: int) -> list[tuple[SimulatedSpawner, SimulatedWorker]]:
        return [
            (process.spawner, worker)
            for machine in self.machines
            for process in machine.processes()
            for worker in process.spawner.workers
            if worker.round == round and worker.executes
        ]

    def running_round(self) -> int:
        return max(
            (
                worker.round
                for machine in self.machines
                for process in machine.processes()
                for worker in process.spawner.workers
                if worker.executes
            ),
            default=0,
        )

    def whole(self, round: int) -> bool:
        """Whether every worker of the round runs."""
        running = self.workers(round)
        if not running:
            return False
        assignment = running[0][0].process.state.assignment
        return assignment is not None and len(running) == assignment.world_size

    def peer_lost(self, spawner: SimulatedSpawner, lost: SimulatedWorker) -> None:
        """Peers of a worker that is gone fail for it, or hang."""
        if not self.plan.victims:
            return
        for there, worker in self.workers(lost.round):
            if self.random.random() < 0.7:
                delay_s = 0.02 + 0.4 * self.random.random()
                there.machine.after(delay_s, self._victim, there, worker)

    def _victim(self, spawner: SimulatedSpawner, worker: SimulatedWorker) -> None:
        if spawner.alive and worker.executes and not worker.stopping:
            spawner.fail(worker, "victim", LOST_PEER)

    def finish(self) -> None:
        """From now on the program comes to its end."""
        if not self.finishing:
            self.finishing = True
            self._finish_some()

    def _finish_some(self) -> None:
        # It may begin anew after its outcome, when the register forgets that: look again later.
        round = self.running_round() if self.outcome is None else 0
        if round and self.whole(round):
            for spawner, worker in self.workers(round):
                delay_s = 1.5 * self.random.random()
                spawner.machine.after(delay_s, spawner.succeed, worker)
        self.timeline.after(2.0, self._finish_some)

    # After the faults.

    def heal(self) -> None:
        self.healed = True
        self.note(Healed(self.timeline.now))
        faults.heal(self)

    def steady(self) -> bool:
        """As many nodes as the job may have run its newest round, all of them together."""
        round = self.running_round()
        if not round or not self.whole(round):
            return False
        running = self.workers(round)
        assignment = running[0][0].process.state.assignment
        assert assignment is not None
        # A round that comes to its end keeps those who are in it.
        fits = self.finishing or assignment.group_size <= self._limits()[1]
        return fits and assignment.group_size >= self._seats()

    def _seats(self) -> int:
        least, most = self._limits()
        if len({host.role for host in self.plan.hosts}) > 1:
            return least  # A seat may stay empty for want of a node of its role.
        if any(fault.kind in ("closing asked", "released") for fault in self.plan.faults):
            return least  # Whoever comes after that is not taken in any more.
        return min(most, max(len(self.machines) - self._quarantined(), least))

    def _limits(self) -> tuple[int, int]:
        """Between how many nodes the job may have now, as whoever leads knows it."""
        leader = self.leader()
        process = leader.process if leader is not None else None
        liveness = process.liveness if process is not None else None
        known = liveness.state if liveness is not None else self.plan.config
        return known.min_nodes, known.max_nodes

    def _quarantined(self) -> int:
        """How many hosts are not to take part now, as it is written down."""
        if not self.plan.config.quarantine.after:
            return 0
        written = (fact for fact in reversed(self.history) if isinstance(fact, Recorded))
        newest = next(written, None)
        return len(quarantined.hosts_out(newest.document)) if newest is not None else 0

    def processes(self) -> list[SimulatedProcess]:
        found = [machine.process for machine in self.machines]
        return [process for process in found if process is not None and process.alive]


def bound_s(plan: Plan) -> float:
    """Within which a healed job has to run: every wait that can come one after the other."""
    leases, times, restarts = plan.config.leases, plan.config.timeouts, plan.config.restarts
    leaderless = leases.takeover_s + 8 * 0.5 + 2 * leases.term_s + 4.0
    held = leases.hold_s * (1 + leases.drift) + leases.gone_after_s
    stopping = times.shutdown_s + 3 * times.unkillable_s + 5.0 + leases.gone_after_s
    forming = times.preload_s + 2 * restarts.backoff_max_s + times.min_round_max_s
    forming += times.last_call_s + times.scale_up_delay_s + max(times.drain_s, times.save_s)
    return leaderless + held + 2 * stopping + 2 * forming


def simulate(plan: Plan, *, story: bool = False, journals: Path | None = None) -> Run:
    """Run a plan to its end, and check what happened; with a folder, write the nodes' journals."""
    cluster = Cluster(plan, story, journals=journals)
    try:
        _play(cluster)
    except Storm as storm:
        cluster.note(Late(cluster.timeline.now, f"the run goes in circles: {storm}"))
    violations = check(plan, cluster.history)
    now, points = cluster.timeline.now, cluster.points
    return Run(plan, cluster.history, violations, cluster.story or [], now, points)


def _play(cluster: Cluster) -> None:
    plan = cluster.plan
    cluster.timeline.run_until(plan.heal_at)
    cluster.heal()
    if plan.enough_nodes:
        _demand_progress(cluster, plan.heal_at + bound_s(plan))
        cluster.finish()
    _demand_the_end(cluster)


def _demand_progress(cluster: Cluster, deadline: float) -> None:
    timeline, steady = cluster.timeline, 0
    while steady < STEADY_LOOKS and cluster.outcome is None:
        if timeline.now >= deadline:
            waited = bound_s(cluster.plan)
            cluster.note(Late(timeline.now, f"the job does not run {waited:.0f} s after healing"))
            return
        timeline.run_until(timeline.now + LOOK_EVERY_S)
        steady = steady + 1 if cluster.steady() else 0


def _demand_the_end(cluster: Cluster) -> None:
    timeline, times = cluster.timeline, cluster.plan.config.timeouts
    deadline = timeline.now + bound_s(cluster.plan) + times.join_s + times.close_s
    while cluster.processes():
        if timeline.now >= deadline:
            left = ", ".join(process.node for process in cluster.processes()[:5])
            cluster.note(Late(timeline.now, f"the agents of {left} have not ended"))
            return
        timeline.run_until(timeline.now + LOOK_EVERY_S)
