"""Launching the script of a stack once, in one of several ways, and reading what it left.

Each launch has a folder of its own, in which the script runs and leaves its results; what
Holdfast may remember from one launch to the next lies in a folder that is passed from one to
the other, or is fresh. No setting of the user's, and no memory of theirs, is used or changed.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections import defaultdict
from pathlib import Path
from typing import Any, NamedTuple

from holdfast.core.protocol.preload_steps import module_of

from .environments import Stack, command, script

WORKERS = 2
DEADLINE_S = 240.0
HOLD_AT = 12
"""Steps after which workers that are to be killed wait: more than one checkpoint lies before."""
OUTPUT_TAIL = 3000
SETTINGS_PREFIXES = ("HOLDFAST_", "PET_", "TORCH", "PYTHON", "OMP_", "BENCH_", "STACK_")
WARM, COLD, TORCHRUN = "warm", "cold", "torchrun"


class LaunchFailed(Exception):
    """A launch that did not do what it was to do, and what it said."""


class Launch(NamedTuple):
    """What one launch left, by rank where each worker leaves something."""

    results: list[dict[str, Any]]
    imports: dict[int, list[dict[str, Any]]]
    """What the probe found, of each attempt."""
    journal: list[dict[str, Any]]
    folder: Path

    @property
    def digests(self) -> set[str]:
        return {result["digest"] for result in self.results}

    def events(self, kind: str) -> list[dict[str, Any]]:
        """What happened, of one type, in the journal."""
        happened = [line["event"] for line in self.journal if "event" in line]
        return [event for event in happened if event["type"] == kind]

    @property
    def preloaded(self) -> list[str]:
        """What the first workers were forked with."""
        ready = self.events("ZygoteReady")
        return modules_of(ready[0].get("preloaded", [])) if ready else []

    @property
    def planned(self) -> list[str]:
        """What was to be preloaded, before any of it was tried."""
        started = self.events("NodeStarted")
        return modules_of(started[0].get("preload", [])) if started else []

    @property
    def left_out(self) -> dict[str, str]:
        """Modules that were tried and cannot be preloaded, with the reasons."""
        rejected = self.events("ModuleRejected")
        return {module_of(event["module"]): event["reason"] for event in rejected}

    @property
    def starts(self) -> list[bool]:
        """For each start of workers, whether they were forked from a zygote."""
        effects = [effect for line in self.journal for effect in line.get("effects", [])]
        return [effect.get("warm", False) for effect in effects if effect["type"] == "StartWorkers"]

    def import_s(self, attempt: int = 0) -> float:
        """Seconds of import up to the first step, in the worker that had most of it."""
        found = [each["first_step"] for each in self.imports[attempt]]
        seconds: list[float] = [each["at_the_top"] + each["later"] for each in found]
        return max(seconds)

    def imported(self, attempt: int = 0) -> set[str]:
        """What workers had to load themselves up to the first step."""
        return {name for each in self.imports[attempt] for name in each["first_step"]["modules"]}


def modules_of(steps: list[str]) -> list[str]:
    """What these steps import."""
    return list(dict.fromkeys(filter(None, map(module_of, steps))))


def run(stack: Stack, how: str, folder: Path, memory: Path) -> Launch:
    """Launch the script of a stack and let it run to its end. Raises `LaunchFailed`."""
    process = _start(stack, how, folder, memory, {})
    _await_end(process, folder)
    return _read(folder)


def run_once(stack: Stack, how: str, folder: Path, memory: Path) -> Launch:
    """As `run`, unless somebody has done it: then what that launch left. One caller at a time."""
    done = folder.with_suffix(".done")
    if done.exists():
        return _read(folder)
    if folder.exists():
        raise _failure(folder, "it has failed before")
    found = run(stack, how, folder, memory)
    done.touch()
    return found


def run_and_kill(stack: Stack, folder: Path, memory: Path, settle_s: float = 0.0) -> Launch:
    """Kill rank 1 when both workers have come to the same step, then let the job end.

    `settle_s` is for whoever measures: how long they stay there before.
    """
    process = _start(stack, WARM, folder, memory, {"STACK_HOLD_AT": str(HOLD_AT)})
    try:
        victim = _await_hold(process, folder)
        if settle_s:
            time.sleep(settle_s)
        os.kill(victim, signal.SIGKILL)
    except BaseException:
        process.kill()
        process.wait()
        raise
    _await_end(process, folder)
    return _read(folder)


def words(stack: Stack, how: str) -> list[str]:
    """The launcher's command line, up to the script."""
    if how == TORCHRUN:
        own = [str(command(stack, "torchrun"))]
    else:
        own = [str(command(stack, "holdfast")), "run", "--log-dir=logs", "--max-restarts=2"]
        own += [f"--preload-timeout={DEADLINE_S:g}"]  # A busy machine must not start them cold.
        own += ["--no-warm"] if how == COLD else []
    return [*own, "--standalone", f"--nproc-per-node={WORKERS}"]


