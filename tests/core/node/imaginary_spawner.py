"""A spawner whose processes exist only in the test.

It keeps the promises of the real one: requests are served in order, answers come in order,
every exit of a worker is reported, `AllGone` and `SpawnerEnded` are true when they are said.
And it uses the freedom of the real one: everything takes as long as it likes, processes may
ignore a signal or be stuck in the kernel, and the zygote may die at any moment.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

from msgspec import Struct, field

from holdfast.core.node_io import (
    AllGone,
    DropZygote,
    EndSpawner,
    KillEverything,
    KillZygote,
    ListStuck,
    LookAtUnexited,
    ModuleRejected,
    NodeEffect,
    NodeEvent,
    ProcessesStuck,
    SignalWorkers,
    SpawnerEnded,
    StartWorkers,
    StartZygote,
    Unexited,
    UnexitedFound,
    WorkerExited,
    WorkerStarted,
    ZygoteLost,
    ZygoteReady,
)
from holdfast.core.protocol.model import ErrorDetail, ExitStatus

NOTHING_SAID = ErrorDetail()


class Worker(NamedTuple):
    """Which worker a process is."""

    round: int
    local_rank: int

    def __str__(self) -> str:
        return f"worker {self.local_rank} of round {self.round}"


class Process(Struct):
    """A worker's process, and what it does with signals."""

    pid: int
    announced: bool = True
    signalled: bool = False
    killed: bool = False
    stubborn: bool = False
    """It ignores every signal but SIGKILL."""
    stuck: bool = False
    """It sleeps in the kernel, and even SIGKILL has to wait."""


class Spawner(Struct):
    """What the spawner knows, has been asked and has yet to say."""

    requests: deque[NodeEffect] = field(default_factory=deque)
    answers: deque[NodeEvent] = field(default_factory=deque)
    alive: dict[Worker, Process] = field(default_factory=dict)
    unforked: list[Worker] = field(default_factory=list)
    zygote: tuple[str, ...] | None = None
    """What the zygote has been asked to import; None where there is none."""
    zygote_ready: bool = False
    zygote_hangs: bool = False
    killing: bool = False
    killed_for: int = 0
    ending: bool = False
    ended: bool = False
    silent: bool = False
    """It serves nothing and answers nothing, as if stopped by SIGSTOP."""
    pids: int = 100

    @property
    def serving(self) -> bool:
        return not (self.ended or self.silent)

    def serve(self) -> None:
        """Do the next thing that was asked for."""
        request = self.requests.popleft()
        match request:
            case StartZygote():
                self.zygote, self.zygote_ready = request.steps, False
                self.zygote_hangs = False
            case KillZygote():
                if self.zygote is not None:
                    self.lose_zygote()
            case DropZygote():
                self.zygote, self.zygote_ready = None, False
            case StartWorkers():
                self._start(request)
            case SignalWorkers():
                for worker, process in self.alive.items():
                    process.signalled |= worker.local_rank in request.local_ranks
            case KillEverything():
                self.killing, self.killed_for = True, request.round
                self._kill()
            case ListStuck():
                names = tuple(f"pid {process.pid}" for process in self.alive.values())
                self.answers.append(ProcessesStuck(names))
            case LookAtUnexited():
                running = tuple(Unexited(worker.local_rank) for worker in self.alive)
                self.answers.append(UnexitedFound(request.round, running, ends=request.ends))
            case EndSpawner():
                self.zygote, self.zygote_ready = None, False
                self.unforked.clear()
                self.ending = self.killing = True
                self._kill()
            case _:
                raise AssertionError(f"nothing for a spawner: {request}")

    def _start(self, request: StartWorkers) -> None:
        workers = [Worker(request.assignment.round, local) for local in request.local_ranks]
        if not request.warm:
            for worker in workers:
                self._make(worker)
        elif self.zygote is None:
            self.answers.append(ZygoteLost("it had already ended"))
        else:
            self.unforked += workers

    def _make(self, worker: Worker) -> None:
        assert worker not in self.alive, f"{worker} runs twice"
        self.pids += 1
        self.alive[worker] = Process(self.pids)
        self.answers.append(WorkerStarted(*worker, self.pids))
        if self.killing:
            self._kill()

    def newest(self) -> Worker | None:
        """The worker whose forked is the last thing that was said, if it was."""
        newest = self.answers[-1] if self.answers else None
        if not isinstance(newest, WorkerStarted):
            return None
        worker = Worker(newest.round, newest.local_rank)
        return worker if worker in self.alive else None

    def take_back_start(self, worker: Worker) -> None:
        """The process could not be made after all: it is told of as an exit only."""
        self.answers.pop()
        del self.alive[worker]
        error = ErrorDetail("the process could not be made: no memory")
        self.answers.append(WorkerExited(*worker, 0, ExitStatus(code=126), error=error))
        self._tell_if_gone()

    def announce_late(self, worker: Worker) -> None:
        """The process is told of only after its end."""
        self.answers.pop()
        self.alive[worker].announced = False

    def exit(self, worker: Worker, status: ExitStatus, error: ErrorDetail = NOTHING_SAID) -> None:
        process = self.alive.pop(worker)
        self.answers.append(WorkerExited(*worker, process.pid, status, error=error))
        if not process.announced:
            self.answers.append(WorkerStarted(*worker, process.pid))
        self._tell_if_gone()

    def _kill(self) -> None:
        for process in self.alive.values():
            process.killed = True
        self._tell_if_gone()

    def _tell_if_gone(self) -> None:
        if not self.killing or self.alive or self.unforked:
            return
        if self.ending:
            self.end(SpawnerEnded())
        else:
            self.killing = False
            self.answers.append(AllGone(self.killed_for))

    def fork(self) -> None:
        self._make(self.unforked.pop(0))

    def finish_preload(self) -> None:
        self.zygote_ready = True
        steps = self.zygote or ()
        self.answers.append(ZygoteReady(steps, has_torch="import torch" in steps))

    def reject(self, module: str) -> None:
        self.zygote = None
        self.answers.append(ModuleRejected(module, "it leaves a thread running when imported"))

    def lose_zygote(self) -> None:
        self.zygote, self.zygote_ready = None, False
        self.unforked.clear()
        self.answers.append(ZygoteLost("it ended with status 1"))
        self._tell_if_gone()

    def end(self, last_word: NodeEvent) -> None:
        """It is gone, and everything below it."""
        self.ended, self.silent = True, False
        self.requests.clear()
        self.unforked.clear()
        self.alive.clear()
        self.answers.append(last_word)
