"""A demo of fault injection: a job of its own, faults, and the result.

Behind `holdfast chaos --demo` and `make soak`, which differ in the program and the faults.
"""

from __future__ import annotations

import shutil
import signal
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from msgspec import Struct

from holdfast.admin.client import AdminClient, AdminError
from holdfast.cli import options
from holdfast.cli.demo_job import DemoJob, DemoProgram
from holdfast.cli.fault_injection import (
    FaultInjector,
    FaultSchedule,
    InjectedFaults,
    InjectionLines,
    InjectionView,
    counted,
    summary,
)
from holdfast.cli.job_connection import connect_to_job
from holdfast.cli.status import look
from holdfast.cli.status_view import render as render_status
from holdfast.cli.top import Screen
from holdfast.core.protocol.errors import HoldfastError
from holdfast.core.protocol.requests import JobAsked, JobTold
from holdfast.observe.job_report import JobReport

START_S = 120.0
"""How long the job's first step may take: a busy machine may import for a minute."""
LINES_SHOWN = 8
ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class DemoResult(Struct, frozen=True):
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


class ScreenView:
    """The job on the screen, redrawn as it changes, and below it the faults."""

    def __init__(self, screen: Screen) -> None:
        self._screen = screen
        self._lines: deque[str] = deque(maxlen=LINES_SHOWN)

    def say(self, text: str) -> None:
        self._lines.append(text)

    def refresh(self, job: AdminClient) -> None:
        page = render_status(look(job)).rstrip("\n")
        self._screen.draw("\n".join([page, "", "faults", *(f"  {one}" for one in self._lines)]))


def run(
    program: DemoProgram, schedule: FaultSchedule, view: InjectionView | None = None
) -> DemoResult:
    """Run it, in a folder that is removed afterwards; printed on the screen, unless with a view.

    Raises `HoldfastError`, `KeyboardInterrupt`; nothing of it is left then, either.
    """
    folder = Path(tempfile.mkdtemp(prefix="holdfast-demo-"))
    job = DemoJob(program, folder)
    left: list[str] = []
    try:
        with _ended_by_signals():
            try:
                job.start()
                told, runs_on = _under(schedule, job, view)
                is_right = job.finish()
            except KeyboardInterrupt:
                print("\nending it", flush=True)
                raise
            finally:
                with _signals_ignored():
                    left = job.close()
                if left:
                    print(f"left behind: {'; '.join(left)}", file=sys.stderr)
        return _result(job, told, (runs_on, is_right), left)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def _signals_ignored() -> Iterator[None]:
    """It is ending already: a second Ctrl-C changes nothing."""
    with _handled(signal.SIG_IGN):
        yield


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


def _under(
    schedule: FaultSchedule, job: DemoJob, view: InjectionView | None
) -> tuple[InjectedFaults, bool]:
    with _first_step(job) as client:
        if view is not None or not sys.stdout.isatty():
            return _injected(client, schedule, view or InjectionLines())
        with Screen() as screen:
            return _injected(client, schedule, ScreenView(screen))


def _injected(
    client: AdminClient, schedule: FaultSchedule, view: InjectionView
) -> tuple[InjectedFaults, bool]:
    injector = FaultInjector(client, view)
    runs_on = injector.inject(schedule)
    return injector.told, runs_on


def _first_step(job: DemoJob) -> AdminClient:
    """A client of the job, once it steps. Raises `HoldfastError` if it never does."""
    program, until = job.program, time.monotonic() + START_S
    workers = counted(program.workers, "worker", "workers")
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
    job: DemoJob, told: InjectedFaults, ended: tuple[bool, bool], left: list[str]
) -> DemoResult:
    from holdfast.cli.journal_search import find_journals
    from holdfast.observe import job_report
    from holdfast.observe.journal import read

    found = find_journals([str(job.folder / "logs")])
    report = job_report.report([read(path) for path in found.journals])
    said = job.tail(lines=1000).splitlines()
    proofs = [line for line in said if line.endswith("exactly what they must")]
    proof = proofs[-1].partition("]: ")[2] or proofs[-1] if proofs else job.tail()
    return DemoResult(told, report, job.started_again, *ended, proof, tuple(left))


def render(result: DemoResult) -> str:
    """The report on a demo, as text."""
    from holdfast.observe.report_text import render_time

    faults = ", ".join(f"{count} × {what}" for what, count in result.told.faults.items())
    goodput = result.report.ledger.goodput or 0.0
    lines = ["", summary(result.told), f"  {faults or 'none'}", ""]
    lines += ["Where the time went", *render_time(result.report.ledger), ""]
    incidents = counted(len(result.report.ledger.incidents), "incident", "incidents")
    lines.append(f"goodput {goodput:.1%}, {incidents}")
    lines.append(f"agents started again: {result.started_again}")
    right = result.proof if result.is_right else f"the job did not end well:\n{result.proof}"
    lines.append(f"nothing was lost: {right}" if result.is_right else right)
    left = "; ".join(result.left) or "nothing: no process, no port, no file"
    return "\n".join([*lines, f"left behind: {left}"]) + "\n"
