"""(a) and (b): from the command to workers that ran, and to a group that has reduced once."""

from __future__ import annotations

from benchmarks.figures import Figure, Target
from benchmarks.jobs import Report
from benchmarks.launchers import Launcher
from benchmarks.session import Session

SIZES: tuple[int, ...] = (2, 8)
DEADLINE_S = 120.0
TARGETS_NOTHING = {2: Target("ratio at least", 12)}
TARGETS_GROUP = {2: Target("ratio at least", 1), 8: Target("ratio at least", 2.5)}


def launch_nothing(session: Session) -> list[Figure]:
    """(a) Workers that do nothing: all of it is the launcher's own time."""
    figures = []
    for size in SIZES:
        title = f"launch {size} workers that do nothing, total"
        figure = Figure("a", f"nothing_{size}", title, target=TARGETS_NOTHING.get(size))

        def sample(launcher: Launcher, size: int = size) -> list[float]:
            return sample_nothing(session, launcher, size)

        session.alternate([figure], sample)
        figures.append(figure)
    return figures


def launch_group(session: Session) -> list[Figure]:
    """(b) Workers that import torch and form a gloo group."""
    figures = []
    for size in SIZES:
        title = f"launch {size} workers with torch and gloo, to the last first all-reduce"
        own = [
            Figure("b", f"group_{size}", title, target=TARGETS_GROUP.get(size)),
            Figure("b", f"group_{size}_total", f"… {size} workers, total"),
        ]

        def sample(launcher: Launcher, size: int = size) -> list[float]:
            return sample_group(session, launcher, size)

        session.alternate(own, sample)
        figures += own
    return figures


def sample_nothing(session: Session, launcher: Launcher, size: int) -> list[float]:
    """The seconds of a whole job."""
    with session.job(launcher, launcher.command(size, "do_nothing.py")) as job:
        return [job.await_success(DEADLINE_S)]


def sample_group(session: Session, launcher: Launcher, size: int) -> list[float]:
    """The seconds to the last first all-reduce, and of the whole job."""

    def all_reported(reports: list[Report]) -> bool:
        return len(reports) == size

    with session.job(launcher, launcher.command(size, "first_all_reduce.py")) as job:
        job.await_reports(all_reported, DEADLINE_S)
        total_s = job.await_success(DEADLINE_S)
        reduced_at = max(report.reached for report in job.reports)
        return [reduced_at - job.started_at, total_s]
