"""A host of a story: its agent, its spawner, and whatever runs below it.

The agent is the real core. The spawner keeps the promises of the real one: it stops workers
when it is told to, and by itself when the lease runs out, whether or not the agent is awake.
"""

from __future__ import annotations

import signal
from functools import partial
from typing import TYPE_CHECKING

from msgspec.structs import replace

from holdfast.core import agent
from holdfast.core.agent_io import (
    AgentEffect,
    AgentEvent,
    AgentStarted,
    AgentTimerFired,
    AllGone,
    ClosingAsked,
    CoordinatorLost,
    CoordinatorReached,
    Dial,
    EndpointReserved,
    EndSpawner,
    Finish,
    HangUp,
    HoldLease,
    KillEverything,
    LeaseRanOut,
    Released,
    Report,
    ReserveEndpoint,
    Say,
    SignalReceived,
    SignalWorkers,
    SpawnerEnded,
    StartWorkers,
    StepReported,
    Told,
    WakeAgent,
    WorkerExited,
    WorkerStarted,
)
from holdfast.core.agent_state import AgentState
from holdfast.core.model import Endpoint, ErrorDetail, ExitStatus, Outcome, signal_name

from .chair import Chair
from .node_wording import ending, workers
from .world import Happening, Link, World

if TYPE_CHECKING:
    from .stage import Command

DIAL_TIMEOUT_S = 4.0
KILLED = ExitStatus(signal=9)
NOTHING_SAID = ErrorDetail()


