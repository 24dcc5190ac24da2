"""The launches that the tests of a stack look at, made once for each stack, and the table of them.

Stacks whose environment is not made are skipped with the reason. TEST_STACKS=plain,jax leaves
out all others, made or not.
"""

from __future__ import annotations

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
    """The script launched cold, warm for the first time, warm again, and by torchrun."""
    base = tmp_path_factory.mktemp(stack.name)
    cold = launches.run(stack, COLD, base / "cold", base / "unused")
    first = launches.run(stack, WARM, base / "first", base / "memory")
    later = launches.run(stack, WARM, base / "later", base / "memory")
    torchrun = None
    if stack.has_torchrun:
        torchrun = launches.run(stack, TORCHRUN, base / "torchrun", base / "unused")
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
