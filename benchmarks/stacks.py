"""(p): real stacks, each in an environment of its own, with Holdfast beside that one's torchrun.

The scripts are those of `examples/stacks`, unchanged. Two things are timed, from outside: four
workers, from the command to the first step of all of them; and rank 1 of two killed while the
job steps, to the first step of everybody's next attempt.

Holdfast may remember from one launch to the next what a program imports late, so each is timed
twice: at the *first launch*, with an empty memory, and at a *later launch*, with what an earlier
one left. torchrun remembers nothing; its one sample of each repeat stands in both rows.

Before a worker is killed, and before a launch is ended that another is to learn from, the job
runs for `SETTLE_S` after the first step of all: what is learned then is learned beside it.

JAX has no torchrun. What stands beside it is Holdfast with `--no-warm`.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from msgspec import Struct
from tests.stacks.environments import STACKS, Stack, command, make, script

from benchmarks.figures import HOLDFAST, TORCHRUN, Figure, Target
from benchmarks.jobs import Job, Report
from benchmarks.launchers import UNSHARED_STORE, Launcher
from benchmarks.recovery import await_recovery
from benchmarks.session import Session

REPEATS = 3
"""At most: a repeat of one stack takes more than a minute."""
LAUNCHED = 4
KILLED_OF = 2
SETTLE_S = 10.0
FORM_DEADLINE_S = 180.0
RECOVER_DEADLINE_S = 120.0
END_DEADLINE_S = 40.0
OPTIONS = ("--max-restarts", "3", "--monitor-interval", "0.1")
TARGET = Target("ratio at least", 10)


class Contender(Struct, frozen=True):
    """A launcher of one environment, and where it may remember something."""

    launcher: Launcher
    stack: Stack

    def job_command(self, workers: int, *options: str) -> list[str]:
        launcher, stack = self.launcher, self.stack
        words = launcher.command(workers, str(script(stack)), *options)
        return [*words, *stack.endless]

    def remembering(self, memory: Path) -> Launcher:
        """The same launcher with another memory."""
        variables = {**self.launcher.variables, "XDG_CACHE_HOME": str(memory)}
        return Launcher(self.launcher.name, self.launcher.words, variables)


class Case(Struct, frozen=True):
    """One thing to time, of one stack, at the first launch and at a later one."""

    first: Figure
    later: Figure
    sample: Callable[[Session, Contender, Path], list[float]]


def stacks(session: Session) -> list[Figure]:
    """Every stack in turn; environments that are not there are made."""
    figures = []
    for stack in STACKS:
        make(stack)
        ours, theirs = _contenders(session, stack)
        for contender in (ours, theirs):
            _warm_up(session, contender)
        for case in _cases(stack):
            for repeat in range(min(REPEATS, session.repeats)):
                _take(session, case, (ours, theirs), repeat)
            figures += [case.first, case.later]
    return figures


def _contenders(session: Session, stack: Stack) -> tuple[Contender, Contender]:
    """Both with the caches of others filled already: matplotlib's fonts take it seconds."""
    variables = {"MPLCONFIGDIR": str(session.scratch / "matplotlib"), "HF_HUB_OFFLINE": "1"}
    run = (str(command(stack, "holdfast")), "run")
    ours = Launcher(HOLDFAST, run, variables)
    if stack.has_torchrun:
        torchrun = (str(command(stack, "torchrun")),)
        theirs = Launcher(TORCHRUN, torchrun, {**variables, **UNSHARED_STORE})
    else:
        theirs = Launcher(TORCHRUN, (*run, "--no-warm"), variables)
    return Contender(ours, stack), Contender(theirs, stack)


def _cases(stack: Stack) -> list[Case]:
    beside = "" if stack.has_torchrun else " (beside --no-warm)"
    launch = f"{stack.name}{beside}: launch {LAUNCHED} workers, to the last first step"
    kill = (
        f"{stack.name}{beside}: worker of {KILLED_OF} killed {SETTLE_S:g} s after the first step, "
        "to the last first step again"
    )
    target = TARGET if stack.has_torchrun else None
    return [
        Case(
            Figure("p", f"{stack.name}_launch_first", f"{launch}, first launch"),
            Figure("p", f"{stack.name}_launch_later", "… later launch"),
            _launch_s,
        ),
        Case(
            Figure("p", f"{stack.name}_kill_first", f"{kill}, first launch", target=target),
            Figure("p", f"{stack.name}_kill_later", "… later launch", target=target),
            _recover_s,
        ),
    ]


def _take(
    session: Session, case: Case, contenders: tuple[Contender, Contender], repeat: int
) -> None:
    """Holdfast with an empty memory, Holdfast with what that left, then the other."""
    ours, theirs = contenders
    with session.folder() as memory:
        memory.mkdir()
        for figure in (case.first, case.later):
            sample = partial(case.sample, session, ours, memory)
            session.take([figure], ours.launcher, sample, repeat)
    with session.folder() as unused:
        unused.mkdir()

        def both() -> list[float]:
            return case.sample(session, theirs, unused) * 2

        session.take([case.first, case.later], theirs.launcher, both, repeat)


def _launch_s(session: Session, contender: Contender, memory: Path) -> list[float]:
    with _stepping(session, contender, memory, LAUNCHED) as job:
        stepping_at = max(report.reached for report in job.reports)
        job.settle(SETTLE_S)
        job.end(END_DEADLINE_S)  # So that what is kept for later is kept.
        return [stepping_at - job.started_at]


def _recover_s(session: Session, contender: Contender, memory: Path) -> list[float]:
    with _stepping(session, contender, memory, KILLED_OF) as job:
        job.settle(SETTLE_S)
        victim = next(report.pid for report in job.reports if report.rank == 1)
        killed_at = time.monotonic()
        os.kill(victim, signal.SIGKILL)
        attempt = await_recovery(job, KILLED_OF, RECOVER_DEADLINE_S)
        again = [report.reached for report in job.reports if report.attempt == attempt]
        job.settle(SETTLE_S)
        job.end(END_DEADLINE_S)  # So that what is kept for later is kept.
        return [max(again) - killed_at]


@contextmanager
def _stepping(session: Session, contender: Contender, memory: Path, workers: int) -> Iterator[Job]:
    """A job of which every worker has done its first step."""

    def all_stepped(reports: list[Report]) -> bool:
        return len(reports) == workers

    launcher = contender.remembering(memory)
    with session.job(launcher, contender.job_command(workers, *OPTIONS)) as job:
        job.await_reports(all_stepped, FORM_DEADLINE_S)
        yield job


def _warm_up(session: Session, contender: Contender) -> None:
    """One launch that does not count: the files are in the machine's memory afterwards."""
    session.say(f"warming up: {contender.stack.name}, {contender.launcher.name}")
    with session.folder() as memory:
        memory.mkdir()
        with _stepping(session, contender, memory, KILLED_OF):
            pass
