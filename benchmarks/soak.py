"""The soak: a job under injected faults for a long time, which checks its own arithmetic.

    make soak [FOR=1h]
    python -m benchmarks.soak --for 5m [--seed N] [--out FOLDER] [--plain]

Three agents on this machine with one worker for each processor, DDP over gloo
(`programs/added_up.py`), a fault every 30 s on average: a worker is killed, or stopped for a
second, or a whole node is killed and started again. At the end it says where the time went, and
writes the same to FOLDER/summary.txt, with the numbers in FOLDER/summary.json. The status is 0 if
nothing was lost or left behind.

With `--plain` the workers only count (`programs/counted_up.py`), which needs no PyTorch, and there
is a fault every few seconds.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
from msgspec import Struct

from benchmarks.soak_job import SoakJob, SoakProgram
from holdfast.admin.client import AdminClient, AdminError
from holdfast.cli import options
from holdfast.cli.chaos import (
    FaultInjector,
    FaultRate,
    FaultSchedule,
    InjectedFaults,
    plan_faults,
    summary,
)
from holdfast.cli.job_connection import connect_to_job
from holdfast.cli.journal_search import find_journals
from holdfast.cli.values import duration
from holdfast.core.protocol.errors import HoldfastError
from holdfast.core.protocol.requests import JobAsked, JobTold
from holdfast.observe import job_report
from holdfast.observe.job_report import JobReport
from holdfast.observe.journal import read
from holdfast.observe.report_text import render_time
from holdfast.observe.summary import counted, length

FAULTS = (
    FaultRate("kill worker", 40.0),
    FaultRate("pause worker", 240.0, 1.0),
    FaultRate("kill node", 240.0),
)
"""Together one fault in 30 s."""
PLAIN_FAULTS = (
    FaultRate("kill worker", 4.0),
    FaultRate("pause worker", 20.0, 1.0),
    FaultRate("kill node", 8.0),
)
NODES = 3
WORKERS = max(1, (os.cpu_count() or 1) // NODES)
"""One rank for each processor, as people run them, or at least one for each node."""
PROGRAMS = Path(__file__).parent / "programs"
GOAL = 0.97
START_S = 120.0
"""How long the job's first step may take: a busy machine may import for a minute."""
ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class SoakResult(Struct, frozen=True):
    """The result."""

    told: InjectedFaults
    report: JobReport
    started_again: int
    """Agents that were killed, and started again."""
    runs_on: bool
    """Whether the job ran when the last fault was over."""
    is_right: bool
    """Whether it finished, and every worker found its own arithmetic correct."""
    proof: str
    """A worker's message about that, or the job's last lines."""
    left: tuple[str, ...]
    """Leftovers."""

    @property
    def is_well(self) -> bool:
        return self.runs_on and self.is_right and not self.left


def main(words: list[str]) -> int:
    asked = _parse(words)
    length_s, dice = duration(asked.length), random.Random(asked.seed)
    folder = Path(asked.out)
    print(f"a soak of {length(length_s)}, seed {asked.seed}", flush=True)
    faults = PLAIN_FAULTS if asked.plain else FAULTS
    file = PROGRAMS / ("counted_up.py" if asked.plain else "added_up.py")
    schedule = FaultSchedule(plan_faults(faults, length_s, dice), length_s, dice)
    loads: list[float] = []
    result = run(
        SoakProgram(file, NODES, WORKERS), schedule, lambda: loads.append(os.getloadavg()[0])
    )
    goodput = result.report.ledger.goodput or 0.0
    text = f"{render(result)}{_load_words(loads)}goal: goodput of at least {GOAL:.0%}: "
    text += "reached\n" if goodput >= GOAL else "missed\n"
    print(text, end="", flush=True)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "summary.txt").write_text(text)
    (folder / "summary.json").write_bytes(msgspec.json.encode(_numbers(result)))
    return 0 if result.is_well else 1


def _parse(words: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.soak")
    parser.add_argument("--for", dest="length", default="1h", metavar="TIME")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6))
    parser.add_argument("--out", default=".soak", metavar="FOLDER")
    parser.add_argument("--plain", action="store_true", help="count, without PyTorch")
    return parser.parse_args(words)


