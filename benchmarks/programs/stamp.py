"""How a program tells the benchmark when it got somewhere: one line through a named pipe.

The clock is CLOCK_MONOTONIC, which is the same one in every process of a machine. A line is
shorter than PIPE_BUF, so lines of different workers never mix.
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
    pipe = os.open(os.environ["BENCH_REPORTS"], os.O_WRONLY)
    os.write(pipe, f"{rank} {attempt} {os.getpid()} {begun} {now}\n".encode())
    os.close(pipe)
