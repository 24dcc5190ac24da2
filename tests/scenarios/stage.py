"""A stage on which a story is played: one node, told what happens by commands.

The engine that ships is here, with its coordinator in the same process, and a clock that only
`advance` moves. Everything else that a node has (processes, a zygote, a spawner) is what the story
says of it: the stage answers nothing by itself, except that a port can always be reserved.
"""

from __future__ import annotations

import shlex
import signal
from collections.abc import Callable, Collection, Sequence

from tools.simulator.timeline import ManualClock

from holdfast.core.coordinator import Beginning, Coordinator
from holdfast.core.coordinator_io import CoordinatorEffect, CoordinatorEvent, CoordinatorTimerFired
from holdfast.core.election import ElectionEffect, ElectionEvent, ElectionState
from holdfast.core.features.warm_start import NodeWarmStart
from holdfast.core.node_io import (
    AllGone,
    EndpointReserved,
    ImportsLearned,
    LauncherLost,
    ModuleRejected,
    ModulesUnfit,
    NodeEffect,
    NodeEvent,
    NodeStarted,
    NodeTimerFired,
    ProcessesStuck,
    ReserveEndpoint,
    SignalReceived,
    SpawnerEnded,
    SpawnerLost,
    StallFound,
    StallOver,
    StartWorkers,
    StepReported,
    StoreFailed,
    WorkerExited,
    WorkerStarted,
    ZygoteLost,
    ZygoteReady,
)
from holdfast.core.policy.config import JobConfig, Oversight, Program, RestartPolicy, Timeouts
from holdfast.core.protocol.messages import FrameGroup
from holdfast.core.protocol.model import Endpoint, ErrorDetail, ExitStatus
from holdfast.engine.engine import Engine
from holdfast.engine.ports import Ports

from .wording import line

Event = NodeEvent | CoordinatorEvent
Effect = NodeEffect | CoordinatorEffect


class Command:
    """One line of a story: a verb, words, and settings of the form `name=value`."""

    def __init__(self, text: str, known: Collection[str]) -> None:
        self.verb, *rest = shlex.split(text)
        if self.verb not in known:
            raise ValueError(f"no such command: {text!r}; there are {', '.join(sorted(known))}")
        self.words = [word for word in rest if "=" not in word]
        self.settings = dict(word.split("=", 1) for word in rest if "=" in word)

    def number(self, name: str, default: float) -> float:
        return float(self.settings.get(name, default))


class Stage:
    """The node, and what has been seen of it since the last command.

    It is the node's journal, and all that the node has of processes.
    """

    def __init__(self) -> None:
        self._clock = ManualClock()
        self._port = 29500
        self._round = 0
        self._local_ranks: tuple[int, ...] = ()
        self._seen: list[str] = []

    def play(self, text: str) -> list[str]:
        """Do what a command says; returns what came of it, in lines."""
        command = Command(text, COMMANDS)
        self._seen = []
        COMMANDS[command.verb](self, command)
        self._clock.advance(0.0)
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
            oversight=Oversight(hang="restart" if command.settings.get("hang") else "warn"),
        )
        ports = Ports(self._clock, self, self, say=lambda text: None, instance=lambda: 1)
        self._engine = Engine(config, "here-1", "here", ports)
        cold = "" if "preload" in command.settings else "not wanted"
        preload = tuple(f"import {module}" for module in _list(command, "preload"))
        self._engine.post(NodeStarted(preload, cold=cold))

    def ready(self, command: Command) -> None:
        steps = self._engine.state.feature(NodeWarmStart).preload
        late, beside = tuple(_list(command, "late")), "beside" in command.words
        self._engine.post(
            ZygoteReady(steps, late=late, has_torch="import torch" in steps, beside=beside)
        )

    def started(self, command: Command) -> None:
        for local_rank in map(int, command.words or self._local_ranks):
            self._engine.post(WorkerStarted(self._round, local_rank, self._pid(local_rank)))

    def exit(self, command: Command) -> None:
        local_rank = int(command.words[0])
        status = ExitStatus(
            code=int(command.settings["code"]) if "code" in command.settings else None,
            signal=int(command.settings["signal"]) if "signal" in command.settings else None,
        )
        message = command.settings.get("error", "")
        self._engine.post(
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
        self._engine.post(StepReported(self._round, local_rank, step))

    def stand(self, command: Command) -> None:
        """All workers stand still; the named one is somewhere else than the others."""
        suspect = int(command.words[0])
        words = f"all workers stand still: rank {suspect} is in load at data.py:8"
        places = (FrameGroup((suspect,), "load", "data.py:8"),)
        stood = StallFound(self._round, words, "stacks_1.txt", suspect, places)
        self._engine.post(stood)

    def move(self, command: Command) -> None:
        self._engine.post(StallOver(self._round))

    def advance(self, command: Command) -> None:
        self._clock.advance(float(command.words[0].removesuffix("s")))

    # As the journal.

    def agent(self, at: float, event: Event, effects: Sequence[Effect]) -> None:
        if isinstance(event, NodeTimerFired | CoordinatorTimerFired):
            self._seen.append(f"clock        the {event.name} timer fires")
        self._seen += map(line, effects)

    def taken(self, at: float, liveness: Coordinator) -> None:
        for taken in liveness.taken:
            self.agent(at, taken.event, taken.effects)
        liveness.taken.clear()

    def began(self, at: float, beginning: Beginning) -> None: ...
    def election(
        self,
        at: float,
        before: ElectionState,
        event: ElectionEvent,
        effects: list[ElectionEffect],
    ) -> None: ...

    # As the processes.

    def hold_tether(self, tether: int) -> None: ...
    def share_tethers(self, tethers: list[int]) -> None: ...

    def do(self, effect: NodeEffect) -> None:
        if isinstance(effect, ReserveEndpoint):
            self._port += 1
            endpoint = Endpoint("127.0.0.1", self._port, serves_store=effect.store)
            self._engine.post(EndpointReserved(endpoint))
        elif isinstance(effect, StartWorkers):
            self._round, self._local_ranks = effect.assignment.round, effect.local_ranks

    def _pid(self, local_rank: int) -> int:
        return 100 * self._round + local_rank


def _list(command: Command, name: str) -> list[str]:
    return [item for item in command.settings.get(name, "").split(",") if item]


def _event(make: Callable[[Command], NodeEvent]) -> Callable[[Stage, Command], None]:
    return lambda stage, command: stage._engine.post(make(command))


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
    "stand": Stage.stand,
    "move": Stage.move,
    "exit": Stage.exit,
    "gone": lambda stage, command: stage._engine.post(AllGone(stage._round)),
    "stuck": _event(lambda command: ProcessesStuck(tuple(command.words))),
    "signal": _event(lambda command: SignalReceived(signal.Signals[command.words[0]])),
    "launcher-lost": _event(lambda command: LauncherLost()),
    "spawner-lost": _event(lambda command: SpawnerLost(command.words[0])),
    "spawner-ended": _event(lambda command: SpawnerEnded()),
    "advance": Stage.advance,
}
