"""The demo: a job of four workers starts, loses one, and recovers, before your eyes.

    make demo

With the name of a folder as its argument it leaves the job's logs and journal there.

It runs `holdfast run` on `examples/training.py`, kills one worker with SIGKILL after a few
steps, and at the end reads the job's journal to tell what happened and how long each part
took.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from holdfast.core.node_io import WorkerExited
from holdfast.observe.history import LiveHistory
from holdfast.observe.journal import JournalHeader, NodeStep, Step, read

WORKERS = 4
VICTIM = 2
KILL_AFTER_STEP = 4
STEP_S = 0.15  # As in training.py.
STEP_LINE = re.compile(r"rank (\d+) pid (\d+) step (\d+) sum (\d+)")
COMMAND = [
    os.path.join(os.path.dirname(sys.executable), "holdfast"),
    "run",
    f"--nproc-per-node={WORKERS}",
    "--max-restarts=2",
]


def now() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def watch(job: subprocess.Popen[str]) -> float:
    """Show the steps as they come; kill the victim once. Returns when it was killed."""
    killed_at = 0.0
    seen: dict[int, set[int]] = {}
    assert job.stdout is not None
    for line in job.stdout:
        match = STEP_LINE.match(line)
        if match is None:
            print(line, end="")
            continue
        rank, pid, step, total = (int(group) for group in match.groups())
        ranks = seen.setdefault(step, set())
        ranks.add(rank)
        if len(ranks) == WORKERS:
            print(f"  step {step:2}   sum {total:3}   from {WORKERS} workers")
        if rank == VICTIM and step == KILL_AFTER_STEP and not killed_at:
            print(f"\n>>> kill -9 {pid}   (rank {VICTIM})\n")
            killed_at = now()
            os.kill(pid, signal.SIGKILL)
    return killed_at


def tell(header: JournalHeader, steps: list[Step], killed_at: float) -> None:
    """Say what happened, who, why, and how long each part took."""
    noticed = next(
        step
        for step in steps
        if isinstance(step, NodeStep)
        and isinstance(step.event, WorkerExited)
        and not step.event.status.succeeded
    )
    assert isinstance(noticed.event, WorkerExited)
    live = LiveHistory(header)
    for step in steps:
        live.feed(step)
    took_s = live.history.recoveries[0].parts_s
    print("\nWhat happened")
    print(f"  who      rank {VICTIM}, pid {noticed.event.pid}")
    print(f"  what     was killed by {noticed.event.status}")
    memory = noticed.event.out_of_memory or "no sign of memory running out"
    print(f"  why      this demo sent the signal ({memory})")
    print(f"  decided  stop the other {WORKERS - 1}, restart all (1 of 2 restarts used)\n")
    parts = [
        ("noticed the death", noticed.at - killed_at),
        ("stopped the others", took_s["stop"]),
        ("formed the next round", took_s["form"]),
        ("spawned its workers", took_s["spawn"]),
    ]
    for name, seconds in parts:
        print(f"  {name:24} {seconds * 1000:6.1f} ms")
    print(f"  {'all together':24} {sum(s for _, s in parts) * 1000:6.1f} ms")
    print(f"  {'first step of the new':24} {took_s['first step'] * 1000:6.1f} ms later", end="")
    print(f" ({STEP_S * 1000:.0f} of it are the step's own work)")


def main(keep_logs: str | None) -> int:
    with tempfile.TemporaryDirectory(prefix="holdfast_demo_") as folder:
        logs = keep_logs or os.path.join(folder, "logs")
        script = os.path.join(os.path.dirname(os.path.abspath(__file__)), "training.py")
        checkpoint = os.path.join(folder, "checkpoint")
        print(f"$ holdfast run --nproc-per-node={WORKERS} --max-restarts=2 examples/training.py\n")
        job = subprocess.Popen(
            [*COMMAND, f"--log-dir={logs}", script, checkpoint],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        with job:
            killed_at = watch(job)
        (journal,) = Path(logs).glob("*/journal.jsonl")
        tell(*read(journal), killed_at)
        return job.returncode


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1] if len(sys.argv) > 1 else None))
