"""(f): how fast the output of workers goes to their files and the console, and what is lost.

Two workers write known lines as fast as they are taken, with `--tee 3` and a log directory;
the console is a pipe that is emptied as fast as it fills. The clock runs from the first byte
that a worker writes to the last one that arrives on the console: a launcher that lets the
workers write into files and shows them later has not finished when they have.

Files are compared byte for byte with what was written. In the timed runs the bytes of the
console are counted; in one more run, of less data, its lines are recorded and checked.
"""

from __future__ import annotations

import os
import re
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from benchmarks.figures import HOLDFAST, TORCHRUN, Figure, Target
from benchmarks.jobs import Job, Report, RunFailed
from benchmarks.launchers import Launcher
from benchmarks.programs import line_pattern
from benchmarks.session import Session

WORKERS = 2
MEGABYTES = {HOLDFAST: 500, TORCHRUN: 200}
"""Per worker. torchrun gets less, because it takes longer."""
RECORDED_MEGABYTES = 50
DEADLINE_S = 180.0
SPLICE_BYTES = 1 << 20
SHOWN_LINE = re.compile(rb"\[default(\d)\]:rank 0\1 block (\d{8}) line (\d{4}) \.+\n")
SHOWN_LINE_BYTES = len(b"[default0]:") + line_pattern.LINE_BYTES


class Console:
    """The reading end of a launcher's stdout: passes all of it on to a file, and counts."""

    def __init__(self, sink: Path) -> None:
        reading, self.writing = os.pipe()
        self._reading = reading
        self._sink = os.open(sink, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        self.received_bytes = 0
        self.last_at = 0.0
        self._thread = threading.Thread(target=self._pass_on, daemon=True)
        self._thread.start()

    def _pass_on(self) -> None:
        while moved := os.splice(self._reading, self._sink, SPLICE_BYTES):
            self.last_at = time.monotonic()
            self.received_bytes += moved

    def finish(self) -> None:
        """Wait until everybody who could write has closed it."""
        self._thread.join(DEADLINE_S)
        os.close(self._reading)
        os.close(self._sink)


def tee(session: Session) -> list[Figure]:
    """Throughput and loss in the timed runs, lines of the console in a recorded one."""
    speed = Figure(
        "f",
        "tee",
        "tee of 2 workers, 500 MB each (torchrun: 200), to files and console",
        "MB/s",
        True,
    )
    speed.target = Target("at least", 200)
    timed = [
        Figure("f", "tee_files", "… lines lost or changed in the files", unit=""),
        Figure("f", "tee_bytes", "… bytes too few or too many on the console", unit=""),
    ]
    recorded = [
        Figure("f", "tee_torn", "… lines torn or out of order on the console", unit=""),
        Figure("f", "tee_missing", "… lines missing on the console", unit=""),
    ]
    for figure in (*timed, *recorded):
        figure.target = Target("at most", 0)
    session.alternate([speed, *timed], partial(_sample_speed, session))
    for launcher in session.contenders:
        session.take(recorded, launcher, partial(_sample_lines, session, launcher), 0)
    return [speed, *timed, *recorded]


def _sample_speed(session: Session, launcher: Launcher) -> list[float]:
    megabytes = MEGABYTES[launcher.name]
    blocks = line_pattern.block_count(megabytes)
    lines = WORKERS * blocks * line_pattern.LINES_PER_BLOCK
    with _written(session, launcher, megabytes, Path(os.devnull)) as (job, console, logs):
        took_s = console.last_at - min(report.begun for report in job.reports)
        speed = lines * line_pattern.LINE_BYTES / 1_000_000 / took_s
        wrong = sum(_wrong_lines(_log_of(logs, rank), rank, blocks) for rank in range(WORKERS))
        return [speed, wrong, abs(console.received_bytes - lines * SHOWN_LINE_BYTES)]


def _sample_lines(session: Session, launcher: Launcher) -> list[float]:
    record = session.scratch / "console.txt"
    lines = line_pattern.block_count(RECORDED_MEGABYTES) * line_pattern.LINES_PER_BLOCK
    try:
        with _written(session, launcher, RECORDED_MEGABYTES, record):
            whole, torn = _count_lines(record)
            return [torn, WORKERS * lines - whole]
    finally:
        record.unlink(missing_ok=True)


@contextmanager
def _written(
    session: Session, launcher: Launcher, megabytes: int, sink: Path
) -> Iterator[tuple[Job, Console, Path]]:
    """A job that has written everything, what its console got, and where its files are."""

    def all_written(reports: list[Report]) -> bool:
        return len(reports) == WORKERS

    with session.folder() as logs, session.folder() as folder:
        options = ("--tee", "3", "--log-dir", str(logs))
        command = [*launcher.command(WORKERS, "write_lines.py", *options), str(megabytes)]
        console = Console(sink)
        try:
            job = Job(command, launcher.environment(session.scratch), folder, console.writing)
        finally:
            os.close(console.writing)
        try:
            with job:
                job.await_reports(all_written, DEADLINE_S)
                job.await_success(DEADLINE_S)
        finally:
            console.finish()
        yield job, console, logs


def _log_of(logs: Path, rank: int) -> Path:
    found = list(logs.glob(f"*/attempt_0/{rank}/stdout.log"))
    if len(found) != 1:
        raise RunFailed(f"rank {rank} has {len(found)} log files")
    return found[0]


def _wrong_lines(path: Path, rank: int, blocks: int) -> int:
    """How many lines of a worker's file are not there, or not what was written."""
    template = line_pattern.block_template(rank)
    wrong = 0
    with open(path, "rb") as file:
        for number in range(blocks):
            expected = line_pattern.block(template, number)
            found = file.read(len(expected))
            if found != expected:
                wrong += _differing(found.splitlines(), expected.splitlines())
        surplus = len(file.read())
    return wrong + -(-surplus // line_pattern.LINE_BYTES)


def _count_lines(record: Path) -> tuple[int, int]:
    """Lines of the console that are some worker's, whole and in its order; and all others."""
    whole = torn = 0
    next_of_rank = dict.fromkeys(range(WORKERS), 0)
    with open(record, "rb") as file:
        for line in file:
            found = SHOWN_LINE.fullmatch(line)
            if found is None or len(line) != SHOWN_LINE_BYTES:
                torn += 1
                continue
            rank, block, place = map(int, found.groups())
            number = block * line_pattern.LINES_PER_BLOCK + place
            if number < next_of_rank[rank]:
                torn += 1
            else:
                whole += 1
                next_of_rank[rank] = number + 1
    return whole, torn


def _differing(found: list[bytes], expected: list[bytes]) -> int:
    same = sum(1 for one, other in zip(found, expected, strict=False) if one == other)
    return max(len(found), len(expected)) - same
