"""Running one program three ways: as `python -u` does, as a cold worker, as a warm one.

The program runs in the same folder each time, with its streams in files, so that what it
wrote can be compared byte by byte. What it saw of itself it leaves as JSON in `$SAW.$RANK`.
A warm run whose worker was not in fact forked from a zygote is a failure of the test.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import textwrap
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import pytest

DEADLINE_S = 280.0
PLAIN, COLD, WARM = "plain", "cold", "warm"
SETTINGS_PREFIXES = ("HOLDFAST_", "PET_", "TORCHELASTIC_", "PYTHON", "OMP_", "OPENBLAS_", "MKL_")


class Run(NamedTuple):
    """How one run of the program ended, and what it left."""

    status: int
    """Of the program itself; negative for a signal."""
    stdout: bytes
    stderr: bytes
    saw: list[Any]
    """By rank."""
    journal: list[dict[str, Any]]
    console: str
    """What the launcher itself wrote to stderr."""
    logs: Path
    """The job's log directory."""

    @property
    def ending(self) -> tuple[int, bytes, bytes]:
        """All that an onlooker sees of it, but for addresses in memory."""
        stdout, stderr = (re.sub(rb"0x\w+", b"0x", text) for text in (self.stdout, self.stderr))
        return self.status, stdout, stderr

    def events(self, kind: str) -> list[dict[str, Any]]:
        """What happened, of one type, in the journal."""
        happened = [line["event"] for line in self.journal if "event" in line]
        return [event for event in happened if event["type"] == kind]

    @property
    def starts(self) -> list[bool]:
        """For each start of workers, whether they were forked from a zygote."""
        effects = [effect for line in self.journal for effect in line.get("effects", [])]
        return [effect.get("warm", False) for effect in effects if effect["type"] == "StartWorkers"]


class Program(NamedTuple):
    """A program in a folder, ready to be run in each way."""

    folder: Path
    results: Path
    holdfast: Path

    def write(self, files: Mapping[str, str | bytes]) -> Program:
        """Put files into the folder."""
        for name, text in files.items():
            path = self.folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            content = textwrap.dedent(text).encode() if isinstance(text, str) else text
            path.write_bytes(content)
        return self

    def run(
        self,
        how: str,
        *words: str,
        options: tuple[str, ...] = (),
        preload: tuple[str, ...] = (),
        env: Mapping[str, str] | None = None,
        stdin: bytes = b"",
        redirect: bool = True,
    ) -> Run:
        """Run it once. `words` are what follows `python -u` or `holdfast run`.

        What is to be preloaded concerns warm runs only. Without `redirect`, the streams
        are pipes.
        """
        results = self.results / f"{how}{time.monotonic_ns()}"
        results.mkdir(parents=True)
        command = [*self.launcher(how, results, redirect), *options]
        if how == WARM and preload:
            command.append(f"--preload={','.join(preload)}")
        command += words
        with open(results / "stdout.log", "ab") as out, open(results / "stderr.log", "ab") as err:
            done = subprocess.run(
                command,
                cwd=self.folder,
                env={**environment(), **(env or {}), "SAW": str(results / "saw")},
                input=stdin,
                stdout=out if redirect else subprocess.PIPE,
                stderr=err if redirect else subprocess.PIPE,
                timeout=DEADLINE_S,
                umask=0o27,  # one that is not what everything has anyway
                check=False,
            )
        run = read_run(how, results, done)
        if how == WARM:
            assert run.starts, f"no worker was started: {run.console}"
            assert all(run.starts), f"a worker was not warm: {run.console}"
        return run

    def launcher(self, how: str, results: Path, redirect: bool) -> list[str]:
        if how == PLAIN:
            return [self.interpreter, "-u"]
        logs = ["--log-dir", str(results / "logs"), *(["--redirects=3"] if redirect else [])]
        cold = ["--no-warm"] if how == COLD else []
        return [str(self.holdfast), "run", "--rdzv-id=job", *cold, *logs]

    @property
    def interpreter(self) -> str:
        """The one that the installed command runs with, by the same name."""
        return self.holdfast.read_text().splitlines()[0].removeprefix("#!")

    def each(self, *words: str, hows: tuple[str, ...] = (PLAIN, COLD, WARM), **more: Any) -> Each:
        """Run it in every way, side by side."""
        with ThreadPoolExecutor() as pool:
            runs = pool.map(lambda how: self.run(how, *words, **more), hows)
        return dict(zip(hows, runs, strict=True))


Each = dict[str, Run]
Same = Callable[..., Run]


class Launches(NamedTuple):
    """A program that is run again and again with the same variables."""

    program: Program
    env: Mapping[str, str]
    words: tuple[str, ...] = ()
    """What follows the program's name."""

    def __call__(self, how: str, *command: str, **more: str) -> Run:
        """Run it, or what is named instead; `more` are variables of this run only."""
        command = command or ("program.py",)
        env = {**self.env, **more}
        options = ("--max-restarts=1",)
        return self.program.run(how, *command, *self.words, options=options, env=env)


def environment() -> dict[str, str]:
    return {k: v for k, v in os.environ.items() if not k.startswith(SETTINGS_PREFIXES)}


def read_run(how: str, results: Path, done: subprocess.CompletedProcess[bytes]) -> Run:
    console = (done.stderr or b"") + (results / "stderr.log").read_bytes()
    stdout, stderr = done.stdout or b"", done.stderr or b""
    if done.stdout is None:
        logs = results if how == PLAIN else next(results.glob("logs/*/attempt_0/0"), results)
        stdout, stderr = (logs / "stdout.log").read_bytes(), (logs / "stderr.log").read_bytes()
    journal = [
        json.loads(line)
        for path in results.glob("logs/*/journal.jsonl")
        for line in path.read_text().splitlines()
    ]
    saw = [json.loads(path.read_text()) for path in sorted(results.glob("saw.*"))]
    directory = next(results.glob("logs/*"), results)
    told = console.decode(errors="replace")
    run = Run(done.returncode, stdout, stderr, saw, journal, told, directory)
    exits = run.events("WorkerExited")
    if exits:
        ended = exits[-1]["status"]
        number = ended.get("signal")
        run = run._replace(status=-number if number else ended.get("code", 0))
    return run


@pytest.fixture
def program(tmp_path: Path, holdfast: Path) -> Program:
    """A folder for a program."""
    folder = tmp_path / "program"
    folder.mkdir()
    return Program(folder, tmp_path / "results", holdfast)


@pytest.fixture(scope="module")
def shared_program(tmp_path_factory: pytest.TempPathFactory, holdfast: Path) -> Program:
    """A folder for a program that several tests look at."""
    folder = tmp_path_factory.mktemp("shared")
    (folder / "program").mkdir()
    return Program(folder / "program", folder / "results", holdfast)


@pytest.fixture
def same(program: Program) -> Same:
    """Run one program each way and require the same end; returns the warm run."""

    def check(*words: str, files: Mapping[str, str | bytes], **more: Any) -> Run:
        each = program.write(files).each(*words, **more)
        endings = {how: run.ending for how, run in each.items()}
        assert endings[WARM] == endings[COLD]
        if PLAIN in endings:
            assert endings[WARM] == endings[PLAIN]
        return each[WARM]

    return check
