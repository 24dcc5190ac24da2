"""When a failed job is tried again, when it is not, and what it says about it."""

from __future__ import annotations

import errno
import json
import os

import pytest

from holdfast.core.coordinator_io import Explain
from holdfast.core.policy import sentences

STARTS = pytest.mark.parametrize("start", ["--preload=json", "--no-warm"])

# Every attempt of every rank writes down what it was given, then does as the test says.
NOTE = """
import json, os, signal, sys
notes = f"notes.{os.environ['RANK']}"
file = os.open(notes + ".new", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
os.write(file, json.dumps(dict(os.environ)).encode() + b"\\n")  # whole, even if stopped now
os.close(file)
if not os.path.exists(notes):
    os.link(notes + ".new", notes)
attempt = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
"""
ALWAYS = NOTE + "sys.exit(3)"
AT_ONCE = ("--restart-backoff=0",)


def attempts(job, rank: int = 0) -> list[dict[str, str]]:
    """The environments of a rank, one for each time that it was started."""
    return [json.loads(line) for line in job.read(f"notes.{rank}").splitlines()]


@STARTS
def test_a_killed_worker_is_made_up_for_by_a_fresh_round_of_all(run_job, start) -> None:
    script = (
        NOTE
        + """
if attempt == 0:
    while os.environ["RANK"] == "1":
        if os.path.exists("notes.0") and os.path.exists("notes.2"):
            os.kill(os.getpid(), signal.SIGKILL)
    signal.pause()
"""
    )
    job = run_job(start, "--nproc-per-node=3", "--max-restarts=1", script=script)
    assert job.process.returncode == 0, job.stderr
    for rank in range(3):
        first, second = attempts(job, rank)
        assert (first["RANK"], second["RANK"]) == (str(rank), str(rank))
        assert first["TORCHELASTIC_RESTART_COUNT"] == "0"
        assert second["TORCHELASTIC_RESTART_COUNT"] == "1"
        assert first["TORCHELASTIC_MAX_RESTARTS"] == second["TORCHELASTIC_MAX_RESTARTS"] == "1"
        assert int(first["HOLDFAST_ROUND"]) < int(second["HOLDFAST_ROUND"])
        assert first["MASTER_PORT"] != second["MASTER_PORT"]
        assert first["TORCHELASTIC_RUN_ID"] == second["TORCHELASTIC_RUN_ID"]
        assert first["TORCHELASTIC_ERROR_FILE"] != second["TORCHELASTIC_ERROR_FILE"]
    assert "rank 1" in job.stderr
    assert "SIGKILL" in job.stderr
    assert sentences.restarting(0.0, 1, 1) in job.stderr


def test_all_ranks_of_a_round_agree_about_it(run_job) -> None:
    script = NOTE + "sys.exit(0 if attempt == 2 else 3)"
    job = run_job("--nproc-per-node=4", "--max-restarts=2", *AT_ONCE, script=script)
    assert job.process.returncode == 0, job.stderr
    for name in ("HOLDFAST_ROUND", "MASTER_PORT", "MASTER_ADDR", "TORCHELASTIC_RESTART_COUNT"):
        last = {attempts(job, rank)[-1][name] for rank in range(4)}
        assert len(last) == 1, name


@pytest.mark.thorough
def test_by_default_the_first_failure_ends_the_job(run_job) -> None:
    job = run_job(script=ALWAYS)
    assert job.process.returncode == 1
    assert len(attempts(job)) == 1
    assert sentences.restarts_used(0) in job.stderr


@pytest.mark.thorough
def test_the_budget_of_restarts_is_kept_and_named(run_job) -> None:
    job = run_job("--max-restarts=2", *AT_ONCE, script=ALWAYS)
    assert job.process.returncode == 1
    assert len(attempts(job)) == 3
    assert sentences.restarts_used(2) in job.stderr


def test_a_success_after_the_last_restart_is_a_success(run_job) -> None:
    job = run_job("--max-restarts=2", *AT_ONCE, script=NOTE + "sys.exit(attempt < 2)")
    assert job.process.returncode == 0
    assert len(attempts(job)) == 3


@pytest.mark.thorough
@pytest.mark.parametrize(("window", "status"), [("0.001", 0), ("600", 1)])
def test_only_failures_within_the_window_count(run_job, window, status) -> None:
    script = NOTE + "sys.exit(attempt < 3)"
    job = run_job("--max-restarts=1", f"--restart-window={window}", *AT_ONCE, script=script)
    assert job.process.returncode == status
    assert len(attempts(job)) == (4 if status == 0 else 2)
    counted = sentences.restarting(0.0, 1, 1, float(window))
    assert job.stderr.count(counted) == (3 if status == 0 else 1)
    used = sentences.restarts_used(1, float(window))
    assert job.stderr.count(used) == (0 if status == 0 else 1)


