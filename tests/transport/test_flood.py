"""Ten thousand strangers at once disturb nobody."""

from __future__ import annotations

import resource
import subprocess
import sys
from pathlib import Path

import pytest

FLOOD = Path(__file__).with_name("flood.py")


def run(connections: int) -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < connections + 200:
        pytest.skip(f"needs {connections + 200} descriptors, and {hard} are allowed here")
    ended = subprocess.run(
        [sys.executable, FLOOD, str(connections)],
        check=False,
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr


def test_a_thousand_connections_disturb_nobody() -> None:
    run(900)


@pytest.mark.thorough
@pytest.mark.slow
def test_ten_thousand_connections_disturb_nobody() -> None:
    run(10_000)
