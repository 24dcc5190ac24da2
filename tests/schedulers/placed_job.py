"""A job that a scheduler places: how it is started, what its workers did, and how it ended."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from ..integration.nodes.story import Story, Worker
from .slurm_cluster import DEADLINE_S, Command, SlurmCluster

PROGRAM = Path(__file__).with_name("plain_job.py")
STEPS_SEEN = 3
BATCH = "#!/bin/bash\n"
ENDED_WELL = "holdfast: succeeded in "
"""What the last line of an agent begins with whose job succeeded."""


class PlacedJob:
    """The folder of a job that runs `plain_job.py`, and the commands that a test gave for it."""

    def __init__(self, cluster: SlurmCluster, folder: Path, holdfast: Path) -> None:
        self.cluster = cluster
        self.folder = folder
        self.holdfast = holdfast
        self.shared = folder / "shared"
        self.shared.mkdir()
        self.story = Story(self.shared)
        self.commands: list[Command] = []

    def words(self, *options: str) -> list[str | Path]:
        """`holdfast run` with these options, and the program."""
        return [self.holdfast, "run", *options, PROGRAM, self.shared]

    def line(self, *options: str) -> str:
        """The same as a line of a batch script."""
        return " ".join(map(str, self.words(*options)))

    def start(self, *words: str | Path, env: dict[str, str] | None = None) -> Command:
        """Start a command where users submit."""
        self.commands.append(self.cluster.start(words, self.folder, env))
        return self.commands[-1]

    def submit(self, script: str, *options: str) -> str:
        """Submit a batch script; its output goes into files `*.out` of the folder."""
        return self.cluster.submit(BATCH + script, self.folder, *options)

    # --- what happens -----------------------------------------------------------------------

    def until(self, condition: Callable[[], object], what: str) -> None:
        deadline = time.monotonic() + DEADLINE_S
        while not condition():
            if time.monotonic() > deadline:
                pytest.fail(f"waited in vain: {what}\n{self.record()}", pytrace=False)
            time.sleep(0.02)

    def until_stepping(self, world: int, after: int = 0) -> int:
        """Wait for a later round in which so many workers do steps; return its number."""
        self.until(
            lambda: self.newest() > after and self._all_step(world),
            f"steps of {world} workers in a round after {after}",
        )
        return self.newest()

    def _all_step(self, world: int) -> bool:
        workers = self.story.rounds().get(self.newest(), [])
        return len(workers) == world and all(len(w.steps) >= STEPS_SEEN for w in workers)

    def newest(self) -> int:
        return max(self.story.rounds(), default=0)

    def hosts_of(self, number: int) -> list[str]:
        """The hosts of a round, in the order of their ranks."""
        return [worker.host for worker in self.workers(number)]

    def workers(self, number: int) -> list[Worker]:
        return self.story.rounds().get(number, [])

    def kill_worker(self, number: int, rank: int) -> None:
        worker = next(w for w in self.workers(number) if w.rank == rank)
        os.kill(worker.pid, signal.SIGKILL)

    def say(self, word: str) -> None:
        (self.shared / word).touch()

    def status(self, command: Command) -> int:
        """Wait for the end of a command."""
        self.until(lambda: command.process.poll() is not None, "the end of the command")
        status: int = command.process.returncode
        return status

    def finish(self, command: Command) -> int:
        self.say("finish")
        return self.status(command)

    def check(self) -> None:
        """No two rounds overlapped, and ranks were right."""
        assert self.story.mistakes() == [], str(self.story)

    @property
    def output(self) -> str:
        """All that batch scripts printed."""
        paths = sorted(self.folder.rglob("*.out"))
        return "\n".join(path.read_text(errors="replace") for path in paths)

    def record(self) -> str:
        said = [f"{c.output}:\n{c.stdout}\n{c.stderr}" for c in self.commands]
        return "\n".join([str(self.story), *said, self.output, self.cluster.record()])