@pytest.mark.thorough
def test_the_first_restart_is_immediate_and_the_next_ones_follow_a_pause(run_job) -> None:
    job = run_job("--max-restarts=3", "--restart-backoff=0.02", script=ALWAYS)
    assert job.process.returncode == 1
    pauses = [told.pause_s for told in job.effects(Explain) if told.topic == "restart"]
    assert [pause_s > 0 for pause_s in pauses] == [False, True, True]


@pytest.mark.thorough
def test_the_same_failure_again_and_again_ends_the_job_early(run_job) -> None:
    script = NOTE + "raise ValueError(f'loss is not a number at {id(object())}')"
    job = run_job("--max-restarts=9", "--same-cause-limit=2", *AT_ONCE, script=script)
    assert job.process.returncode == 1
    assert len(attempts(job)) == 2
    assert sentences.same_again(2, 2) in job.stderr


@pytest.mark.thorough
def test_different_failures_do_not_end_the_job_early(run_job) -> None:
    script = NOTE + "sys.exit(10 + attempt)"
    job = run_job("--max-restarts=3", "--same-cause-limit=2", *AT_ONCE, script=script)
    assert len(attempts(job)) == 4
    assert sentences.restarts_used(3) in job.stderr


@STARTS
def test_progress_between_equal_failures_keeps_the_job_going(run_job, start) -> None:
    script = (
        NOTE
        + """
import holdfast
holdfast.progress(10 * (attempt + 1))
if attempt < 4:
    raise ValueError("again")
"""
    )
    words = (start, "--max-restarts=9", "--same-cause-limit=2", "--restart-backoff=600")
    job = run_job(*words, "--restart-backoff-max=600", script=script)
    assert job.process.returncode == 0, job.stderr
    assert len(attempts(job)) == 5
    assert [told.pause_s for told in job.effects(Explain) if told.topic == "restart"] == [0.0] * 4


def test_the_same_step_again_is_no_progress(run_job) -> None:
    script = (
        NOTE
        + """
import holdfast
holdfast.progress(10)
raise ValueError("again")
"""
    )
    job = run_job("--max-restarts=9", "--same-cause-limit=2", *AT_ONCE, script=script)
    assert job.process.returncode == 1
    assert len(attempts(job)) == 3  # the first did get somewhere
    assert sentences.same_again(2, 2) in job.stderr


@STARTS
@pytest.mark.parametrize("kind", ["ours", "any other"])
def test_an_exception_that_says_so_ends_the_job_at_once(run_job, start, kind) -> None:
    raised = "holdfast.NonRetryable" if kind == "ours" else "Hopeless"
    script = (
        NOTE
        + f"""
import holdfast
class Hopeless(Exception):
    non_retryable = True
raise {raised}("the data set is empty")
"""
    )
    job = run_job(start, "--max-restarts=5", script=script)
    assert job.process.returncode == 1
    assert len(attempts(job)) == 1
    assert "the data set is empty" in job.stderr
    assert sentences.MARKED_HOPELESS in job.stderr


@pytest.mark.thorough
@pytest.mark.parametrize(("code", "started"), [(7, 1), (8, 2)])
def test_a_listed_exit_code_ends_the_job_at_once(run_job, code, started) -> None:
    words = ("--max-restarts=1", "--non-retryable-exit-codes=5,7")
    job = run_job(*words, script=NOTE + f"sys.exit({code})")
    assert job.process.returncode == 1
    assert len(attempts(job)) == started


def test_a_command_whose_interpreter_does_not_exist_is_named(run_job, tmp_path) -> None:
    tool = tmp_path / "tool"
    tool.write_text("#!/no/such/shell")
    tool.chmod(0o755)
    job = run_job("--no-python", str(tool), "argument")
    assert job.process.returncode == 1
    cause = job.first_failure()
    assert cause.status.code == 127
    assert str(tool) in cause.stderr_tail or str(tool) in cause.error.message
    assert os.strerror(errno.ENOENT) in job.stderr


@STARTS
def test_a_script_that_is_missing_at_a_restart_is_named_as_python_does(run_job, start) -> None:
    script = "import os, sys; os.remove(sys.argv[0]); sys.exit(3)"
    job = run_job(start, "--max-restarts=1", script=script)
    assert job.process.returncode == 1
    assert "can't open file" in job.stderr
    assert job.first_failure().status.code == 2


@STARTS
def test_a_module_that_is_missing_at_a_restart_is_named_as_python_does(run_job, start) -> None:
    files = {"brief.py": "import os, sys; os.remove(__file__); sys.exit(3)"}
    job = run_job(start, "--max-restarts=1", "-m", "brief", files=files)
    assert job.process.returncode == 1
    assert "No module named brief" in job.stderr
