"""One node of a job, with both machines of the core on it and everything around them imagined.

A `Node` is driven from outside: at any moment it can say what can happen next, and a test
picks. What is said between agent and coordinator, and between agent and spawner, stays in
order and takes as long as the test likes; a timer may fire late, or once more.

Three kinds of happenings:

    by itself   happens sooner or later if nothing else does
    by chance   may happen again and again, or never (`CHANCES`)
    blows       end a story: a signal, the loss of the launcher or the spawner (`BLOWS`)
"""

from __future__ import annotations

import signal
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from typing import NamedTuple, cast

from holdfast.core import coordinator
from holdfast.core import node as agent
from holdfast.core.coordinator import begin
from holdfast.core.coordinator_io import (
    CoordinatorEffect,
    CoordinatorEvent,
    CoordinatorTimerFired,
    Explain,
    Heard,
    Retire,
    Tell,
    WakeCoordinator,
    Write,
    Written,
)
from holdfast.core.features.of_node import new_node
from holdfast.core.node_io import (
    CloseRound,
    CoordinatorReached,
    Dial,
    EndpointReserved,
    EndSpawner,
    Finish,
    KillSpawner,
    LauncherLost,
    NodeEffect,
    NodeEvent,
    NodeTimerFired,
    Remember,
    Report,
    ReserveEndpoint,
    Say,
    SignalReceived,
    SpawnerEnded,
    SpawnerLost,
    StepReported,
    StoreFailed,
    Told,
    WakeNode,
)
from holdfast.core.policy.config import JobConfig
from holdfast.core.protocol.model import Endpoint, ErrorDetail, ExitStatus, Outcome

from .imaginary_spawner import NOTHING_SAID, Process, Spawner, Worker

NODE = "here-1"
LOST_PEER = ErrorDetail("RuntimeError: Connection closed by peer")
ENDS = {
    "raises": (ExitStatus(code=1), ErrorDetail("ValueError: no")),
    "loses a peer": (ExitStatus(code=1), LOST_PEER),
    "sees no point": (ExitStatus(code=1), ErrorDetail("Wrong: data", non_retryable=True)),
    "ends with 3": (ExitStatus(code=3), NOTHING_SAID),
    "is killed": (ExitStatus(signal=9), NOTHING_SAID),
    "crashes": (ExitStatus(signal=11), NOTHING_SAID),
}

Timer = NodeTimerFired | CoordinatorTimerFired


class Possibility(NamedTuple):
    """Something that can happen now."""

    what: str
    happen: Callable[[], None]


