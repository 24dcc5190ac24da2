"""What is said about a failed job: who, where, how, why, and what was decided."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.core.policy import kinds, root_cause, sentences
from holdfast.core.protocol.model import EarlyEnd, ExitStatus
from holdfast.observe.report import render

STARTS = pytest.mark.parametrize("start", ["--preload=json", "--no-warm"])
HOST = socket.gethostname()

# Rank 1 fails in the way the test adds; rank 0 waits to be stopped.
ONE_FAILS = """
import ctypes, os, signal, sys, time
if os.environ["RANK"] == "0":
    open("ready", "w").close()
    while True:
        time.sleep(0.01)  # Not `pause`, which sleeps through a signal that comes just before it.
while not os.path.exists("ready"):
    time.sleep(0.002)
open("pid", "w").write(str(os.getpid()))
"""

# Rank 1 ends with 0 after four steps; rank 0 misses it once it is gone.
EARLY = """
import os, time, holdfast
if os.environ["RANK"] == "1":
    holdfast.progress(4)
    open("pid", "w").write(str(os.getpid()))
    os.rename("pid", "left")
    raise SystemExit(0)
while not os.path.exists("left") or os.path.exists("/proc/" + open("left").read()):
    time.sleep(0.002)
raise RuntimeError("Connection closed by peer")
"""


def report_of(job) -> str:
    """The last thing that the agent said: the report."""
    _, found, report = job.stderr.partition("holdfast: the job failed:")
    assert found, job.stderr
    return report


@pytest.fixture
def run_failing(run_job):
    """Run two workers of which rank 1 fails as `how` says.

    Returns the job, its outcome, which the console shows in full, and what the console shows.
    """

    def run(how, *words, first="", log_dir=True, **more):
        script = f"{first}\n{ONE_FAILS}\n{how}"
        job = run_job("--nproc-per-node=2", *words, script=script, log_dir=log_dir, **more)
        assert job.process.returncode == 1, job.stderr
        if not log_dir:
            return job, None, report_of(job)
        outcome, cause = job.outcome(), job.first_failure()
        assert render(outcome, None) in job.stderr
        assert (cause.rank, cause.host, cause.pid) == (1, HOST, int(job.read("pid")))
        assert sentences.restarts_used(0) in outcome.reason
        return job, outcome, report_of(job)

    return run


@STARTS
@pytest.mark.parametrize("decorator", ["", "@holdfast.record"], ids=["plain", "recorded"])
def test_an_exception_is_reported_with_its_traceback(run_failing, start, decorator) -> None:
    how = f"""
import holdfast

def innermost():
    raise ValueError("the loss is not a number")

{decorator}
def main():
    innermost()

main()
"""
    _, outcome, report = run_failing(how, start)
    assert outcome.cause.status == ExitStatus(code=1)
    assert outcome.cause.error.message == "ValueError: the loss is not a number"
    assert re.search(r"program\.py\", line \d+, in innermost", report)
    assert decorator or "/holdfast/" not in report, "a frame of ours is in the traceback"


@STARTS
def test_an_exception_is_reported_with_its_traceback_where_no_file_can_be_written(
    run_failing, start
) -> None:
    how = "def innermost():\n    raise ValueError('out of range')\ninnermost()"
    _, _, report = run_failing(how, start, "--log-dir=/dev/null", log_dir=False)
    assert f"rank 1 on {HOST}" in report
    assert sentences.restarts_used(0) in report
    assert "ValueError: out of range" in report
    assert "in innermost" in report


@STARTS
def test_an_exit_code_is_reported_with_the_last_lines_of_stderr(run_failing, start) -> None:
    how = """
for number in range(100):
    print("line", number, file=sys.stderr)
