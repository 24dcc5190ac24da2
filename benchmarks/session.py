"""One run of the benchmark: where it may write, how often it repeats, what it prints."""

from __future__ import annotations

import itertools
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from benchmarks.figures import Figure, format_value
from benchmarks.jobs import Job, RunFailed
from benchmarks.launchers import CONTENDERS, Launcher


class Session:
    """What every measure is given."""

    def __init__(
        self, repeats: int, scratch: Path, contenders: Sequence[Launcher] = CONTENDERS
    ) -> None:
        self.repeats = repeats
        self.contenders = contenders
        self.scratch = scratch
        self._numbers = itertools.count()
        self._begun = time.monotonic()

    def say(self, text: str) -> None:
        """A line of progress, with the seconds since the start."""
        print(f"[{time.monotonic() - self._begun:5.0f} s] {text}", flush=True)

    @contextmanager
    def folder(self) -> Iterator[Path]:
        """A path for one run, not made yet; what is there afterwards is removed."""
        path = self.scratch / f"run-{next(self._numbers)}"
        try:
            yield path
        finally:
            shutil.rmtree(path, ignore_errors=True)

    @contextmanager
    def job(self, launcher: Launcher, command: list[str]) -> Iterator[Job]:
        """Start a command; when this is left, all of it is gone."""
        environment = launcher.environment(self.scratch)
        with self.folder() as path, Job(command, environment, path) as job:
            yield job

    def alternate(self, figures: list[Figure], sample: Callable[[Launcher], list[float]]) -> None:
        """Take a sample of each figure from each contender in turn, again and again."""
        for repeat in range(self.repeats):
            for launcher in self.contenders:
                self.take(figures, launcher, partial(sample, launcher), repeat)

    def take(
        self,
        figures: list[Figure],
        launcher: Launcher,
        sample: Callable[[], list[float]],
        repeat: int,
    ) -> None:
        """One sample of each figure, or the reason why there is none."""
        what = f"{figures[0].measure}  {figures[0].title}: {launcher.name} {repeat + 1}"
        try:
            values = sample()
        except (RunFailed, OSError) as failure:
            # An OSError: a process that was looked at had ended.
            for figure in figures:
                figure.add_failure(launcher.name, str(failure))
            self.say(f"{what}: FAILED: {failure}")
            return
        for figure, value in zip(figures, values, strict=True):
            figure.add(launcher.name, value)
        self.say(f"{what}: {format_value(values[0])} {figures[0].unit}")
