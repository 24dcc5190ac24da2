"""The two machines of the core together, on a node where anything may happen.

A `Node` plays the part of everything outside the core: a spawner that keeps the promises of
the real one (it answers in order, it reports what it reaps) and uses all of its freedom (it
may be slow, lose its zygote, die, or stop answering), the two links between agent and
coordinator (in order, as slow as they like), timers, and people who send signals. At any
moment several things can happen next; Hypothesis picks. When it has picked enough, the node
calms down: what was asked for is answered, and the job must come to its end.

Checked all the time: what `AgentWatch` and `CoordinatorWatch` say. Checked at the end:
that there is one, exactly one, and that its outcome is true.
"""

from __future__ import annotations

import signal
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from typing import NamedTuple

import hypothesis
from hypothesis import strategies as st
from msgspec import Struct, field

from holdfast.core import agent, coordinator
from holdfast.core.agent_io import (
    AgentEffect,
    AgentEvent,
    AgentStarted,
    AgentTimerFired,
    AllGone,
    DropZygote,
    EndpointReserved,
    EndSpawner,
    Finish,
    KillEverything,
    LauncherLost,
    ListStuck,
    ModuleRejected,
    ProcessesStuck,
    Report,
    ReserveEndpoint,
    Say,
    SignalReceived,
    SignalWorkers,
    SpawnerEnded,
    SpawnerLost,
    StartWorkers,
    StartZygote,
    StepReported,
    Told,
    WakeAgent,
    WorkerExited,
    WorkerStarted,
    ZygoteLost,
    ZygoteReady,
)
from holdfast.core.config import JobConfig, Program, RestartPolicy
from holdfast.core.coordinator import CoordinatorTimerFired, Explain, Heard, Tell, WakeCoordinator
from holdfast.core.messages import CloseJob, RunRound
from holdfast.core.model import Endpoint, ErrorDetail, ExitStatus, Outcome

NODE = "here-1"
ENOUGH_STEPS = 1000

ENDS = {
    "raises": (ExitStatus(code=1), ErrorDetail("ValueError: no")),
    "loses a peer": (ExitStatus(code=1), ErrorDetail("RuntimeError: Connection reset by peer")),
    "gives up": (ExitStatus(code=1), ErrorDetail("Wrong: data", non_retryable=True)),
    "ends with 3": (ExitStatus(code=3), ErrorDetail()),
    "is killed": (ExitStatus(signal=9), ErrorDetail()),
    "crashes": (ExitStatus(signal=11), ErrorDetail()),
}


class Worker(NamedTuple):
    """The name of a worker's process."""

    round: int
    local_rank: int


class Process(Struct):
    """A worker's process, and what it does with signals."""

    pid: int
    announced: bool = True
    signalled: bool = False
    killed: bool = False
    stubborn: bool = False
    stuck: bool = False


class Possibility(NamedTuple):
    """Something that can happen now."""

    what: str
    happen: Callable[[], None]


