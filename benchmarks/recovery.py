"""(c): from the SIGKILL of a worker to the first all-reduce of everybody's next attempt.

The job steps; rank 1 is killed from outside. Recovered is the moment at which, of one and the
same later attempt, every rank has finished its first all-reduce.
"""

from __future__ import annotations

import os
import signal
import time
from collections import Counter

from msgspec import Struct

from benchmarks.figures import TORCHRUN, Figure, Target
from benchmarks.jobs import Job, Report, RunFailed
from benchmarks.launchers import Launcher, torchrun_by_default
from benchmarks.session import Session

SIZES = (2, 4)
FORM_DEADLINE_S = 120.0
RECOVER_DEADLINE_S = 30.0
SETTLE_S = 0.5
DEFAULT_RUNS = 4
OPTIONS = ("--max-restarts", "3", "--monitor-interval", "0.1")
NEVER = f"never recovered within {RECOVER_DEADLINE_S:g} s"


class NeverRecovered(RunFailed):
    """The group formed, lost a worker, and did not come back in time."""


class Case(Struct, frozen=True):
    """A group of one size, and what is to be found out about it."""

    size: int
    times: list[Figure]
    never: Figure


def recover(session: Session) -> list[Figure]:
    """Both contenders in turn, then torchrun as it is without the variable that it needs."""
    figures = []
    for size in SIZES:
        case = _case(size)
        for repeat in range(session.repeats):
            for launcher in session.contenders:
                _take(session, case, launcher, repeat)
        figures += [*case.times, case.never]
    return [*figures, *_by_default(session)]


def _case(size: int) -> Case:
    title = f"worker of {size} killed, to the next attempt's last first all-reduce"
    times = [
        Figure("c", f"recover_{size}", title, target=Target("ratio at least", 10)),
        Figure("c", f"recover_{size}_begun", f"… of {size}, to the last one's first line"),
    ]
    never = Figure("c", f"never_{size}", f"… of {size}, {NEVER}", unit="", counts_runs=True)
    never.target = Target("at most", 0)
    return Case(size, times, never)


def _by_default(session: Session) -> list[Figure]:
    """How often torchrun recovers in the set-up that it has by default."""
    case = _case(2)
    for repeat in range(min(DEFAULT_RUNS, session.repeats)):
        _take(session, case, torchrun_by_default, repeat)
    figures = []
    for found in (case.times[0], case.never):
        title = f"{found.title} (default set-up)"
        figure = Figure("c", f"{found.name}_by_default", title, found.unit)
        figure.counts_runs = found.counts_runs
        figure.samples[TORCHRUN] = found.samples.get(torchrun_by_default.name, [])
        figure.failures[TORCHRUN] = found.failures.get(torchrun_by_default.name, [])
        figures.append(figure)
    return figures


def _take(session: Session, case: Case, launcher: Launcher, repeat: int) -> None:
    def sample() -> list[float]:
        try:
            values = sample_recovery(session, launcher, case.size)
        except NeverRecovered:
            case.never.add(launcher.name, 1)
            raise
        case.never.add(launcher.name, 0)
        return values

    session.take(case.times, launcher, sample, repeat)


def sample_recovery(session: Session, launcher: Launcher, size: int) -> list[float]:
    """The seconds from the kill to the next attempt's last first all-reduce and first line."""
    command = launcher.command(size, "step_until_killed.py", *OPTIONS)
    with session.job(launcher, command) as job:
        job.await_reports(lambda reports: len(reports) == size, FORM_DEADLINE_S)
        job.settle(SETTLE_S)
        victim = next(report.pid for report in job.reports if report.rank == 1)
        killed_at = time.monotonic()
        os.kill(victim, signal.SIGKILL)
        attempt = await_recovery(job, size)
        again = [report for report in job.reports if report.attempt == attempt]
        return [
            max(report.reached for report in again) - killed_at,
            max(report.begun for report in again) - killed_at,
        ]


def await_recovery(job: Job, size: int, deadline_s: float = RECOVER_DEADLINE_S) -> int:
    """The number of the first later attempt in which all ranks have reported."""

    def complete(reports: list[Report]) -> list[int]:
        counts = Counter(report.attempt for report in reports if report.attempt > 0)
        return [attempt for attempt, count in counts.items() if count == size]

    try:
        job.await_reports(lambda reports: bool(complete(reports)), deadline_s)
    except RunFailed as failure:
        raise NeverRecovered(str(failure)) from failure
    return min(complete(job.reports))
