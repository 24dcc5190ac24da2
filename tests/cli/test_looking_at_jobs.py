"""Looking at a job, and telling it what to do: with a job, and without."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.cli import sentences

from ..free_ports import free_port
from ..waiting import until
from .conftest import Run, start_quietly

pytestmark = pytest.mark.slow  # Real jobs, for seconds each.

PROGRAM = """
import time
import holdfast
for step in range(100_000):
    holdfast.progress(step)
    time.sleep(0.05)
"""
NAME = f"looked-at-{os.getpid()}"


@pytest.fixture
def nodes(tmp_path: Path, holdfast: Path) -> Iterator[tuple[list[subprocess.Popen[bytes]], str]]:
    """Two agents of one job, and where they meet."""
    script = tmp_path / "steps.py"
    script.write_text(PROGRAM)
    place = f"127.0.0.1:{free_port()}"
    options = (
        *("--nnodes=1:2", f"--rdzv-endpoint={place}", f"--rdzv-id={NAME}"),
        *("--no-warm", f"--snapshot-dir={tmp_path}", "--shutdown-timeout=5"),
    )
    agents = [start_quietly(holdfast, "run", *options, script) for _ in range(2)]
    yield agents, place
    for agent in agents:
        agent.kill()
        agent.wait()


def status(run_holdfast: Run, *words: str) -> dict[str, object]:
    told = run_holdfast("status", *words, "--json")
    return json.loads(told.stdout) if told.returncode == 0 else {}


def ended_by(run_holdfast: Run) -> set[str]:
    """By what the rounds of the job have ended."""
    seen = status(run_holdfast, NAME)
    return {one["ended_by"] for one in seen["interruptions"]}  # type: ignore[attr-defined]


def job_is(run_holdfast: Run, **wanted: object) -> None:
    def look() -> bool:
        seen = status(run_holdfast, NAME)
        return all(seen.get(name) == value for name, value in wanted.items())

    until(look, f"the job is {wanted}")


def test_a_job_is_seen_restarted_drained_and_stopped(
    nodes: tuple[list[subprocess.Popen[bytes]], str], run_holdfast: Run
) -> None:
    agents, place = nodes
    job_is(run_holdfast, stage="running", ranks=2, round=1)
    from_elsewhere = run_holdfast("status", f"--rdzv-endpoint={place}", "--rdzv-id", NAME)
    assert from_elsewhere.returncode == 0, from_elsewhere.stderr
    assert from_elsewhere.stdout.startswith(f"{NAME}: running, round 1")

    assert run_holdfast("restart", NAME).returncode == 0
    job_is(run_holdfast, stage="running", round=2, restarts=0)

    assert run_holdfast("scale", NAME, "1").returncode == 0
    job_is(run_holdfast, stage="running", round=3, ranks=1, restarts=0, max_nodes=1)
    assert run_holdfast("scale", NAME, "1:2").returncode == 0
    job_is(run_holdfast, stage="running", round=4, ranks=2, restarts=0)

    seen = status(run_holdfast, NAME)
    names = [node["name"] for node in seen["nodes"]]  # type: ignore[attr-defined]
    other = next(name for name in names if name != seen["coordinator"])
    unknown = run_holdfast("drain", NAME, "nowhere")
    assert (unknown.returncode, unknown.stdout) == (1, "")
    assert "nowhere" in unknown.stderr
    assert run_holdfast("drain", NAME, other).returncode == 0
    job_is(run_holdfast, stage="running", node_count=1, ranks=1)

    assert ended_by(run_holdfast) >= {"asked", "drain"}
    assert run_holdfast("stop", NAME).returncode == 0
    assert sorted(agent.wait(60) for agent in agents) == [143, 143]
    gone = run_holdfast("status", NAME)
    assert gone.returncode == 0
    assert NAME in gone.stdout
    assert status(run_holdfast, NAME)["verdict"] == "interrupted"
    assert run_holdfast("events", NAME).stdout
    late = run_holdfast("stop", NAME)
    assert (late.returncode, late.stdout) == (1, "")


def test_events_are_followed_to_the_end_of_the_job(
    nodes: tuple[list[subprocess.Popen[bytes]], str], run_holdfast: Run, holdfast: Path
) -> None:
    job_is(run_holdfast, stage="running", ranks=2)
    command = (holdfast, "events", NAME, "--follow", "--json")
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as follower:
        assert follower.stdout is not None
        kinds = [json.loads(follower.stdout.readline())["kind"]]
        while "first_step" not in kinds:
            kinds.append(json.loads(follower.stdout.readline())["kind"])
        assert run_holdfast("stop", NAME).returncode == 0
        kinds += [json.loads(line)["kind"] for line in follower.stdout]
        assert follower.wait(60) == 0
    assert kinds[0] == "node_started"
    assert {"round_formed", "job_finished"} <= set(kinds)


@pytest.mark.parametrize(
    "words",
    [("status", "no-such-job"), ("stop", "no-such-job"), ("status", "--rdzv-endpoint=[::1]:1")],
)
def test_a_job_that_is_not_there_is_said_in_a_line(
    words: tuple[str, ...], call_holdfast: Run
) -> None:
    told = call_holdfast(*words)
    assert (told.returncode, told.stdout) == (1, "")
    assert len(told.stderr.splitlines()) == 1


def test_top_draws_every_worker_and_leaves_the_terminal_as_it_was(
    nodes: tuple[list[subprocess.Popen[bytes]], str], run_holdfast: Run, holdfast: Path
) -> None:
    import pty
    import signal

    job_is(run_holdfast, stage="running", ranks=2)
    pid, terminal = pty.fork()
    if pid == 0:
        os.execv(holdfast, [str(holdfast), "top", NAME])
    drawn = b""
    try:
        while b"steps/s" not in drawn or drawn.count(b"running") < 3:
            drawn += os.read(terminal, 65536)
        os.kill(pid, signal.SIGINT)
        while b"\x1b[?1049l" not in drawn:
            drawn += os.read(terminal, 65536)
    finally:
        _, status = os.waitpid(pid, 0)
        os.close(terminal)
    assert b"Traceback" not in drawn
    assert status == 0, "that is how it ends"


def test_top_heeds_keys_and_stays_with_the_verdict_when_the_job_ends(
    nodes: tuple[list[subprocess.Popen[bytes]], str], run_holdfast: Run, holdfast: Path
) -> None:
    import pty

    job_is(run_holdfast, stage="running", ranks=2)
    pid, terminal = pty.fork()
    if pid == 0:
        os.execv(holdfast, [str(holdfast), "top", NAME])
    drawn = b""
    try:
        while b"s sort: rank" not in drawn:
            drawn += os.read(terminal, 65536)
        os.write(terminal, b"s")
        while b"s sort: slowest" not in drawn:
            drawn += os.read(terminal, 65536)
        assert run_holdfast("stop", NAME).returncode == 0
        while b"has ended: interrupted" not in drawn:
            drawn += os.read(terminal, 65536)
    finally:
        _, status = os.waitpid(pid, 0)
        os.close(terminal)
    assert b"Traceback" not in drawn
    after = drawn.rpartition(b"\x1b[?1049l")[2]
    assert NAME.encode() in after, "the last page stays"
    assert status == 0


SAVER = """
import sys, time
import holdfast
for step in range(100_000):
    holdfast.progress(step)
    time.sleep(0.05)
    if drain := holdfast.draining(step):
        open(sys.argv[1], "a").write(f"{drain.step} {drain.leaving}\\n")
        drain.saved()