class Spawner(Struct):
    """Processes that exist only here, and the spawner's own state."""

    requests: deque[AgentEffect] = field(default_factory=deque)
    answers: deque[AgentEvent] = field(default_factory=deque)
    alive: dict[Worker, Process] = field(default_factory=dict)
    unforked: list[Worker] = field(default_factory=list)
    zygote: tuple[str, ...] | None = None
    zygote_ready: bool = False
    killing: bool = False
    asked_to_end: bool = False
    ended: bool = False
    silent: bool = False
    pids: int = 100

    def serve(self) -> None:
        """Do the next thing that was asked for."""
        request = self.requests.popleft()
        match request:
            case StartZygote():
                self.zygote, self.zygote_ready = request.modules, False
            case DropZygote():
                self.zygote, self.zygote_ready = None, False
            case StartWorkers():
                self.start(request)
            case SignalWorkers():
                for worker, process in self.alive.items():
                    process.signalled |= worker.local_rank in request.local_ranks
            case KillEverything():
                self.killing = True
                self.kill()
            case ListStuck():
                names = tuple(f"pid {process.pid}" for process in self.alive.values())
                self.answers.append(ProcessesStuck(names))
            case EndSpawner():
                self.end(SpawnerEnded())

    def start(self, request: StartWorkers) -> None:
        workers = [Worker(request.assignment.round, local) for local in request.local_ranks]
        if not request.warm:
            for worker in workers:
                self.bear(worker)
        elif self.zygote is None:
            self.answers.append(ZygoteLost("it had already ended"))
        else:
            self.unforked += workers

    def bear(self, worker: Worker) -> None:
        assert worker not in self.alive, f"{worker} runs twice"
        self.pids += 1
        self.alive[worker] = Process(self.pids)
        self.answers.append(WorkerStarted(*worker, self.pids))
        if self.killing:
            self.kill()

    def fork(self) -> None:
        self.bear(self.unforked.pop(0))

    def fail_to_start(self) -> None:
        """The newest process could not be made after all: it is told of only as an exit."""
        started = self.answers.pop()
        assert isinstance(started, WorkerStarted)
        worker = Worker(started.round, started.local_rank)
        del self.alive[worker]
        error = ErrorDetail("the process could not be made: no memory")
        self.answers.append(WorkerExited(*worker, 0, ExitStatus(code=126), error=error))
        self.tell_if_gone()

    def announce_late(self) -> None:
        """The newest process is told of only after its end."""
        started = self.answers.pop()
        assert isinstance(started, WorkerStarted)
        self.alive[Worker(started.round, started.local_rank)].announced = False

    def exit(self, worker: Worker, status: ExitStatus, error: ErrorDetail) -> None:
        process = self.alive.pop(worker)
        self.answers.append(WorkerExited(*worker, process.pid, status, error=error))
        if not process.announced:
            self.answers.append(WorkerStarted(*worker, process.pid))
        self.tell_if_gone()

    def kill(self) -> None:
        for process in self.alive.values():
            process.killed = True
        self.tell_if_gone()

    def tell_if_gone(self) -> None:
        if self.killing and not self.alive and not self.unforked:
            self.killing = False
            self.answers.append(AllGone())

    def lose_zygote(self) -> None:
        self.zygote, self.zygote_ready = None, False
        self.unforked.clear()
        self.answers.append(ZygoteLost("it ended with status 1"))

    def reject(self, module: str) -> None:
        self.zygote = None
        self.answers.append(ModuleRejected(module, "it leaves a thread running when imported"))

    def end(self, last_word: AgentEvent) -> None:
        """Everything below dies with it, except what is stuck in the kernel."""
        self.ended = True
        self.requests.clear()
        self.unforked.clear()
        self.alive = {w: process for w, process in self.alive.items() if process.stuck}
        self.answers.append(last_word)


