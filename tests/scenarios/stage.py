"""A stage on which a story is played: one node, told what happens by commands.

Both machines of the core are here, joined by one inbox as in the agent's loop, and a clock
that only `advance` moves. Everything else that a node has (processes, a zygote, a spawner) is
what the story says of it: the stage answers nothing by itself, except that a port can always
be reserved, the coordinator (it lives in the agent's own process) always be reached, and its
record always be written.
"""

from __future__ import annotations

import shlex
import signal
from collections import deque
from collections.abc import Callable

from holdfast.core import agent, coordinator
from holdfast.core.agent_io import (
    AgentEffect,
    AgentEvent,
    AgentStarted,
    AgentTimerFired,
    AllGone,
    CoordinatorReached,
    Dial,
    EndpointReserved,
    ImportsLearned,
    LauncherLost,
    ModuleRejected,
    ModulesUnfit,
    ProcessesStuck,
    Report,
    ReserveEndpoint,
    SignalReceived,
    SpawnerEnded,
    SpawnerLost,
    StartWorkers,
    StepReported,
    StoreFailed,
    Told,
    WakeAgent,
    WorkerExited,
    WorkerStarted,
    ZygoteLost,
    ZygoteReady,
)
from holdfast.core.agent_state import AgentState
from holdfast.core.config import JobConfig, Program, RestartPolicy, Timeouts
from holdfast.core.coordinator_io import (
    CoordinatorEffect,
    CoordinatorEvent,
    CoordinatorTimerFired,
    Heard,
    Tell,
    WakeCoordinator,
    Write,
    Written,
)
from holdfast.core.coordinator_state import CoordinatorState
from holdfast.core.model import Endpoint, ErrorDetail, ExitStatus

from .wording import line

Event = AgentEvent | CoordinatorEvent


class Command:
    """One line of a story: a verb, words, and settings of the form `name=value`."""

    def __init__(self, text: str) -> None:
        self.verb, *rest = shlex.split(text)
        self.words = [word for word in rest if "=" not in word]
        self.settings = dict(word.split("=", 1) for word in rest if "=" in word)

    def number(self, name: str, default: float) -> float:
        return float(self.settings.get(name, default))


