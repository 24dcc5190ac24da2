"""The soak, without PyTorch and for seconds: a job recovers from faults, and nothing is left."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]


def soak(folder: Path, *words: str) -> subprocess.Popen[str]:
    (folder / "temporary").mkdir()
    command = [sys.executable, "-m", "benchmarks.soak", "--plain", "--out", str(folder / "out")]
    environ = {**os.environ, "TMPDIR": str(folder / "temporary")}
    return subprocess.Popen(
        [*command, *words], stdout=subprocess.PIPE, text=True, env=environ, cwd=REPOSITORY
    )


@pytest.mark.slow
def test_a_job_under_faults_loses_nothing_and_leaves_nothing(tmp_path: Path) -> None:
    with soak(tmp_path, "--for", "9s", "--seed", "2") as running:
        said, _ = running.communicate(timeout=300)
    assert running.returncode == 0, said
    known = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert (known["is_right"], known["left"]) == (True, [])
    assert known["faults"]["kill worker"] >= 1
    assert known["recoveries_s"]
    assert not list((tmp_path / "temporary").iterdir())


@pytest.mark.thorough
def test_a_soak_that_is_interrupted_leaves_nothing(tmp_path: Path) -> None:
    with soak(tmp_path, "--for", "60s") as running:
        assert running.stdout is not None
        while "kill worker" not in running.stdout.readline():
            assert running.poll() is None, "it ended by itself"
        running.send_signal(signal.SIGINT)
        running.stdout.read()
        assert running.wait(100) == -signal.SIGINT
    assert not list((tmp_path / "temporary").iterdir())