class Node:
    """One node of a job, with both machines on it and everything they talk to."""

    def __init__(self, config: JobConfig) -> None:
        self.config = config
        self.now = 1000.0
        self.agent = agent.AgentState(config, NODE, "here")
        self.coordinator = coordinator.CoordinatorState(config)
        self.spawner = Spawner()
        self.to_coordinator: deque[Heard] = deque()
        self.to_agent: deque[AgentEvent] = deque()
        self.timers: dict[str, tuple[float, AgentTimerFired | CoordinatorTimerFired]] = {}
        self.set_before: dict[str, AgentTimerFired | CoordinatorTimerFired] = {}
        self.fired: set[str] = set()
        self.signals: list[int] = []
        self.launcher_lost = self.spawner_lost = False
        self.rounds: list[int] = []
        self.spawner_ending = self.dropped = False
        self.exits: dict[Worker, ExitStatus] = {}
        self.closed: Outcome | None = None
        self.finished: Outcome | None = None
        self.story: list[str] = []

    def happen(self, possibility: Possibility) -> None:
        self.story.append(possibility.what)
        possibility.happen()

    # What can happen next.

    def next_by_itself(self) -> Iterator[Possibility]:
        """What happens sooner or later if nothing else does."""
        spawner = self.spawner
        if self.to_coordinator:
            yield Possibility(f"heard {kind(self.to_coordinator[0].message)}", self.hear)
        if self.to_agent:
            yield Possibility(f"told {kind(self.to_agent[0])}", self.tell)
        if spawner.silent:
            return
        if spawner.answers:
            yield Possibility(f"learned {spawner.answers[0]}", self.learn)
        if spawner.ended:
            return
        if spawner.requests:
            yield Possibility(f"spawner: {kind(spawner.requests[0])}", spawner.serve)
        if spawner.zygote_ready and spawner.unforked:
            yield Possibility("the zygote forks one", spawner.fork)
        if spawner.zygote is not None and not spawner.zygote_ready:
            yield Possibility("the zygote is ready", self.zygote_ready)
        yield from self.next_of_processes()

    def next_of_processes(self) -> Iterator[Possibility]:
        for worker, process in self.spawner.alive.items():
            if process.killed and not process.stuck:
                yield self.ending(worker, "dies", ExitStatus(signal=9))
            elif process.signalled and not process.stubborn and not process.stuck:
                yield self.ending(worker, "stops", ExitStatus(signal=15))

    def ending(
        self, worker: Worker, how: str, status: ExitStatus, error: ErrorDetail = ErrorDetail()
    ) -> Possibility:
        def end() -> None:
            self.exits[worker] = status
            self.spawner.exit(worker, status, error)

        return Possibility(f"{worker} {how}", end)

    def next_timer(self) -> Iterator[Possibility]:
        for name in sorted(self.timers, key=lambda name: self.timers[name][0]):
            yield Possibility(f"timer {name}", partial(self.fire, name))

    def next_by_chance(self, kinds: frozenset[str]) -> Iterator[Possibility]:
        """Of these kinds, what can happen now, and need not."""
        for kind in sorted(kinds):
            yield from getattr(self, f"chance_of_{kind}")()

    def chance_of_success(self) -> Iterator[Possibility]:
        for worker in self.reported_workers():
            if not self.spawner.alive[worker].stuck:
                yield self.ending(worker, "succeeds", ExitStatus(code=0))

    def chance_of_failure(self) -> Iterator[Possibility]:
        for worker in self.reported_workers():
            for how, (status, error) in ENDS.items():
                if not self.spawner.alive[worker].stuck:
                    yield self.ending(worker, how, status, error)

    def chance_of_stubbornness(self) -> Iterator[Possibility]:
        for worker in self.reported_workers():
            process = self.spawner.alive[worker]
            for habit in ("stubborn", "stuck"):
                again = "no longer " if getattr(process, habit) else ""
                yield Possibility(f"{worker} is {again}{habit}", partial(toggle, process, habit))

    def chance_of_steps(self) -> Iterator[Possibility]:
        for worker in self.reported_workers():
            step = StepReported(*worker, len(self.story))
            yield Possibility(f"{worker} steps", partial(self.take, step))

    def chance_of_odd_births(self) -> Iterator[Possibility]:
        newest = self.spawner.answers[-1] if self.spawner.answers else None
        if isinstance(newest, WorkerStarted):
            worker = Worker(newest.round, newest.local_rank)
            if worker in self.spawner.alive:
                yield Possibility(f"{worker} could not be made", self.spawner.fail_to_start)
                if self.spawner.zygote is None:
                    yield Possibility(f"{worker} is told of late", self.spawner.announce_late)

    def chance_of_zygote_trouble(self) -> Iterator[Possibility]:
        spawner = self.spawner
        if spawner.zygote is None or spawner.ended or spawner.silent:
            return
        yield Possibility("the zygote dies", spawner.lose_zygote)
        for module in () if spawner.zygote_ready else spawner.zygote:
            yield Possibility(f"the zygote rejects {module}", partial(spawner.reject, module))

    def chance_of_timers(self) -> Iterator[Possibility]:
        yield from self.next_timer()
        for name, event in self.set_before.items():
            yield Possibility(f"stale timer {name}", partial(self.take, event))

    def chance_of_signals(self) -> Iterator[Possibility]:
        for number in (signal.SIGTERM, signal.SIGINT):
            yield Possibility(number.name, partial(self.signal, number))

    def chance_of_losing_the_launcher(self) -> Iterator[Possibility]:
        if not self.launcher_lost:
            yield Possibility("the launcher is gone", self.lose_launcher)

    def chance_of_losing_the_spawner(self) -> Iterator[Possibility]:
        if not self.spawner.ended:
            yield Possibility("the spawner is killed", self.lose_spawner)

    def chance_of_silence(self) -> Iterator[Possibility]:
        if not self.spawner.ended and not self.spawner.silent:
            yield Possibility("the spawner falls silent", self.silence)

    def reported_workers(self) -> list[Worker]:
        """Those whose fate the agent would hear of."""
        out_of_touch = self.spawner.silent or self.spawner.ended
        return [] if out_of_touch else list(self.spawner.alive)

    # Things that happen.

    def start(self, started: AgentStarted) -> None:
        self.take(started)

    def hear(self) -> None:
        self.take(self.to_coordinator.popleft())

    def tell(self) -> None:
        self.take(self.to_agent.popleft())

    def learn(self) -> None:
        self.take(self.spawner.answers.popleft())

    def zygote_ready(self) -> None:
        self.spawner.zygote_ready = True
        self.spawner.answers.append(ZygoteReady(self.spawner.zygote or ()))

    def fire(self, name: str) -> None:
        due, event = self.timers.pop(name)
        self.now = max(self.now, due)
        if name == agent.GRACE_TIMER and not any(self.next_by_itself()):
            graced = self.agent.phase in (agent.Phase.STOPPING, agent.Phase.CLOSING)
            somebody = self.spawner.alive or self.spawner.silent
            assert somebody or self.agent.killing or not graced, "a grace for nobody"
        self.take(event)

    def signal(self, number: int) -> None:
        if self.finished is None:
            self.signals.append(number)
        self.take(SignalReceived(number))

    def lose_launcher(self) -> None:
        self.launcher_lost = True
        self.take(LauncherLost())

    def lose_spawner(self) -> None:
        asked = self.spawner.asked_to_end
        self.spawner_lost |= not asked
        for process in self.spawner.alive.values():
            process.stuck = False
        self.spawner.end(SpawnerEnded() if asked else SpawnerLost("was killed"))
        self.spawner.silent = False

    def silence(self) -> None:
        self.spawner.silent = True

    # The two machines.

    def take(self, event: AgentEvent | Heard | CoordinatorTimerFired) -> None:
        self.now += 0.001
        if isinstance(event, AgentTimerFired):
            self.fired.add(event.name)
        if isinstance(event, Heard | CoordinatorTimerFired):
            for decided in coordinator.step(self.coordinator, event, self.now):
                self.coordinate(decided)
            return
        effects = agent.step(self.agent, event, self.now)
        assert not (effects and self.finished), f"after the end: {effects}"
        for effect in effects:
            self.carry_out(effect)

    def coordinate(self, effect: Tell | WakeCoordinator | Explain) -> None:
        match effect:
            case Tell():
                self.check_message(effect)
                self.to_agent.append(Told(effect.message))
            case WakeCoordinator():
                self.wake(effect.name, effect.after_s, CoordinatorTimerFired(effect.name))
            case Explain():
                assert effect.text

    def carry_out(self, effect: AgentEffect) -> None:
        assert self.finished is None, f"after Finish: {effect}"
        match effect:
            case Report():
                self.to_coordinator.append(Heard(NODE, effect.message))
            case WakeAgent():
                self.wake(effect.name, effect.after_s, AgentTimerFired(effect.name))
            case ReserveEndpoint():
                self.to_agent.append(EndpointReserved(Endpoint("127.0.0.1", 29500)))
            case Say():
                assert effect.text
            case Finish():
                self.check_outcome(effect.outcome)
                self.finished = effect.outcome
            case _:
                self.check_request(effect)
                self.spawner.asked_to_end |= isinstance(effect, EndSpawner)
                if not self.spawner.ended:
                    self.spawner.requests.append(effect)

    def wake(
        self, name: str, after_s: float, event: AgentTimerFired | CoordinatorTimerFired
    ) -> None:
        assert after_s >= 0
        self.timers[name] = (self.now + after_s, event)
        self.set_before[name] = event

    # What must hold.

    def check_message(self, effect: Tell) -> None:
        message = effect.message
        assert self.closed is None, f"after the job closed: {message}"
        if isinstance(message, RunRound):
            number = message.assignment.round
            assert number == self.coordinator.round_number == len(self.rounds) + 1
        if isinstance(message, CloseJob):
            self.closed = message.outcome

    def check_request(self, effect: AgentEffect) -> None:
        starts = isinstance(effect, StartWorkers | StartZygote)
        assert not (starts and self.spawner.asked_to_end), f"after EndSpawner: {effect}"
        if isinstance(effect, StartZygote):
            self.dropped = False
        if isinstance(effect, DropZygote):
            self.dropped = True
        if isinstance(effect, StartWorkers):
            self.check_start(effect)

    def check_start(self, effect: StartWorkers) -> None:
        number = effect.assignment.round
        assert not (effect.warm and self.dropped), "warm workers without a zygote"
        if number not in self.rounds:
            assert number > max(self.rounds, default=0), "round numbers only grow"
            assert not self.spawner.alive, "a worker of an older round is left"
            assert not self.spawner.unforked, "a worker of an older round may still be born"
            self.rounds.append(number)
        assert number == self.rounds[-1], "only the newest round may start workers"
        assert len(self.rounds) <= 1 + self.config.restarts.max_restarts

    def check_outcome(self, outcome: Outcome) -> None:
        assert outcome.reason
        spawner = self.spawner
        left = [worker for worker, process in spawner.alive.items() if not process.stuck]
        waited_in_vain = agent.UNKILLABLE_TIMER in self.fired
        assert not left or waited_in_vain, f"the job is over, and {left} still runs"
        match outcome.verdict:
            case "succeeded":
                last = [Worker(self.rounds[-1], local) for local in range(self.config.slots)]
                assert all(self.exits[worker].succeeded for worker in last)
                assert outcome.exit_status == 0
            case "interrupted":
                statuses = [128 + number for number in self.signals]
                assert outcome.exit_status in statuses + [1] * self.launcher_lost
            case "failed":
                assert outcome.exit_status == 1
                self.check_cause(outcome)
            case _:
                raise AssertionError(f"one node is always enough: {outcome}")

    def check_cause(self, outcome: Outcome) -> None:
        if outcome.cause is None:
            assert self.spawner_lost or self.spawner.silent or self.spawner.alive
            return
        assert not outcome.cause.stopped_by_us
        assert not outcome.cause.status.succeeded


