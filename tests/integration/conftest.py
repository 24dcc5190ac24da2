"""What the tests of whole jobs share: a job that is marked, watched and cleaned up.

Every process of a job, however deep and however detached, has the job's mark in its
environment, so a look at what descends from the tests finds all of it. A job works in a folder
of its own, which is the working directory of its agent and of its workers: workers leave files
there, and the tests wait for them.
"""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import textwrap
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

import pytest

from holdfast.core.node_io import Finish
from holdfast.core.protocol.model import Failure, Outcome
from holdfast.observe.journal import Step, read

from ..process_tree import family
from ..waiting import DEADLINE_S, until

MARK = "HOLDFAST_TEST_MARK"
SPAWNER_NAME = "holdfast-spawn"
E = TypeVar("E")
SETTINGS_PREFIXES = ("HOLDFAST_", "PET_", "TORCHELASTIC_", "TORCH_", "OMP_", "CUDA_")


class Job:
    """One run of the installed command."""

    def __init__(self, process: subprocess.Popen[bytes], folder: Path, mark: str) -> None:
        self.process = process
        self.folder = folder
        self.mark = mark

    @property
    def stdout(self) -> str:
        return (self.folder / "agent.stdout").read_text(errors="backslashreplace")

    @property
    def stderr(self) -> str:
        return (self.folder / "agent.stderr").read_text(errors="backslashreplace")

    def read(self, name: str) -> str:
        """A file that a worker left in the job's folder; empty while there is none."""
        try:
            return (self.folder / name).read_text()
        except FileNotFoundError:
            return ""

    def until(self, condition: Callable[[], object], what: str) -> None:
        """Wait for something to happen while the job runs."""
        ended = lambda: self.process.poll() is not None  # noqa: E731
        until(condition, lambda: f"{what}\n{self.stderr}", over=ended)

    def until_files(self, *names: str) -> None:
        """Wait until workers have left all of these files."""
        self.until(lambda: all((self.folder / name).exists() for name in names), f"{names}")

    def wait(self) -> int:
        """The exit status, once the command has ended."""
        try:
            return self.process.wait(DEADLINE_S)
        except subprocess.TimeoutExpired:
            pytest.fail(f"the job did not end\n{self.stderr}")

    def send(self, number: int) -> None:
        """Send a signal to the agent."""
        self.process.send_signal(number)

    def spawner(self) -> int:
        """The spawner's process id, once it has shown its name."""
        found: list[int] = []

        def look() -> bool:
            found[:] = [pid for pid in self.running() if name_of(pid) == SPAWNER_NAME]
            return bool(found)

        self.until(look, "the spawner")
        return found[0]

    def running(self) -> list[int]:
        """Every process that carries the mark of this job and is not dead."""
        needle = f"{MARK}={self.mark}\0".encode()
        below = (process.pid for process in family().running)
        return [pid for pid in below if needle in environment_of(pid)]

    def expect_nothing_left(self) -> None:
        """Within a deadline, no process of the job is left, and none comes after it."""

        def gone() -> bool:
            # Two looks, because one may pass by a child that is being born.
            return not self.running() and not self.running()

        until(gone, lambda: f"the end of {[(p, name_of(p)) for p in self.running()]}")

    def journal(self) -> Path | None:
        return next(iter(sorted(self.folder.glob("logs/*/journal.jsonl"))), None)

    def events(self, kind: type[E], *, some: bool = True) -> list[E]:
        """The events of one type that this node's journal has by now, in their order.

        `some` are waited for: the journal of a running job is written a moment after the console.
        """

        def found() -> list[E]:
            events = (getattr(step, "event", None) for step in self.steps())
            return [one for one in events if isinstance(one, kind)]

        if some:
            self.until(lambda: found() or self.process.poll() is not None, kind.__name__)
        return found()

    def effects(self, kind: type[E]) -> list[E]:
        """The same of effects."""
        effects = (effect for step in self.steps() for effect in getattr(step, "effects", ()))
        return [effect for effect in effects if isinstance(effect, kind)]

    def steps(self) -> list[Step]:
        path = self.journal()
        return read(path)[1] if path is not None and self.journal_lines() else []

    def outcome(self) -> Outcome:
        """How the job ended, as this node's journal has it."""
        (finish,) = self.effects(Finish)
        return finish.outcome

    def first_failure(self) -> Failure:
        """The failure that the job's outcome names."""
        cause = self.outcome().cause
        assert cause is not None, self.outcome()
        return cause

    def journal_lines(self) -> int:
        path = self.journal()
        return path.read_bytes().count(b"\n") if path else 0

    def clean_up(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        for pid in self.running():
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass  # it ended between the look and the kill


def environment_of(pid: int) -> bytes:
    """The environment of a process as the kernel shows it; a dead one has none."""
    try:
        return Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return b""


def command_of(pid: int) -> bytes:
    """Its command line; empty for one that is dead, or whose program is only being loaded."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def name_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return "gone"


# Makes the terminal on standard input the controlling one, then runs the command.
TAKE_TERMINAL = """
import fcntl, os, sys, termios
os.setsid()
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
os.execv(sys.argv[1], sys.argv[1:])
"""


def in_shell(command: Sequence[str | Path], rest: str) -> tuple[str, ...]:
    """A shell that runs the command with `rest` behind it, and ends with the command's status."""
    line = shlex.join(map(str, command))
    return "bash", "-c", f"{line} {rest}; exit ${{PIPESTATUS[0]}}"


StartJob = Callable[..., Job]


@pytest.fixture
def start_program(tmp_path: Path) -> Iterator[StartJob]:
    """Start a command in a fresh folder, marked; everything of it is killed after the test."""
    jobs: list[Job] = []

    def start(
        *command: str | Path,
        files: Mapping[str, str] | None = None,
        env: Mapping[str, str | None] | None = None,
        stdin: int = subprocess.DEVNULL,
        terminal: bool = False,
        shell: str = "",
    ) -> Job:
        folder = tmp_path / f"job{len(jobs)}"
        (folder / "tmp").mkdir(parents=True)
        for name, text in (files or {}).items():
            (folder / name).parent.mkdir(exist_ok=True)
            (folder / name).write_text(textwrap.dedent(text))
        if shell:
            command = in_shell(command, shell)
        if terminal:
            command = (sys.executable, "-c", TAKE_TERMINAL, *command)
        mark = uuid.uuid4().hex
        own = {MARK: mark, "TMPDIR": str(folder / "tmp")}
        with open(folder / "agent.stdout", "wb") as out, open(folder / "agent.stderr", "wb") as err:
            process = subprocess.Popen(
                command,
                cwd=folder,
                env=job_environment({**own, **(env or {})}),
                stdin=stdin,
                stdout=out,
                stderr=err,
            )
        jobs.append(Job(process, folder, mark))
        return jobs[-1]

    yield start
    for job in jobs:
        job.clean_up()


@pytest.fixture
def start_job(holdfast: Path, start_program: StartJob) -> StartJob:
    """Start `holdfast run`; `script` is the program's text, or None where `words` name one."""

    def start(
        *words: str,
        script: str | None = None,
        args: tuple[str, ...] = (),
        files: Mapping[str, str] | None = None,
        log_dir: bool = True,
        **more: object,
    ) -> Job:
        command = [holdfast, "run", *(["--log-dir", "logs"] if log_dir else []), *words]
        program = {} if script is None else {"program.py": script}
        command += [*program, *args]
        return start_program(*command, files={**program, **(files or {})}, **more)

    return start


@pytest.fixture
def run_job(start_job: StartJob) -> StartJob:
    """Start a job, wait for its end, and check that nothing of it is left."""

    def run(*words: str, **more: object) -> Job:
        job = start_job(*words, **more)
        job.wait()
        job.expect_nothing_left()
        return job

    return run


def job_environment(changes: Mapping[str, str | None]) -> dict[str, str]:
    """The environment of the tests without any setting of a launcher, and with the changes."""
    plain = {k: v for k, v in os.environ.items() if not k.startswith(SETTINGS_PREFIXES)}
    merged: dict[str, str | None] = {**plain, **changes}
    return {name: value for name, value in merged.items() if value is not None}
