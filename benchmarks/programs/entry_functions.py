"""What `through_either_api.py` has run by workers; nothing here needs torch to be imported."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import stamp

LOOK_EVERY_S = 0.005


def rank() -> int:
    return int(os.environ["RANK"])


def tensor() -> Any:
    import torch

    return torch.full((100, 100), float(rank()))


def rank_after_a_failure() -> int:
    """Rank 1 kills itself once, when rank 0 runs too; all say when the next attempt begins."""
    _fail_once(time.monotonic())
    return rank()


def tensor_after_a_failure() -> Any:
    """The same where it begins with a tensor."""
    value = tensor()
    _fail_once(time.monotonic())
    return value


def _fail_once(begun: float) -> None:
    if os.environ["TORCHELASTIC_RESTART_COUNT"] != "0":
        stamp.report(begun)
        return
    other_runs = Path(os.environ["BENCH_REPORTS"]).with_name("rank-0-runs")
    if rank() == 0:
        other_runs.touch()
    while rank() != 1:
        signal.pause()
    while not other_runs.exists():
        time.sleep(LOOK_EVERY_S)
    stamp.report(begun)
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("it is dead")