sys.exit(3)
"""
    _, outcome, report = run_failing(how, start)
    assert outcome.cause.status == ExitStatus(code=3)
    assert "line 99" in report
    assert "line 10\n" not in report


@STARTS
@pytest.mark.parametrize(("how", "has_one"), [("sys.exit(3)", False), ("raise ValueError", True)])
def test_the_journal_names_an_error_file_only_if_there_is_one(
    run_failing, start, how, has_one
) -> None:
    job, _, _ = run_failing(how, start)
    steps = [json.loads(line) for line in job.journal().read_text().splitlines()[1:]]
    ends = [step["event"] for step in steps if step["event"]["type"] == "WorkerExited"]
    named = [end["error_file"] for end in ends if end.get("error_file")]
    assert bool(named) == has_one
    assert all(os.path.exists(path) for path in named)


@pytest.mark.thorough
@STARTS
def test_a_worker_that_ended_well_too_early_is_named_beside_the_peer_that_missed_it(
    run_job, start
) -> None:
    job = run_job("--nproc-per-node=2", start, script=EARLY)
    assert job.process.returncode == 1
    outcome, cause = job.outcome(), job.first_failure()
    assert (cause.rank, cause.host) == (0, HOST)
    assert cause.ended_before == (EarlyEnd(1, 4, HOST),)
    assert (outcome.blame.kind, outcome.blame.certainty) == (kinds.ENDED_EARLY, "likely")
    assert root_cause.describe(cause) in job.stderr
    assert render(outcome, None) in job.stderr


@pytest.mark.thorough
@STARTS
def test_a_text_to_exit_with_is_reported(run_failing, start) -> None:
    _, outcome, report = run_failing("sys.exit('the data set is empty')", start)
    assert outcome.cause.status == ExitStatus(code=1)
    assert "the data set is empty" in report


@pytest.mark.parametrize("streams", ["--redirects=3", "--tee=3", "--redirects=0"])
def test_what_was_written_before_an_exception_is_reported_beside_it(run_failing, streams) -> None:
    how = "print('the disk is nearly full', file=sys.stderr)\nraise ValueError('no space')"
    _, _, report = run_failing(how, streams)
    assert "ValueError: no space" in report
    assert "the disk is nearly full" in report


@pytest.mark.thorough
@STARTS
@pytest.mark.parametrize(
    ("how", "number"),
    [
        ("ctypes.string_at(0)", signal.SIGSEGV),
        ("os.abort()", signal.SIGABRT),
        ("os.kill(os.getpid(), signal.SIGKILL)", signal.SIGKILL),
        ("os.kill(os.getpid(), signal.SIGRTMIN + 3)", signal.SIGRTMIN + 3),
    ],
)
def test_a_signal_is_reported_in_words(run_failing, start, how, number) -> None:
    _, outcome, report = run_failing(f"print('last words', file=sys.stderr)\n{how}", start)
    assert outcome.cause.status == ExitStatus(signal=number)
    assert str(outcome.cause.status) in report
    assert "last words" in report
    assert outcome.cause.out_of_memory == ""


@pytest.fixture
def small_group() -> Iterator[Path]:
    """A control group with little memory."""
    mount, limit = _memory_mount()
    if mount is None:
        pytest.skip("needs control groups that limit memory, and none can be used here")
    group = mount / f"holdfast-test-{uuid.uuid4().hex}"
    group.mkdir()
    try:
        (group / limit).write_text(str(64 * 1024 * 1024))
        yield group
    finally:
        group.rmdir()


def _memory_mount() -> tuple[Path | None, str]:
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        where, _, what = line.partition(" - ")
        kind, _, options = what.split(" ", 2)
        point = Path(where.split(" ")[4])
        if kind == "cgroup" and "memory" in options.split(","):
            return point, "memory.limit_in_bytes"
        if kind == "cgroup2" and "memory" in _delegated(point):
            return point, "memory.max"
    return None, ""


def _delegated(point: Path) -> list[str]:
    return (point / "cgroup.subtree_control").read_text().split()


@pytest.mark.thorough
@pytest.mark.root
@STARTS
def test_the_kernels_out_of_memory_killer_is_named(run_failing, small_group, start) -> None:
    how = """
open(os.path.join(os.environ["SMALL_GROUP"], "cgroup.procs"), "w").write(str(os.getpid()))
hoard = []
while True:
    hoard.append(bytearray(os.urandom(1024)) * 1024)