def environment(memory: Path, **more: str) -> dict[str, str]:
    """That of the caller without any settings, and with caches that are not the user's.

    matplotlib's list of fonts takes seconds to make and is kept apart, so that a fresh memory
    of ours does not make it anew.
    """
    plain = {k: v for k, v in os.environ.items() if not k.startswith(SETTINGS_PREFIXES)}
    own = {
        "OMP_NUM_THREADS": "1",
        "XDG_CACHE_HOME": str(memory),
        "MPLCONFIGDIR": str(memory.parent / "matplotlib"),
        "HF_HUB_OFFLINE": "1",
    }
    return {**plain, **own, **more}


def _start(
    stack: Stack, how: str, folder: Path, memory: Path, more: dict[str, str]
) -> subprocess.Popen[bytes]:
    folder.mkdir(parents=True)
    reports = folder / "reports"
    reports.touch()
    watch = {"BENCH_REPORTS": str(reports), "STACK_RESULTS": str(folder), "STACK_PROBE": "1"}
    with open(folder / "output.txt", "wb") as output:
        return subprocess.Popen(
            [*words(stack, how), str(script(stack)), *stack.short],
            cwd=folder,
            env=environment(memory, TMPDIR=str(folder), **watch, **more),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
        )


def _await_hold(process: subprocess.Popen[bytes], folder: Path) -> int:
    """Wait until every worker has come to the step; returns the process that is rank 1."""
    until = time.monotonic() + DEADLINE_S
    while True:
        lines = [line.split() for line in (folder / "reports").read_text().splitlines()]
        logs = [folder / f"steps-{fields[2]}" for fields in lines]
        held = [log for log in logs if log.exists() and log.read_text().count("\n") == HOLD_AT]
        if len(held) == WORKERS:
            return next(int(fields[2]) for fields in lines if fields[0] == "1")
        if process.poll() is not None or time.monotonic() > until:
            raise _failure(folder, f"it did not come to step {HOLD_AT}")
        time.sleep(0.01)


def _await_end(process: subprocess.Popen[bytes], folder: Path) -> None:
    try:
        status = process.wait(DEADLINE_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
        raise _failure(folder, f"it did not end within {DEADLINE_S:g} s") from None
    if status != 0:
        raise _failure(folder, f"it ended with status {status}")


def _failure(folder: Path, what: str) -> LaunchFailed:
    said = (folder / "output.txt").read_text(errors="replace")[-OUTPUT_TAIL:]
    return LaunchFailed(f"{what}, and said:\n{said}")


def _read(folder: Path) -> Launch:
    results = [json.loads(path.read_text()) for path in sorted(folder.glob("result-*.json"))]
    imports: dict[int, list[dict[str, Any]]] = defaultdict(list)
    for path in sorted(folder.glob("imports-*.json")):
        imports[int(path.stem.split("-")[2])].append(json.loads(path.read_text()))
    journal = [
        json.loads(line)
        for path in folder.glob("logs/*/journal.jsonl")
        for line in path.read_text().splitlines()
    ]
    return Launch(results, dict(imports), journal, folder)
