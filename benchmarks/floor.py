"""The floor: what the machine itself needs for what no launcher can avoid."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

from benchmarks.figures import Figure
from benchmarks.jobs import Job
from benchmarks.launchers import PROGRAMS, holdfast
from benchmarks.programs import line_pattern
from benchmarks.session import Session

FLOOR = "floor"
DEADLINE_S = 120.0
TEE_MEGABYTES = 500
SHELL_PARALLEL = 'n=0; while [ $n -lt "$1" ]; do "$2" -c "$3" & n=$((n+1)); done; wait'
SHELL_TEE = '"$1" "$2" "$3" | tee "$4" | cat >/dev/null'
FORKED = {
    "fork_and_exit": "fork and exit of a process with torch imported",
    "connect_2": "gloo group and first all-reduce of 2 running processes",
    "connect_4": "gloo group and first all-reduce of 4 running processes",
    "connect_8": "gloo group and first all-reduce of 8 running processes",
    "fork_and_connect_2": "gloo group and first all-reduce of 2 processes, forked for it",
    "fork_and_connect_4": "gloo group and first all-reduce of 4 processes, forked for it",
    "fork_and_connect_8": "gloo group and first all-reduce of 8 processes, forked for it",
}


def floor(session: Session) -> list[Figure]:
    """Interpreter start, import of torch, fork, gloo, and the `tee` of coreutils."""
    figures = [
        _interpreters(session, "interpreter", "bare interpreter", 1, "pass"),
        _interpreters(session, "interpreters_8", "8 bare interpreters at once", 8, "pass"),
        _interpreters(session, "import_torch", "interpreter that imports torch", 1, "import torch"),
        *_forked(session),
    ]
    if shutil.which("tee"):
        figures.append(_tee(session))
    return figures


def _interpreters(session: Session, name: str, title: str, number: int, code: str) -> Figure:
    figure = Figure(FLOOR, name, title)
    command = [sys.executable, "-c", code]
    if number > 1:
        command = ["sh", "-c", SHELL_PARALLEL, "sh", str(number), sys.executable, code]
    for _ in range(session.repeats):
        with session.folder() as folder, _job(session, command, folder) as job:
            figure.add(FLOOR, job.await_success(DEADLINE_S))
    _say(session, figure)
    return figure


def _forked(session: Session) -> list[Figure]:
    command = [sys.executable, str(PROGRAMS / "fork_and_connect.py"), str(session.repeats)]
    with session.folder() as folder, _job(session, command, folder) as job:
        job.await_success(DEADLINE_S)
        found = json.loads((folder / "output.txt").read_text())
    figures = [
        Figure(FLOOR, name, title, samples={FLOOR: found[name]}) for name, title in FORKED.items()
    ]
    for figure in figures:
        _say(session, figure)
    return figures


def _tee(session: Session) -> Figure:
    """One writer through `tee` to a file and on through a pipe: no lines, no prefixes."""
    figure = Figure(FLOOR, "tee", "one worker through the tee of coreutils", "MB/s", True)
    program = str(PROGRAMS / "write_lines.py")
    megabytes = line_pattern.block_count(TEE_MEGABYTES) * line_pattern.BLOCK_BYTES / 1_000_000
    for _ in range(session.repeats):
        with session.folder() as folder:
            words = [sys.executable, program, str(TEE_MEGABYTES), str(folder / "copy")]
            with _job(session, ["sh", "-c", SHELL_TEE, "sh", *words], folder) as job:
                ended_s = job.await_success(DEADLINE_S)
                job.await_reports(lambda reports: len(reports) == 1, DEADLINE_S)
                figure.add(FLOOR, megabytes / (job.started_at + ended_s - job.reports[0].begun))
    _say(session, figure)
    return figure


def _job(session: Session, command: list[str], folder: Path) -> Job:
    environment = holdfast.environment(session.scratch)
    return Job(command, {**environment, "RANK": "0"}, folder)


def _say(session: Session, figure: Figure) -> None:
    session.say(f"{FLOOR}  {figure.title}: {figure.show(FLOOR)}")