def run(program: SoakProgram, schedule: FaultSchedule, refresh: Callable[[], None]) -> SoakResult:
    """Run it, in a folder that is removed afterwards; `refresh` is called about once a second.

    Raises `HoldfastError`, `KeyboardInterrupt`; nothing of it is left then, either.
    """
    folder = Path(tempfile.mkdtemp(prefix="holdfast-soak-"))
    job = SoakJob(program, folder)
    left: list[str] = []
    try:
        with _ended_by_signals():
            try:
                job.start()
                with _first_step(job) as client:
                    injector = FaultInjector(client, refresh)
                    runs_on = injector.inject(schedule)
                is_right = job.finish()
            except KeyboardInterrupt:
                print("\nending it", flush=True)
                raise
            finally:
                with _handled(signal.SIG_IGN):  # A second Ctrl-C changes nothing.
                    left = job.close()
                if left:
                    print(f"left behind: {'; '.join(left)}", file=sys.stderr)
        return _result(job, injector.told, (runs_on, is_right), left)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def _ended_by_signals() -> Iterator[None]:
    """SIGTERM and SIGHUP end this as Ctrl-C does, leaving nothing behind."""

    def interrupt(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    with _handled(interrupt):
        yield


@contextmanager
def _handled(handler: Callable[[int, object], None] | signal.Handlers) -> Iterator[None]:
    before = {each: signal.signal(each, handler) for each in ENDING}
    try:
        yield
    finally:
        for number, former in before.items():
            signal.signal(number, former)


def _first_step(job: SoakJob) -> AdminClient:
    """A client of the job, once it steps. Raises `HoldfastError` if it never does."""
    program, until = job.program, time.monotonic() + START_S
    workers = counted(program.workers, "worker")
    print(f"{program.nodes} agents with {workers} each; Ctrl-C ends it", flush=True)
    why: HoldfastError = AdminError("the job did not come to its first step")
    while time.monotonic() < until and len(job.statuses) < program.nodes:
        try:
            client = connect_to_job("", options.split(job.connect_options)[0])
        except HoldfastError as error:
            why = error
            time.sleep(0.2)  # Nothing listens there yet, and no event would tell when it does.
            continue
        if _steps(client, until):
            return client
        client.close()
    raise AdminError(f"{why}\n{job.tail()}")


def _steps(client: AdminClient, until: float) -> bool:
    while time.monotonic() < until:
        told = client.ask_coordinator(JobAsked())
        if isinstance(told, JobTold) and told.stage == "running" and told.step is not None:
            return True
        client.pause(0.3)
    return False


def _result(
    job: SoakJob, told: InjectedFaults, ended: tuple[bool, bool], left: list[str]
) -> SoakResult:
    found = find_journals([str(job.folder / "logs")])
    report = job_report.report([read(path) for path in found.journals])
    said = job.tail(lines=1000).splitlines()
    proofs = [line for line in said if line.endswith("exactly what they must")]
    proof = proofs[-1].partition("]: ")[2] or proofs[-1] if proofs else job.tail()
    return SoakResult(told, report, job.started_again, *ended, proof, tuple(left))


def render(result: SoakResult) -> str:
    """The report, as text."""
    faults = ", ".join(f"{count} × {what}" for what, count in result.told.faults.items())
    goodput = result.report.ledger.goodput or 0.0
    lines = ["", summary(result.told), f"  {faults or 'none'}", ""]
    lines += ["Where the time went", *render_time(result.report.ledger), ""]
    incidents = counted(len(result.report.ledger.incidents), "incident")
    lines.append(f"goodput {goodput:.1%}, {incidents}")
    lines.append(f"agents started again: {result.started_again}")
    right = result.proof if result.is_right else f"the job did not end well:\n{result.proof}"
    lines.append(f"nothing was lost: {right}" if result.is_right else right)
    left = "; ".join(result.left) or "nothing: no process, no port, no file"
    return "\n".join([*lines, f"left behind: {left}"]) + "\n"


def _load_words(loads: list[float]) -> str:
    found = sorted(loads) or [0.0]
    middle = f"{found[len(found) // 2]:.1f}, at most {found[-1]:.1f}"
    return f"load of this machine, over a minute: {middle}; processors: {os.cpu_count()}\n"


def _numbers(result: SoakResult) -> dict[str, object]:
    book, told = result.report.ledger, result.told
    return {
        "seconds": book.end - book.start,
        "goodput": book.goodput,
        "parts_s": book.parts_s,
        "incidents": [
            {"reason": one.reason, "parts_s": one.parts_s, "steps_lost": one.steps_lost}
            for one in book.incidents
        ],
        "faults": told.faults,
        "recoveries_s": told.recoveries_s,
        "started_again": result.started_again,
        "is_right": result.is_right,
        "left": result.left,
    }


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
