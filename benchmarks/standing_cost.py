"""(d) and (e): what a launcher costs while its workers work: memory, CPU time, wake-ups.

The workers sleep. Of Holdfast, agent and spawner count together; the zygote, where there is
one, is shown apart: it holds what the workers would hold themselves without it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import NamedTuple

from msgspec import Struct

from benchmarks import processes
from benchmarks.figures import HOLDFAST, TORCHRUN, Figure, Target
from benchmarks.jobs import Job, RunFailed
from benchmarks.launchers import Launcher, holdfast, torchrun
from benchmarks.session import Session

WORKERS = 2
START_DEADLINE_S = 60.0
SETTLE_S = 1.0
WATCH_S = 30.0
SPAWNER_NAME = "holdfast-spawn"
MEGABYTE = 1_000_000


class Staff(NamedTuple):
    """The processes that stand around the workers."""

    launcher: list[int]
    zygote: list[int]


class Variant(Struct, frozen=True):
    """A launcher with options, and who stands around its workers then."""

    launcher: Launcher
    staff: tuple[int, int]
    """How many processes belong to the launcher, and how many to its zygote and store."""
    options: tuple[str, ...] = ()


COLD = Variant(holdfast, (2, 0), ("--no-warm",))
WARM = Variant(holdfast, (2, 2), ("--preload", "torch"))
PEER = Variant(torchrun, (1, 0))


def memory(session: Session) -> list[Figure]:
    """(d) One job at a time, because what several share would be counted in part."""
    resident = Figure("d", "resident", "resident memory of agent and spawner, not warm", "MB")
    resident.target = Target("at most", 45)
    shared = Figure("d", "proportional", "… proportional (PSS)", "MB")
    zygote = Figure("d", "zygote_resident", "resident memory of zygote and store with torch", "MB")
    zygote_shared = Figure("d", "zygote_proportional", "… proportional (PSS)", "MB")
    for repeat in range(session.repeats):
        _take_memory(session, COLD, [resident, shared], repeat)
        _take_memory(session, PEER, [resident, shared], repeat)
        _take_memory(session, WARM, [zygote, zygote_shared], repeat)
    return [resident, shared, zygote, zygote_shared]


def _take_memory(session: Session, variant: Variant, figures: list[Figure], repeat: int) -> None:
    session.take(figures, variant.launcher, partial(sample_memory, session, variant), repeat)


def sample_memory(session: Session, variant: Variant) -> list[float]:
    """Resident and proportional megabytes of a launcher, or of its zygote where it has one."""
    with _started(session, variant) as job:
        job.settle(SETTLE_S)
        staff = _staff(job, variant)
        return list(_megabytes(staff.zygote or staff.launcher))


class Megabytes(NamedTuple):
    """Memory of several processes together."""

    resident: float
    proportional: float


def _megabytes(pids: list[int]) -> Megabytes:
    used = [processes.memory(pid) for pid in pids]
    return Megabytes(
        sum(one.resident_bytes for one in used) / MEGABYTE,
        sum(one.proportional_bytes for one in used) / MEGABYTE,
    )


class Activity(NamedTuple):
    """What processes have used since they began."""

    cpu_s: float
    wake_ups: int

    @classmethod
    def of(cls, pids: list[int]) -> Activity:
        cpu_s = sum(processes.cpu_seconds(pid) for pid in pids)
        return cls(cpu_s, sum(processes.wake_ups(pid) for pid in pids))


def idle(session: Session) -> list[Figure]:
    """(e) All of them stand idle over the same seconds: what they use is counted for each."""
    share = "% of a core"
    cpu = Figure("e", "cpu", f"CPU time of the idle agent and spawner over {WATCH_S:g} s", share)
    cpu.target = Target("below", 0.2)
    wake_ups = Figure("e", "wake_ups", f"… wake-ups in {WATCH_S:g} s", unit="")
    zygote = Figure("e", "zygote_cpu", "… CPU time of zygote and store", share)
    zygote_wake_ups = Figure("e", "zygote_wake_ups", "… wake-ups of zygote and store", unit="")
    for repeat in range(session.repeats):
        try:
            ours, theirs, warm = _watch(session)
        except (RunFailed, OSError) as failure:
            cpu.add_failure(HOLDFAST, str(failure))
            session.say(f"e  {repeat + 1}: FAILED: {failure}")
            continue
        for contender, used in ((HOLDFAST, ours), (TORCHRUN, theirs)):
            cpu.add(contender, 100 * used.cpu_s / WATCH_S)
            wake_ups.add(contender, used.wake_ups)
        zygote.add(HOLDFAST, 100 * warm.cpu_s / WATCH_S)
        zygote_wake_ups.add(HOLDFAST, warm.wake_ups)
        seconds = f"{1000 * ours.cpu_s:.1f} ms of CPU, torchrun {1000 * theirs.cpu_s:.1f} ms"
        session.say(f"e  idle for {WATCH_S:g} s, {repeat + 1}: holdfast {seconds}")
    return [cpu, wake_ups, zygote, zygote_wake_ups]


def _watch(session: Session) -> list[Activity]:
    """What each used in the time: Holdfast's agent and spawner, torchrun's agent, a zygote."""
    with ExitStack() as stack:
        variants = (COLD, PEER, WARM)
        jobs = [stack.enter_context(_started(session, variant)) for variant in variants]
        jobs[0].settle(SETTLE_S)
        cold, peer, warm = map(_staff, jobs, variants)
        watched = (cold.launcher, peer.launcher, warm.zygote)
        before = [Activity.of(pids) for pids in watched]
        jobs[0].settle(WATCH_S)
        after = [Activity.of(pids) for pids in watched]
    return [
        Activity(last.cpu_s - first.cpu_s, last.wake_ups - first.wake_ups)
        for first, last in zip(before, after, strict=True)
    ]


@contextmanager
def _started(session: Session, variant: Variant) -> Iterator[Job]:
    """A job whose workers sleep."""
    command = variant.launcher.command(WORKERS, "wait_to_be_stopped.py", *variant.options)
    with session.job(variant.launcher, command) as job:
        job.await_reports(lambda reports: len(reports) == WORKERS, START_DEADLINE_S)
        yield job


def _staff(job: Job, variant: Variant) -> Staff:
    """Who is who among the processes of a job. Raises `RunFailed` if somebody is missing."""
    workers = {report.pid for report in job.reports}
    spawners = [pid for pid in processes.children(job.pid) if processes.name(pid) == SPAWNER_NAME]
    zygotes = [pid for spawner in spawners for pid in processes.children(spawner)]
    staff = Staff([job.pid, *spawners], [pid for pid in zygotes if pid not in workers])
    if (len(staff.launcher), len(staff.zygote)) != variant.staff:
        raise RunFailed(f"{staff} are not the processes that should stand around the workers")
    return staff