def toggle(process: Process, habit: str) -> None:
    setattr(process, habit, not getattr(process, habit))


def kind(record: object) -> str:
    return type(getattr(record, "message", record)).__name__


def give_up_on(node: Node) -> Possibility:
    """Workers may run for ever; then it is for somebody to say that it is enough."""
    assert node.agent.phase is agent.Phase.RUNNING, f"nothing happens while {node.agent.phase}"
    assert not node.signals, "nothing happens after a signal"
    return Possibility("SIGTERM", partial(node.signal, signal.SIGTERM))


def settle(node: Node) -> None:
    """No more trouble: whatever was asked for is answered, and the job must end."""
    for _ in range(ENOUGH_STEPS):
        following = next(node.next_by_itself(), None) or next(node.next_timer(), None)
        if following is None and node.finished is not None:
            return
        node.happen(following or next(node.chance_of_success(), None) or give_up_on(node))
    raise AssertionError(f"no end in sight: {node.agent.phase}")


def job(slots: int, max_restarts: int, same_cause_limit: int) -> JobConfig:
    restarts = RestartPolicy(
        max_restarts=max_restarts,
        same_cause_limit=same_cause_limit,
        non_retryable_exit_codes=(3,),
    )
    return JobConfig("job", Program("script", "train.py"), slots=slots, restarts=restarts)


