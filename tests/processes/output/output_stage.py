"""A loop with a console on descriptors of the test, and real workers whose output it captures."""

from __future__ import annotations

import os
import subprocess
import sys
import termios
import time
import tty
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from holdfast.core.policy.config import Output
from holdfast.processes.output.console import Console
from holdfast.processes.output.log_files import LogFile
from holdfast.processes.output.output import StreamContext, WorkerStreams, open_planned
from holdfast.processes.output.recent import RecentOutput
from holdfast.processes.output.stream_plans import WorkerIdentity, place_by_options, plan_stream
from holdfast.runtime.loop import Cancellable, EventLoop, Loop

DEADLINE_S = 100.0


def turn_until(
    loop: Loop, run_until: Callable[[Callable[[], bool]], None], condition: Callable[[], bool]
) -> None:
    """Let a loop turn until the condition holds; fail when it never does."""
    deadline = time.monotonic() + DEADLINE_S
    glances: list[Cancellable] = []

    def look() -> None:
        assert time.monotonic() < deadline, "the condition never held"
        glances[:] = [loop.call_later(0.002, look)]

    look()
    run_until(condition)
    glances[0].cancel()


TEE = Output(tee_default=3)
REDIRECT = Output(redirects_default=3)
PLAIN = Output()


class Worker:
    """A real process whose output is captured, as the agent would do it."""

    def __init__(self, streams: WorkerStreams, program: str, *arguments: str) -> None:
        self.streams = streams
        self.process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", program, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=streams.child_stdout,
            stderr=streams.child_stderr,
            start_new_session=True,
        )
        for end in streams.hand_over():
            os.close(end)
        streams.set_pid(self.process.pid)

    def has_exited(self) -> bool:
        return self.process.poll() is not None

    def save(self) -> None:
        """What the agent does when a worker is dead."""
        self.streams.drain_now()
        self.streams.close()


class Stage:
    """A loop, a console on descriptors of the test, and a log directory."""

    def __init__(self, loop: EventLoop, console: Console, directory: Path, slots: int) -> None:
        self.loop = loop
        self.console = console
        self.directory = directory
        self.slots = slots
        self.workers: list[Worker] = []

    def open(
        self,
        output: Output,
        local_rank: int = 0,
        filters: dict[int, LogFile] | None = None,
        pid: int | None = 1,
    ) -> WorkerStreams:
        identity = WorkerIdentity(local_rank, local_rank + 100, "default", self.slots)
        directory = self.directory / str(local_rank)
        places = [place_by_options(output, directory, local_rank, number) for number in (1, 2)]
        plans = [plan_stream(place, output, identity, n) for n, place in enumerate(places, 1)]
        recent = RecentOutput(self.loop)
        surroundings = StreamContext(self.console, self.loop, filters or {}, recent=recent)
        streams = open_planned(plans[0], plans[1], surroundings)
        if pid is not None:
            streams.set_pid(pid)
        return streams

    def start(self, output: Output, program: str, local_rank: int = 0) -> Worker:
        worker = Worker(self.open(output, local_rank, pid=None), program)
        self.workers.append(worker)
        return worker

    def run(self, output: Output, program: str, local_rank: int = 0) -> Worker:
        """Start a worker and see it to its end."""
        worker = self.start(output, program, local_rank)
        self.finish(worker)
        return worker

    def finish(self, *workers: Worker) -> None:
        for worker in workers:
            self.until(worker.has_exited)
            worker.save()

    def until(self, condition: Callable[[], bool]) -> None:
        """Let the loop turn until the condition holds."""
        turn_until(self.loop, self.loop.run_until, condition)

    def turn(self, times: int) -> None:
        """Let the loop turn a number of times, and no more."""
        turns = iter(range(times))
        self.until(lambda: next(turns, None) is None)


@contextmanager
def stage(
    tmp_path: Path, descriptors: tuple[int, int] | None = None, slots: int = 1
) -> Iterator[Stage]:
    """Give a console on files `out` and `err`, or on `descriptors`; end all workers after."""
    files = descriptors or (
        os.open(tmp_path / "out", os.O_WRONLY | os.O_CREAT | os.O_APPEND),
        os.open(tmp_path / "err", os.O_WRONLY | os.O_CREAT | os.O_APPEND),
    )
    loop = EventLoop()
    console = Console(loop, files)
    scene = Stage(loop, console, tmp_path / "logs", slots)
    try:
        yield scene
    finally:
        for worker in scene.workers:
            worker.process.kill()
            worker.process.wait()
            worker.streams.close()
        console.close()
        loop.close()
        if descriptors is None:
            os.close(files[0])
            os.close(files[1])


@contextmanager
def terminal() -> Iterator[tuple[int, int]]:
    """The user's terminal: our end of it, and the end that the agent has as its stdout."""
    master, slave = os.openpty()
    tty.setraw(slave)
    termios.tcsetwinsize(slave, (33, 99))
    try:
        yield master, slave
    finally:
        os.close(master)
        os.close(slave)


class Reader:
    """Collects what a descriptor gives, as it comes."""

    def __init__(self, loop: EventLoop, descriptor: int) -> None:
        self.text = bytearray()
        self._descriptor = descriptor
        os.set_blocking(descriptor, False)
        loop.add_reader(descriptor, self._read)

    def _read(self) -> None:
        self.text += os.read(self._descriptor, 1 << 20)
