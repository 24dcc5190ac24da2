"""`holdfast run --check`: a node that is not fit stays out, and says why."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from holdfast.cli import sentences

from ..free_ports import free_port
from ..waiting import until
from .conftest import Run


def test_a_machine_that_is_well_runs_the_job(run_holdfast: Run) -> None:
    done = run_holdfast("run", "--check", "--no-python", "echo", "hello")
    assert (done.returncode, done.stdout) == (0, "hello\n"), done.stderr


def test_one_that_is_not_stays_out_and_runs_nothing(run_holdfast: Run, tmp_path: Path) -> None:
    mark = tmp_path / "ran"
    check = "--check=echo GPU 3 is missing; exit 1"
    done = run_holdfast("run", check, "--no-python", "touch", str(mark))
    assert done.returncode == 4
    assert f"holdfast: {sentences.unfit_node('GPU 3 is missing')}\n" in done.stderr
    assert not mark.exists()


@pytest.mark.root
def test_a_nearly_full_disk_keeps_a_node_out(run_holdfast: Run, tmp_path: Path) -> None:
    small = tmp_path / "small"
    small.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=12m", "tmpfs", small], check=True)
    try:
        done = run_holdfast("run", "--check", f"--log-dir={small}", "--no-python", "true")
    finally:
        subprocess.run(["umount", small], check=True)
    assert done.returncode == 4
    assert f"this node stays out: {small} (logs) has 12 MB left" in done.stderr


def test_the_others_hear_of_it_and_go_on(holdfast: Path, run_holdfast: Run, tmp_path: Path) -> None:
    """The first hosts the job and waits for a second; one comes that is unfit, then one that is."""
    meets = ("--nnodes=2:3", f"--rdzv-endpoint=localhost:{free_port()}", "--last-call=1")
    job = ("--no-python", "true")
    said = tmp_path / "said"
    with said.open("wb") as out:
        first = subprocess.Popen([holdfast, "run", *meets, *job], stderr=out)
    with first:
        until(lambda: "waiting for 1 more" in said.read_text(), "the first node to wait")
        done = run_holdfast("run", *meets, "--check=echo no fan; exit 1", *job)
        assert done.returncode == 4
        assert "no fan" in done.stderr
        until(lambda: "stays out: no fan" in said.read_text(), "the first node to hear of it")
        assert run_holdfast("run", *meets, "--check=true", *job).returncode == 0
    assert first.returncode == 0, said.read_text()
