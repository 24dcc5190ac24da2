"""What is said about a failed job: who, where, how, why, and what was decided."""

from __future__ import annotations

import json
import os
import re
import socket

import pytest

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


def report_of(job) -> str:
    """The last thing that the agent said: the report."""
    _, found, report = job.stderr.partition("holdfast: the job failed:")
    assert found, job.stderr
    return report


@pytest.fixture
def run_failing(run_job):
    """Run two workers of which rank 1 fails as `how` says; returns the job and its report."""

    def run(how, *words, first="", **more):
        script = f"{first}\n{ONE_FAILS}\n{how}"
        job = run_job("--nproc-per-node=2", *words, script=script, **more)
        assert job.process.returncode == 1, job.stderr
        report = report_of(job)
        assert "rank 1" in report
        assert HOST in report
        assert f"pid {job.read('pid')}" in report
        assert "no restarts were allowed" in report
        return job, report

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
    _, report = run_failing(how, start)
    assert "exit code 1" in report
    assert "ValueError: the loss is not a number" in report
    assert re.search(r"program\.py\", line \d+, in innermost", report)
    assert decorator or "/holdfast/" not in report, "a frame of ours is in the traceback"


@STARTS
def test_an_exception_is_reported_with_its_traceback_where_no_file_can_be_written(
    run_failing, start
) -> None:
    how = "def innermost():\n    raise ValueError('out of range')\ninnermost()"
    _, report = run_failing(how, start, "--log-dir=/dev/null", log_dir=False)
    assert "ValueError: out of range" in report
    assert "in innermost" in report


def test_an_exit_code_is_reported_with_the_last_lines_of_stderr(run_failing) -> None:
    how = """
for number in range(100):
    print("line", number, file=sys.stderr)
sys.exit(3)
"""
    _, report = run_failing(how)
    assert "exit code 3" in report
    assert "line 99" in report
    assert "line 10\n" not in report


@STARTS
@pytest.mark.parametrize(("how", "has_one"), [("sys.exit(3)", False), ("raise ValueError", True)])
def test_the_journal_names_an_error_file_only_if_there_is_one(
    run_failing, start, how, has_one
) -> None:
    job, _ = run_failing(how, start, log_dir=True)
    steps = [json.loads(line) for line in job.journal().read_text().splitlines()[1:]]
    ends = [step["event"] for step in steps if step["event"]["type"] == "WorkerExited"]
    named = [end["error_file"] for end in ends if end.get("error_file")]
    assert bool(named) == has_one
    assert all(os.path.exists(path) for path in named)


@pytest.mark.parametrize("streams", ["--redirects=3", "--redirects=0"])
def test_what_was_written_before_an_exception_is_reported_beside_it(run_failing, streams) -> None:
    how = "print('the disk is nearly full', file=sys.stderr)\nraise ValueError('no space')"
    _, report = run_failing(how, streams)
    assert "ValueError: no space" in report
    assert "the disk is nearly full" in report


def test_the_cause_is_named_also_where_its_victim_was_seen_first(start_job) -> None:
    """Rank 0 lost its peer and has ended; the peer itself takes longer to die."""
    script = """
        import os, signal, sys, time
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        if os.environ["RANK"] == "0":
            while not os.path.exists("ready"):
                time.sleep(0.002)
            raise ConnectionResetError(104, "Connection reset by peer")
        open("ready", "w").close()
        while not os.path.exists("go"):
            time.sleep(0.002)
        raise ValueError('the cause')
    """
    job = start_job("--nproc-per-node=2", "--shutdown-timeout=600", script=script)
    job.until(lambda: "round 1 ends" in job.stderr, "the victim to be seen")
    (job.folder / "go").touch()
    assert job.wait() == 1
    report = report_of(job)
    cause, _, then = report.partition("Then")
    assert "ValueError: the cause" in cause
    assert "rank 1" in cause
    assert "rank 0" in then
    assert "lost a peer" in then


def test_the_cause_is_passed_up_to_whoever_launched_the_agent(run_failing) -> None:
    how = "raise ValueError('the cause')"
    job, _ = run_failing(how, env={"TORCHELASTIC_ERROR_FILE": "up.json"})
    passed_up = json.loads(job.read("up.json"))["message"]
    assert passed_up["message"] == "ValueError: the cause"
    assert "program.py" in passed_up["extraInfo"]["py_callstack"]
    assert passed_up["errorCode"] == 1
    assert passed_up["extraInfo"]["timestamp"].isdecimal()


def test_a_cause_without_words_is_passed_up_in_ours(run_failing) -> None:
    how = "os.kill(os.getpid(), signal.SIGKILL)"
    job, _ = run_failing(how, env={"TORCHELASTIC_ERROR_FILE": "up.json"})
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