jobs = st.builds(
    job,
    slots=st.integers(1, 3),
    max_restarts=st.integers(0, 3),
    same_cause_limit=st.sampled_from([0, 2, 5]),
)
CHANCES = sorted(
    name.removeprefix("chance_of_") for name in vars(Node) if name.startswith("chance_of_")
)

starts = st.sampled_from(
    [
        AgentStarted(cold="not wanted"),
        AgentStarted(preload=()),
        AgentStarted(preload=("numpy", "numpy.linalg", "torch")),
    ]
)


@hypothesis.settings(max_examples=int(__import__("os").environ.get("EX", "300")))
@hypothesis.given(
    config=jobs,
    started=starts,
    chances=st.frozensets(st.sampled_from(CHANCES)),
    data=st.data(),
)
def test_whatever_happens_the_job_ends_once_and_truly(
    config: JobConfig, started: AgentStarted, chances: frozenset[str], data: st.DataObject
) -> None:
    node = Node(config)
    try:
        node.start(started)
        for _ in range(data.draw(st.integers(0, 60))):
            possible = [*node.next_by_itself(), *node.next_by_chance(chances)]
            if possible:
                choice = data.draw(st.integers(0, len(possible) - 1))
                node.happen(possible[choice])
        settle(node)
    except AssertionError:
        hypothesis.note("\n  ".join(["What happened:", *node.story]))
        raise