class Host:
    """One machine. Each start of an agent on it is a new life, and a new node."""

    def __init__(self, world: World, name: str) -> None:
        self.world, self.name = world, name
        self.life = 0
        self.up = self.paused = self.cut_off = False
        self.clock_ahead_s = 0.0
        self.stop_s = 0.0
        """How long workers take to end when they are asked to."""
        self.port = 29500
        self.state: AgentState | None = None
        self.chair = Chair(self)
        self.link: Link | None = None
        self.hosting = False
        self.dials = 0
        self.ringing = 0
        self.round = 0
        self.alive: dict[int, int] = {}
        """The pids of the workers that run, by local rank."""
        self._leases = 0
        self._timers: dict[str, int] = {}
        self._waiting: list[Happening] = []
        self._late: list[Happening] = []

    @property
    def node(self) -> str:
        return f"{self.name}-{self.life}"

    def clock(self) -> float:
        return self.world.now + self.clock_ahead_s

    def note(self, text: str) -> None:
        self.world.note(self.name, text)

    # Its life.

    def start(self, command: Command) -> None:
        config = self.world.config
        assert config is not None, "a story of several nodes begins with `job`"
        self.life += 1
        self.up = True
        self.clock_ahead_s = command.number("clock", 0.0)
        self.stop_s = command.number("stop", 0.0)
        hint = command.settings.get("rank")
        own = replace(
            config,
            slots=int(command.number("slots", config.slots)),
            role=command.settings.get("role", config.role),
            node_rank=None if hint is None else int(hint),
        )
        self.state = AgentState(own, self.node, self.name)
        if command.settings.get("record") == "lost":
            self.chair.record = None
        self.chair.begin()
        self.take(AgentStarted(cold="not wanted"))

    def run(self, happen: Happening, *, timer: bool = False) -> None:
        """Let the agent's process do something; a paused one does it when it wakes up."""
        if not self.up:
            return
        if self.paused:
            (self._late if timer else self._waiting).append(happen)
        else:
            happen()

    def pause(self) -> None:
        self.paused = True

    def resume(self) -> None:
        """First all that has come, then the timers that should have fired."""
        self.paused = False
        for queue in (self._waiting, self._late):
            pending = list(queue)
            queue.clear()
            for happen in pending:
                self.world.soon(partial(self.run, happen))

    def die(self, *, silently: bool = False) -> None:
        """All processes end at once; without power nobody is told."""
        link, self.link = self.link, None
        self.hosting = False
        self.alive.clear()
        self._timers.clear()
        self._waiting.clear()
        self._late.clear()
        self.chair.die(silently)
        if link is not None and not silently:
            link.node_died()
        self.up = self.paused = False
        self.state = None

    # The agent.

    def post(self, event: AgentEvent) -> None:
        life = self.life
        self.world.soon(lambda: (self.life == life and self.run(partial(self.take, event))) or None)

    def take(self, event: AgentEvent) -> None:
        if self.state is not None:
            for effect in agent.step(self.state, event, self.clock()):
                self._carry_out(effect)

    def told(self, told: Told) -> None:
        self.chair.overheard(told)
        self.take(told)

    def _carry_out(self, effect: AgentEffect) -> None:
        match effect:
            case Say():
                self.note(effect.text)
            case Report():
                self._report(effect)
            case WakeAgent():
                self.wake(effect.name, effect.after_s, partial(self._fire, effect.name))
            case ReserveEndpoint():
                self.port += 1
                self.post(EndpointReserved(self._endpoint()))
            case Dial():
                self._dial()
            case HangUp():
                link, self.link = self.link, None
                if link is not None:
                    link.hang_up()
            case Finish():
                self._finish(effect)
            case _:
                self._spawner(effect)

    def _endpoint(self) -> Endpoint:
        """Its own, unless the job has a master that was given."""
        config = self.world.config
        if config is None or config.master_port is None:
            return Endpoint(self.name, self.port)
        return Endpoint(config.master_address or self.name, config.master_port)

    def _fire(self, name: str) -> None:
        self.take(AgentTimerFired(name))

    def wake(self, name: str, after_s: float, happen: Happening) -> None:
        number = self._timers[name] = self._timers.get(name, 0) + 1
        life = self.life

        def fire() -> None:
            if self.life == life and self._timers.get(name) == number:
                self.run(happen, timer=True)

        self.world.at(self.world.now + after_s, fire)

    def signal(self, number: int) -> None:
        self.post(SignalReceived(number))

    def close(self, *, release: bool) -> None:
        """Whoever runs the workers wants no further round, and may have no use for the node."""
        self.post(ClosingAsked(Outcome("failed", f"{self.name} has closed the job", 1)))
        if release:
            self.post(Released())

    def _finish(self, effect: Finish) -> None:
        for text in ending(effect.outcome):
            self.note(text)
        self.state = None
        self.end_if_done()

    def end_if_done(self) -> None:
        """The process of a coordinator's host stays until everybody knows the outcome."""
        if self.state is None and self.up and not self.chair.needed:
            self.world.soon(lambda: self.die() if self.up and self.state is None else None)

    # The way to the coordinator.

    def _report(self, effect: Report) -> None:
        message, node = effect.message, self.node
        if self.hosting:
            self.world.soon(lambda: self.run(lambda: self.chair.hear(node, message)))
        elif self.link is not None:
            self.link.tell_server(message)

    def _dial(self) -> None:
        self.dials += 1
        attempt = self.dials
        self.chair.find()
        self.wake("dialling", DIAL_TIMEOUT_S, lambda: self._no_answer(attempt, "no answer"))

    def _no_answer(self, attempt: int, reason: str) -> None:
        if self.dials == attempt and self.link is None and not self.hosting:
            self.dials += 1
            self.take(CoordinatorLost(reason))

    def call(self, names: list[str]) -> None:
        """Dial those hosts, all at once."""
        self.ringing = len(names)
        for name in names:
            self._ring(name)

    def _ring(self, name: str) -> None:
        there, attempt = self.world.hosts.get(name), self.dials
        if there is None or not there.up or not self.world.reaches(self, there):
            why = f"{name} does not answer"
            self.world.soon(lambda: self.run(lambda: self._in_vain(attempt, why)))
            return
        self.world.soon(lambda: there.run(lambda: self._answered(there, attempt)))

    def _in_vain(self, attempt: int, why: str) -> None:
        if self.dials == attempt:
            self.ringing -= 1
            if self.ringing == 0:
                self._no_answer(attempt, why)

    def found_nobody(self, why: str) -> None:
        self._no_answer(self.dials, why)

    def _answered(self, there: Host, attempt: int) -> None:
        if not there.chair.taken:
            why = f"{there.name} is not the coordinator"
            self.run(lambda: self._in_vain(attempt, why))
        elif self.dials == attempt and self.up and self.link is None:
            self.link = Link(self.world, self, there)
            there.chair.links.append(self.link)
            self.post(CoordinatorReached())

    def reached_own(self) -> None:
        if self.link is not None:
            self.link.hang_up()
            self.link = None
        self.hosting = True
        self.post(CoordinatorReached(hosting=True))

    def link_lost(self, link: Link, reason: str) -> None:
        if self.link is link:
            self.link = None
            self.take(CoordinatorLost(reason))

    # The spawner.

    def _spawner(self, effect: AgentEffect) -> None:
        match effect:
            case StartWorkers():
                self._start(effect)
            case SignalWorkers():
                signalled = f"{signal_name(effect.signal)} to {workers(len(effect.local_ranks))}"
                self.note(f"sends {signalled}")
                self._ask_to_end(effect.signal)
            case KillEverything() | EndSpawner():
                if self.alive:
                    self.note(f"kills {workers(len(self.alive))}")
                self._kill()
                self.post(AllGone() if isinstance(effect, KillEverything) else SpawnerEnded())
            case HoldLease():
                self._hold(effect)
            case _:
                raise AssertionError(f"no story was thought to need this: {effect}")

    def _start(self, effect: StartWorkers) -> None:
        self.round = effect.assignment.round
        first = effect.assignment.workers[0].rank
        master = effect.assignment.master
        self.note(f"starts {workers(len(effect.local_ranks))}, the master is {master}")
        for local_rank in effect.local_ranks:
            pid = 1000 * self.round + first + local_rank
            self.alive[local_rank] = pid
            self.post(WorkerStarted(self.round, local_rank, pid))

    def exit(self, local_rank: int, status: ExitStatus, error: ErrorDetail = NOTHING_SAID) -> None:
        pid = self.alive.pop(local_rank, None)
        if pid is not None:
            self.post(WorkerExited(self.round, local_rank, pid, status, error=error))

    def step(self, number: int) -> None:
        self.post(StepReported(self.round, 0, number))

    def _ask_to_end(self, number: int) -> None:
        for local_rank, pid in list(self.alive.items()):
            end = partial(self._end, local_rank, pid, ExitStatus(signal=number))
            self.world.at(self.world.now + self.stop_s, end)

    def _end(self, local_rank: int, pid: int, status: ExitStatus) -> None:
        if self.alive.get(local_rank) == pid:
            self.exit(local_rank, status)

    def _kill(self) -> None:
        for local_rank in list(self.alive):
            self.exit(local_rank, KILLED)

    def _hold(self, effect: HoldLease) -> None:
        """Nobody has to be awake for this but the spawner."""
        self._leases += 1
        held, life = self._leases, self.life

        def due(happen: Happening) -> Happening:
            return lambda: happen() if (self._leases, self.life) == (held, life) else None

        self.world.at(effect.stop_at - self.clock_ahead_s, due(self._lease_ends))
        self.world.at(effect.kill_at - self.clock_ahead_s, due(self._lease_ended))

    def _lease_ends(self) -> None:
        if self.alive:
            text = f"its spawner sends SIGTERM to {workers(len(self.alive))}: the lease runs out"
            self.note(text)
            self.post(LeaseRanOut())
            self._ask_to_end(signal.SIGTERM)

    def _lease_ended(self) -> None:
        if self.alive:
            self.note(f"its spawner kills {workers(len(self.alive))}: the lease is over")
            self._kill()
