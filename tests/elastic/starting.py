"""What tests of `multiprocessing` share: how processes are started, and what may be left of them.

Whoever uses the fixtures imports them.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.waiting import until

from holdfast.elastic import multiprocessing as ours
from holdfast.elastic.multiprocessing import (
    DefaultLogsSpecs,
    PContext,
    start_processes,
    zygote_pool,
)

DEADLINE_S = 60.0
METHODS = ["spawn", "fork", pytest.param("forkserver", marks=pytest.mark.thorough)]
SHELL = "/bin/sh"
Module = Any


@pytest.fixture(autouse=True)
def signals_as_before() -> Iterator[None]:
    names = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)
    before = {number: signal.getsignal(number) for number in names}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture
def leaves_nothing() -> Iterator[None]:
    """No thread, process or descriptor is there after the test that was not there before."""
    before = held()
    yield
    zygote_pool.let_go()
    until(lambda: held() <= before, lambda: str(held() - before))


def held() -> set[str]:
    """What this process holds now."""
    threads = {f"thread {thread.name}" for thread in threading.enumerate()}
    children = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
    descriptors = set()
    for number in os.listdir("/proc/self/fd"):
        try:
            descriptors.add(f"{number}: {os.readlink(f'/proc/self/fd/{number}')}")
        except FileNotFoundError:
            pass  # The one that the folder was listed by.
    return threads | {f"process {pid}" for pid in children} | descriptors


def envs(number: int) -> dict[int, dict[str, str]]:
    return {rank: {} for rank in range(number)}


def shell(tmp_path: Path, *lines: str, module: Module = ours, **how: Any) -> Any:
    """Start a shell for each of these lines."""
    arguments = {rank: ("-c", line) for rank, line in enumerate(lines)}
    if "logs_specs" not in how:
        how["logs_specs"] = module.DefaultLogsSpecs(log_dir=str(tmp_path / "logs"))
    return module.start_processes("sh", SHELL, arguments, envs(len(lines)), **how)


def functions(
    tmp_path: Path, function: Callable[..., Any], *arguments: tuple[Any, ...], **how: Any
) -> PContext:
    if "logs_specs" not in how:
        how["logs_specs"] = DefaultLogsSpecs(log_dir=str(tmp_path / "logs"))
    by_rank = dict(enumerate(arguments))
    return start_processes("fn", function, by_rank, envs(len(by_rank)), **how)