class Node:
    """The state of the node and of everything that is under way on it."""

    def __init__(self, config: JobConfig, tick_s: float = 0.001) -> None:
        self.config = config
        self.now = 1000.0
        self.tick_s = tick_s
        self.agent = new_node(config, NODE, "here")
        self.coordinator = begin(config)
        self.spawner = Spawner()
        self.to_coordinator: deque[Heard] = deque()
        self.to_agent: deque[Told] = deque()
        self.unwritten: int | None = None
        """The version of the record that is being written."""
        self.timers: dict[str, tuple[float, Timer]] = {}
        self.timers_once_set: dict[str, Timer] = {}
        self.held: Endpoint | None = None
        """The endpoint that is reserved for the next round's master."""
        self.asked_to_end = False
        self.signals: list[int] = []
        self.launcher_lost = self.store_lost = False
        self.finished: Outcome | None = None
        self.failures = ENDS
        """How a worker may fail, by chance."""
        self.story: list[str] = []

    def happen(self, possibility: Possibility) -> None:
        self.story.append(possibility.what)
        possibility.happen()

    # By itself.

    def next_by_itself(self) -> Iterator[Possibility]:
        spawner = self.spawner
        if self.to_coordinator:
            heard = _name(self.to_coordinator[0].message)
            yield Possibility(f"the coordinator hears {heard}", self.hear)
        if self.unwritten is not None:
            yield Possibility("the record is written", self.write)
        if self.to_agent:
            told = _name(self.to_agent[0].message)
            yield Possibility(f"the agent is told {told}", self.tell)
        if spawner.answers and not spawner.silent:
            yield Possibility(f"the agent learns {_name(spawner.answers[0])}", self.learn)
        if spawner.serving:
            yield from self._next_below()

    def _next_below(self) -> Iterator[Possibility]:
        spawner = self.spawner
        if spawner.requests:
            yield Possibility(f"the spawner does {_name(spawner.requests[0])}", spawner.serve)
        if spawner.zygote is not None and not spawner.zygote_hangs:
            if not spawner.zygote_ready:
                yield Possibility("the zygote is ready", spawner.finish_preload)
            elif spawner.unforked:
                yield Possibility(f"the zygote forks {spawner.unforked[0]}", spawner.fork)
        for worker, process in spawner.alive.items():
            if process.killed and not process.stuck:
                yield self._exit(worker, "dies", ExitStatus(signal=9))
            elif process.signalled and not process.stubborn and not process.stuck:
                yield self._exit(worker, "stops", ExitStatus(signal=15))

    def next_timer(self) -> Iterator[Possibility]:
        """The one that is due first."""
        if self.timers:
            name = min(self.timers, key=lambda name: self.timers[name][0])
            yield Possibility(f"timer {name}", partial(self.fire, name))

    def _exit(
        self, worker: Worker, how: str, status: ExitStatus, error: ErrorDetail = NOTHING_SAID
    ) -> Possibility:
        return Possibility(f"{worker} {how}", partial(self.spawner.exit, worker, status, error))

    # By chance.

    def chance_of_success(self) -> Iterator[Possibility]:
        for worker, process in self._workers():
            if not process.stuck:
                yield self._exit(worker, "succeeds", ExitStatus(code=0))

    def chance_of_failure(self) -> Iterator[Possibility]:
        for worker, process in self._workers():
            for how, (status, error) in self.failures.items():
                if not process.stuck:
                    yield self._exit(worker, how, status, error)

    def chance_of_stubbornness(self) -> Iterator[Possibility]:
        for worker, process in self._workers():
            if not process.stubborn:
                yield Possibility(f"{worker} is stubborn", partial(_turn, process, "stubborn"))

    def chance_of_getting_stuck(self) -> Iterator[Possibility]:
        for worker, process in self._workers():
            change = "comes loose" if process.stuck else "is stuck"
            yield Possibility(f"{worker} {change}", partial(_turn, process, "stuck"))

    def chance_of_steps(self) -> Iterator[Possibility]:
        for worker, _ in self._workers():
            reported = StepReported(*worker, step=len(self.story))
            yield Possibility(f"{worker} reports a step", partial(self.take, reported))

    def chance_of_odd_starts(self) -> Iterator[Possibility]:
        spawner = self.spawner
        worker = spawner.newest()
        if worker is None or not spawner.serving:
            return
        yield Possibility(f"{worker} cannot be made", partial(spawner.take_back_start, worker))
        if spawner.zygote is None:  # What a zygote forked is always told of before its loss.
            yield Possibility(f"{worker} is told of late", partial(spawner.announce_late, worker))

    def chance_of_zygote_trouble(self) -> Iterator[Possibility]:
        spawner = self.spawner
        if spawner.zygote is None or not spawner.serving:
            return
        yield Possibility("the zygote dies", spawner.lose_zygote)
        if not spawner.zygote_hangs:
            yield Possibility("the zygote hangs", partial(_turn, spawner, "zygote_hangs"))
        for module in () if spawner.zygote_ready else spawner.zygote:
            yield Possibility(f"the zygote rejects {module}", partial(spawner.reject, module))

    def chance_of_store_trouble(self) -> Iterator[Possibility]:
        if self._workers() and not self.store_lost:
            yield Possibility("the store is lost", self.lose_store)

    def chance_of_timers(self) -> Iterator[Possibility]:
        """Any that is set, in any order."""
        for name in self.timers:
            yield Possibility(f"timer {name}", partial(self.fire, name))

    def chance_of_late_timers(self) -> Iterator[Possibility]:
        """Any that has ever been set, once more."""
        for name, event in self.timers_once_set.items():
            yield Possibility(f"timer {name}, late", partial(self.take, event))

    def _workers(self) -> list[tuple[Worker, Process]]:
        """Those whose fate the agent would hear of."""
        return list(self.spawner.alive.items()) if self.spawner.serving else []

    # Blows.

    def blow_of_signal(self) -> Iterator[Possibility]:
        for number in (signal.SIGTERM, signal.SIGINT) if len(self.signals) < 2 else ():
            yield Possibility(number.name, partial(self.signal, number))

    def blow_of_losing_the_launcher(self) -> Iterator[Possibility]:
        if not self.launcher_lost:
            yield Possibility("the launcher is gone", self.lose_launcher)

    def blow_of_losing_the_spawner(self) -> Iterator[Possibility]:
        if not self.spawner.ended:
            yield Possibility("the spawner is killed", self.lose_spawner)

    def blow_of_silence(self) -> Iterator[Possibility]:
        if self.spawner.serving:
            yield Possibility("the spawner falls silent", partial(_turn, self.spawner, "silent"))

    # How it happens.

    def hear(self) -> None:
        self.take(self.to_coordinator.popleft())

    def write(self) -> None:
        version, self.unwritten = self.unwritten, None
        assert version is not None
        self.take(Written(version))

    def tell(self) -> None:
        self.take(self.to_agent.popleft())

    def learn(self) -> None:
        self.take(self.spawner.answers.popleft())

    def fire(self, name: str) -> None:
        due, event = self.timers.pop(name)
        if self.tick_s:
            self.now = max(self.now, due)
        self.take(event)

    def signal(self, number: int) -> None:
        self.signals.append(number)
        self.take(SignalReceived(number))

    def lose_store(self) -> None:
        self.store_lost = True
        self.take(StoreFailed("ended with exit code 1"))

    def lose_launcher(self) -> None:
        self.launcher_lost = True
        self.take(LauncherLost())

    def lose_spawner(self) -> None:
        """SIGKILL takes a spawner too, whether it serves or not."""
        if not self.spawner.ended:
            self.spawner.end(SpawnerEnded() if self.asked_to_end else SpawnerLost("was killed"))

    # The two machines.

    def take(self, event: NodeEvent | CoordinatorEvent) -> None:
        """Let the machine that an event is meant for take it, and do what it says."""
        self.now += self.tick_s
        if isinstance(event, Heard | Written | CoordinatorTimerFired):
            decided = coordinator.step(self.coordinator, event, self.now)
            self.on_coordinator_step(event, decided)
            for one in decided:
                self._coordinate(one)
            return
        own = cast(NodeEvent, event)
        effects = agent.step(self.agent, own, self.now)
        self.on_agent_step(own, effects)
        for effect in effects:
            self._carry_out(effect)
        # Nothing comes between: these take no time.
        if any(isinstance(effect, Dial) for effect in effects):
            self.take(CoordinatorReached(hosting=True))
        if any(isinstance(effect, ReserveEndpoint) for effect in effects) and self.held:
            self.take(EndpointReserved(self.held))

    def on_agent_step(self, event: NodeEvent, effects: list[NodeEffect]) -> None:
        """For those who watch."""

    def on_coordinator_step(
        self, event: CoordinatorEvent, effects: list[CoordinatorEffect]
    ) -> None:
        """For those who watch."""

    def _coordinate(self, effect: CoordinatorEffect) -> None:
        match effect:
            case Tell():
                self.to_agent.append(Told(effect.message))
            case WakeCoordinator():
                self._wake(effect.name, effect.after_s, CoordinatorTimerFired(effect.name))
            case Write():
                self.unwritten = effect.version
            case Explain() | Retire():
                pass
            case _:
                raise AssertionError(f"one node is nobody's rival: {effect}")

    def _carry_out(self, effect: NodeEffect) -> None:
        match effect:
            case Report():
                self.to_coordinator.append(Heard(NODE, effect.message))
            case WakeNode():
                self._wake(effect.name, effect.after_s, NodeTimerFired(effect.name))
            case ReserveEndpoint():
                port = 29500 if self.held is None else self.held.port + 1
                self.held = Endpoint("127.0.0.1", port, serves_store=effect.store)
            case Say() | Dial() | Remember() | CloseRound():
                pass
            case Finish():
                self.finished = effect.outcome
            case KillSpawner():
                self.lose_spawner()
            case _:
                self.asked_to_end |= isinstance(effect, EndSpawner)
                if not self.spawner.ended:
                    self.spawner.requests.append(effect)

    def _wake(self, name: str, after_s: float, event: Timer) -> None:
        self.timers[name] = (self.now + after_s, event)
        self.timers_once_set[name] = event


def _turn(thing: Process | Spawner, habit: str) -> None:
    setattr(thing, habit, not getattr(thing, habit))


def _name(record: object) -> str:
    return type(record).__name__


def _kinds(prefix: str) -> tuple[str, ...]:
    return tuple(name for name in vars(Node) if name.startswith(prefix))


CHANCES = _kinds("chance_of_")
BLOWS = _kinds("blow_of_")