"""


def test_all_workers_save_on_request_and_go_on(
    tmp_path: Path, holdfast: Path, run_holdfast: Run
) -> None:
    script, noted = tmp_path / "saver.py", tmp_path / "noted"
    script.write_text(SAVER)
    words = ("run", "-n2", f"--rdzv-id={NAME}", "--no-warm", script, noted)
    with start_quietly(holdfast, *words) as agent:
        try:
            until(lambda: "step " in run_holdfast("status", NAME).stdout, "the job steps")
            for time in (1, 2):
                told = run_holdfast("save", NAME)
                assert told.returncode == 0, told.stderr
                lines = noted.read_text().splitlines()
                assert len(lines) == 2 * time
                assert len(set(lines)) == time
                assert lines[-1].endswith(" False")
                assert told.stdout.endswith(f"{sentences.saved(int(lines[-1].split()[0]))}\n")
            job_is(run_holdfast, stage="running", round=1)
        finally:
            agent.terminate()


def test_a_program_that_does_not_ask_cannot_be_asked_to_save(
    nodes: tuple[list[subprocess.Popen[bytes]], str], run_holdfast: Run
) -> None:
    job_is(run_holdfast, stage="running", ranks=2)
    told = run_holdfast("save", NAME)
    assert told.returncode == 1
    assert told.stderr == f"holdfast: {sentences.NOBODY_ASKS_TO_SAVE}\n"