"""
    _, outcome, report = run_failing(how, start, env={"SMALL_GROUP": str(small_group)})
    assert outcome.cause.status == ExitStatus(signal=signal.SIGKILL)
    assert outcome.cause.out_of_memory
    assert outcome.cause.out_of_memory in report
    assert outcome.blame.kind == kinds.OUT_OF_MEMORY


@pytest.mark.thorough
def test_who_only_lost_a_peer_is_told_apart_from_the_cause(run_failing) -> None:
    """Rank 0 fails too, after the first, and only because the first is gone."""
    before = """
        import signal
        def lose_peer(*_):
            raise ConnectionResetError(104, "Connection reset by peer")
        signal.signal(signal.SIGTERM, lose_peer)
    """
    _, outcome, _ = run_failing(
        "from none import this", files={"before.py": before}, first="import before"
    )
    assert outcome.cause.error.message.startswith("ModuleNotFoundError")
    (other,) = outcome.others
    assert other.rank == 0
    assert root_cause.lost_a_peer(other)


@pytest.mark.parametrize(
    ("how", "status", "error"),
    [
        ("raise ValueError('the cause')", ExitStatus(code=1), "ValueError: the cause"),
        ("ctypes.string_at(0)", ExitStatus(signal=signal.SIGSEGV), ""),
        ("os.abort()", ExitStatus(signal=signal.SIGABRT), ""),
    ],
)
def test_the_cause_is_named_also_where_its_victim_was_seen_first(
    start_job, how, status, error
) -> None:
    """Rank 0 lost its peer and has ended; the peer itself takes longer to die."""
    script = f"""
        import ctypes, os, signal, sys, time
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        if os.environ["RANK"] == "0":
            while not os.path.exists("ready"):
                time.sleep(0.002)
            raise ConnectionResetError(104, "Connection reset by peer")
        open("ready", "w").close()
        while not os.path.exists("go"):
            time.sleep(0.002)
        {how}
    """
    job = start_job("--nproc-per-node=2", "--shutdown-timeout=600", script=script)
    job.until(lambda: sentences.stopping("", 1) in job.stderr, "the victim to be seen")
    (job.folder / "go").touch()
    assert job.wait() == 1
    outcome, cause = job.outcome(), job.first_failure()
    assert (cause.rank, cause.status, cause.error.message) == (1, status, error)
    (other,) = outcome.others
    assert other.rank == 0
    assert root_cause.lost_a_peer(other)
    assert render(outcome, None) in job.stderr


@pytest.mark.thorough
def test_workers_that_were_stopped_are_told_apart_from_those_that_failed(run_failing) -> None:
    _, outcome, _ = run_failing("sys.exit(3)")
    (other,) = outcome.others
    assert (other.rank, other.stopped_by_us) == (0, True)


def test_the_cause_is_passed_up_to_whoever_launched_the_agent(run_failing) -> None:
    how = "raise ValueError('the cause')"
    job, _, _ = run_failing(how, env={"TORCHELASTIC_ERROR_FILE": "up.json"})
    passed_up = json.loads(job.read("up.json"))["message"]
    assert passed_up["message"] == "ValueError: the cause"
    assert "program.py" in passed_up["extraInfo"]["py_callstack"]
    assert passed_up["errorCode"] == 1
    assert passed_up["extraInfo"]["timestamp"].isdecimal()


def test_a_cause_without_words_is_passed_up_in_ours(run_failing) -> None:
    how = "os.kill(os.getpid(), signal.SIGKILL)"
    job, _, _ = run_failing(how, env={"TORCHELASTIC_ERROR_FILE": "up.json"})
    passed_up = json.loads(job.read("up.json"))["message"]
    assert passed_up["errorCode"] == -9
    for word in ("rank 1", "SIGKILL", HOST):
        assert word in passed_up["message"]


def test_a_success_leaves_the_launchers_error_file_alone(run_job) -> None:
    job = run_job(script="pass", env={"TORCHELASTIC_ERROR_FILE": "up.json"})
    assert job.process.returncode == 0
    assert not (job.folder / "up.json").exists()


def test_the_cause_comes_up_through_a_launcher_in_a_launcher(holdfast, run_job) -> None:
    inner = "raise ValueError('deep down')"
    job = run_job("--no-python", str(holdfast), "run", "inner.py", files={"inner.py": inner})
    assert job.process.returncode == 1
    outer_report = job.stderr.rpartition("holdfast: the job failed:")[2]
    assert "ValueError: deep down" in outer_report
    assert "inner.py" in outer_report


@pytest.mark.thorough
def test_many_failures_at_once_are_all_counted(run_job) -> None:
    script = "import os\nraise ValueError('rank ' + os.environ['RANK'])"
    job = run_job("--nproc-per-node=12", script=script)
    assert job.process.returncode == 1
    outcome = job.outcome()
    assert {outcome.cause.rank, *(other.rank for other in outcome.others)} == set(range(12))
    assert render(outcome, None) in job.stderr
