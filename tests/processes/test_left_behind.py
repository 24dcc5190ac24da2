"""The tests' own check for what is left behind (`tests/conftest.py`)."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator

import pytest
from tests.process_tree import Process, family, running_below, status_of

PROGRAM = "read -r go; sleep 1000 & echo $!; wait"


@pytest.fixture(scope="module")
def late_starter() -> Iterator[subprocess.Popen[str]]:
    """Of the module: a program that starts another one when it is told to."""
    with subprocess.Popen(
        ["sh", "-c", PROGRAM], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as program:
        yield program
        for process in running_below({_process(program.pid)}):
            subprocess.run(["kill", str(process.pid)], check=True)
        program.kill()


def test_what_a_shared_fixture_starts_during_a_test_is_not_the_tests(
    late_starter: subprocess.Popen[str],
) -> None:
    # It goes on when this test is over, which fails then unless the check knows whose it is.
    assert late_starter.stdin
    assert late_starter.stdout
    late_starter.stdin.write("go\n")
    late_starter.stdin.flush()
    late = _process(int(late_starter.stdout.readline()))
    assert late in family().running
    assert running_below({_process(late_starter.pid)}) == {late}


def test_below_a_process_that_is_gone_there_is_nothing() -> None:
    with subprocess.Popen(["sleep", "1000"]) as program:
        process = _process(program.pid)
        program.kill()
    assert running_below({process}) == set()


def _process(pid: int) -> Process:
    status = status_of(pid)
    assert status is not None
    return status.process