class Stage:
    """The node, and what has been seen of it since the last command."""

    def __init__(self) -> None:
        self._now = 0.0
        self._port = 29500
        self._round = 0
        self._local_ranks: tuple[int, ...] = ()
        self._inbox: deque[Event] = deque()
        self._timers: dict[str, tuple[float, Event]] = {}
        self._seen: list[str] = []

    def play(self, text: str) -> list[str]:
        """Do what a command says; returns what came of it, in lines."""
        command = Command(text)
        action = COMMANDS.get(command.verb)
        if action is None:
            raise ValueError(f"no such command: {text!r}; there are {', '.join(sorted(COMMANDS))}")
        self._seen = []
        action(self, command)
        return self._seen or ["(nothing)"]

    # Commands.

    def start(self, command: Command) -> None:
        restarts = RestartPolicy(
            max_restarts=int(command.number("max_restarts", 0)),
            backoff_first_s=command.number("backoff", 1.0),
            same_cause_limit=int(command.number("same_cause_limit", 5)),
            non_retryable_exit_codes=tuple(map(int, _list(command, "no_retry_codes"))),
        )
        config = JobConfig(
            "story",
            Program("script", "train.py"),
            slots=int(command.number("slots", 1)),
            restarts=restarts,
            timeouts=Timeouts(shutdown_s=command.number("grace", 30.0)),
        )
        self._agent = AgentState(config, "here-1", "here")
        self._coordinator = CoordinatorState(config)
        cold = "" if "preload" in command.settings else "not wanted"
        self._take(AgentStarted(preload=self._steps(command), cold=cold))

    def _steps(self, command: Command) -> tuple[str, ...]:
        return tuple(f"import {module}" for module in _list(command, "preload"))

    def ready(self, command: Command) -> None:
        steps = self._agent.preload
        late, beside = tuple(_list(command, "late")), "beside" in command.words
        self._take(ZygoteReady(steps, late=late, has_torch="import torch" in steps, beside=beside))

    def started(self, command: Command) -> None:
        for local_rank in map(int, command.words or self._local_ranks):
            self._take(WorkerStarted(self._round, local_rank, self._pid(local_rank)))

    def exit(self, command: Command) -> None:
        local_rank = int(command.words[0])
        status = ExitStatus(
            code=int(command.settings["code"]) if "code" in command.settings else None,
            signal=int(command.settings["signal"]) if "signal" in command.settings else None,
        )
        message = command.settings.get("error", "")
        self._take(
            WorkerExited(
                self._round,
                local_rank,
                self._pid(local_rank),
                status,
                error=ErrorDetail(message, non_retryable="not-retryable" in command.words),
                out_of_memory=command.settings.get("out_of_memory", ""),
            )
        )

    def step(self, command: Command) -> None:
        local_rank, step = map(int, command.words)
        self._take(StepReported(self._round, local_rank, step))

    def advance(self, command: Command) -> None:
        """Move the clock, and fire on the way what is due, in order."""
        until = self._now + float(command.words[0].removesuffix("s"))
        while due := [(at, name) for name, (at, _) in self._timers.items() if at <= until]:
            at, name = min(due)
            self._now = at
            self._seen.append(f"clock        the {name} timer fires")
            self._take(self._timers.pop(name)[1])
        self._now = until

    # The machines.

    def _take(self, event: Event) -> None:
        self._inbox.append(event)
        while self._inbox:
            following = self._inbox.popleft()
            if isinstance(following, Heard | Written | CoordinatorTimerFired):
                for decided in coordinator.step(self._coordinator, following, self._now):
                    self._seen.append(line(decided))
                    self._coordinate(decided)
            else:
                for effect in agent.step(self._agent, following, self._now):
                    self._seen.append(line(effect))
                    self._carry_out(effect)

    def _coordinate(self, effect: CoordinatorEffect) -> None:
        if isinstance(effect, Tell):
            self._inbox.append(Told(effect.message))
        elif isinstance(effect, Write):
            self._inbox.append(Written(effect.version))
        elif isinstance(effect, WakeCoordinator):
            due = self._now + effect.after_s
            self._timers[effect.name] = (due, CoordinatorTimerFired(effect.name))

    def _carry_out(self, effect: AgentEffect) -> None:
        match effect:
            case Dial():
                self._inbox.append(CoordinatorReached(hosting=True))
            case Report():
                self._inbox.append(Heard("here-1", effect.message))
            case ReserveEndpoint():
                self._port += 1
                endpoint = Endpoint("127.0.0.1", self._port, serves_store=effect.store)
                self._inbox.append(EndpointReserved(endpoint))
            case WakeAgent():
                due = self._now + effect.after_s
                self._timers[effect.name] = (due, AgentTimerFired(effect.name))
            case StartWorkers():
                self._round, self._local_ranks = effect.assignment.round, effect.local_ranks

    def _pid(self, local_rank: int) -> int:
        return 100 * self._round + local_rank


def _list(command: Command, name: str) -> list[str]:
    return [item for item in command.settings.get(name, "").split(",") if item]


def _event(make: Callable[[Command], AgentEvent]) -> Callable[[Stage, Command], None]:
    return lambda stage, command: stage._take(make(command))


COMMANDS: dict[str, Callable[[Stage, Command], None]] = {
    "start": Stage.start,
    "ready": Stage.ready,
    "rejected": _event(
        lambda command: ModuleRejected(f"import {command.words[0]}", command.words[1])
    ),
    "imported": _event(lambda command: ImportsLearned(tuple(command.words))),
    "unfit": _event(
        lambda command: ModulesUnfit({command.words[0]: command.words[1]}, beside=True)
    ),
    "zygote-lost": _event(lambda command: ZygoteLost(command.words[0])),
    "store-lost": _event(lambda command: StoreFailed(command.words[0])),
    "started": Stage.started,
    "step": Stage.step,
    "exit": Stage.exit,
    "gone": _event(lambda command: AllGone()),
    "stuck": _event(lambda command: ProcessesStuck(tuple(command.words))),
    "signal": _event(lambda command: SignalReceived(signal.Signals[command.words[0]])),
    "launcher-lost": _event(lambda command: LauncherLost()),
    "spawner-lost": _event(lambda command: SpawnerLost(command.words[0])),
    "spawner-ended": _event(lambda command: SpawnerEnded()),
    "advance": Stage.advance,
}
