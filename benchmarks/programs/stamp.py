"""How a program tells the benchmark when it got somewhere: one line through a named pipe.

The clock is CLOCK_MONOTONIC, which is the same one in every process of a machine. A line is
shorter than PIPE_BUF, so lines of different workers never mix. What happens again and again
goes into a file beside the pipe, one for each process, and is there even if it is killed.
"""

from __future__ import annotations

import os
import time

BEGUN = time.monotonic()
"""When this was imported, which is the first thing that a program here does."""


def report(begun: float = BEGUN) -> None:
    """Say that the point of interest was reached, just now."""
    now = time.monotonic()
    rank = os.environ["RANK"]
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    world = os.environ.get("WORLD_SIZE", "1")
    pipe = os.open(os.environ["BENCH_REPORTS"], os.O_WRONLY)
    os.write(pipe, f"{rank} {attempt} {os.getpid()} {begun} {now} {world}\n".encode())
    os.close(pipe)


def open_step_log() -> int:
    """The file that `log_step` writes to."""
    folder = os.path.dirname(os.environ["BENCH_REPORTS"])
    path = os.path.join(folder, f"steps-{os.getpid()}")
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)


def log_step(log: int) -> None:
    """Note that a step was done, just now."""
    os.write(log, f"{time.monotonic()}\n".encode())
