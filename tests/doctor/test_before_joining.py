"""Whether a node is fit to join: what keeps it out, and what a command of the user's says."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec.structs import replace

from holdfast.core.policy.config import BUILT_IN_CHECK, JobConfig, Output, Program
from holdfast.doctor.before_joining import examine, judge, run_command
from holdfast.doctor.facts import DiskRoom, Limits

from ..waiting import until
from .test_machine import WELL

JOB = JobConfig("job", Program("script", "train.py"), slots=8, check=BUILT_IN_CHECK)


def test_an_error_keeps_a_node_out_and_a_warning_is_said() -> None:
    assert judge(WELL, JOB).problem == ""
    full = replace(WELL, disks=(DiskRoom("logs", "/data", 10**12, 12 << 20),))
    assert judge(full, JOB).problem == "/data (logs) has 12 MB left"
    low = judge(replace(WELL, limits=Limits(open_files=1024)), JOB)
    assert (low.problem, low.warnings) == ("", ("1024 open files are allowed",))


@pytest.mark.parametrize(("seen", "fits"), [(8, True), (7, False), (4, True), (0, True)])
def test_a_card_that_fell_off_the_bus_keeps_a_node_out(seen: int, fits: bool) -> None:
    """Two workers on each card may be meant, or none on any."""
    assert (judge(replace(WELL, accelerators=seen), JOB).problem == "") == fits


def test_the_real_machine_is_examined(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.touch()
    problem = examine(replace(JOB, slots=1, output=Output(log_dir=str(blocked / "x"))), os.environ)
    assert "cannot be written to: Not a directory" in problem.problem


@pytest.mark.parametrize(
    ("command", "reason"),
    [
        ("true", ""),
        ("echo fine", ""),
        ("false", "the check ended with exit code 1"),
        ("sh -c 'echo one; echo two; echo three; echo four >&2; exit 3'", "two / three / four"),
        ("printf '\\033[2Jgpu 3 is missing\\n' && exit 1", "gpu 3 is missing"),
        ("kill -9 $$", "the check ended with signal 9"),
    ],
)
def test_a_command_says_by_its_status_and_its_last_lines_are_the_reason(
    command: str, reason: str
) -> None:
    said = run_command(command, 60.0)
    assert said == reason or said.endswith(reason)
    assert "\033" not in said


def test_a_command_that_is_not_there_is_no_crash() -> None:
    assert "/no/such/check: not found" in run_command("/no/such/check", 5.0)


def test_a_command_that_hangs_is_killed_with_what_it_started(
    tmp_path: Path, is_running: Callable[[int], bool]
) -> None:
    pids = tmp_path / "pids"
    said = run_command(f"sleep 1000 & echo $! > {pids}; echo looking; wait", 1.0)
    assert said == "the check took longer than 1 s (--check-timeout): looking"
    pid = int(pids.read_text())
    until(lambda: not is_running(pid), "what it started to end")
