"""The launches that the tests of a stack look at, made once for each stack, and the table of them.

Stacks whose environment is not made are skipped with the reason. TEST_STACKS=plain,jax leaves
out all others, made or not.
"""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from typing import NamedTuple

import pytest

from . import launches, table
from .environments import STACKS, Stack, why_not_ready
from .launches import COLD, TORCHRUN, WARM, Launch

TIMEOUT_S = 900
WANTED = os.environ.get("TEST_STACKS", "").replace(",", " ").split()
entries: dict[str, table.Entry] = {}


class Launches(NamedTuple):
    """The script of one stack, launched in every way."""

    stack: Stack
    cold: Launch
    first: Launch
    """Warm, with nothing to remember."""
    later: Launch
    """Warm, with what the first one left to remember."""
    torchrun: Launch | None
    base: Path


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.get_closest_marker("stacks") and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(TIMEOUT_S))


@pytest.fixture(
    scope="module",
    params=[stack for stack in STACKS if not WANTED or stack.name in WANTED],
    ids=lambda stack: stack.name,
)
def stack(request: pytest.FixtureRequest) -> Stack:
    """One stack after the other; those whose environment is not made are skipped."""
    found: Stack = request.param
    if reason := why_not_ready(found):
        pytest.skip(reason)
    return found


@pytest.fixture(scope="module")
def launched(stack: Stack, tmp_path_factory: pytest.TempPathFactory) -> Launches:
    """The script launched cold, warm for the first time, warm again, and by torchrun.

    Once for all processes of a parallel run: those that come later wait, and read what is left.
    """
    everybodys = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        everybodys = everybodys.parent
    base = everybodys / f"launches-of-{stack.name}"
    base.mkdir(exist_ok=True)

    def launch(name: str, how: str, memory: str) -> Launch:
        return launches.run_once(stack, how, base / name, base / memory)

    with open(base / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        cold = launch("cold", COLD, "unused")
        first = launch("first", WARM, "memory")
        later = launch("later", WARM, "memory")
        torchrun = launch("torchrun", TORCHRUN, "unused") if stack.has_torchrun else None
    entries[stack.name] = table.Entry(stack.name, cold, first, later)
    return Launches(stack, cold, first, later, torchrun, base)


@pytest.fixture
def killed(launched: Launches) -> Launch:
    """A first launch of which rank 1 was killed."""
    base = launched.base
    found = launches.run_and_kill(launched.stack, base / "killed", base / "memory of killed")
    entries[launched.stack.name] = entries[launched.stack.name]._replace(killed=found)
    return found


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Nothing here is judged by time; what it took is shown all the same."""
    if entries:
        terminalreporter.section("what is left to import (not judged)")
        for entry in entries.values():
            terminalreporter.write_line(table.as_text(entry))
