"""Where the output of whole jobs ends up: files, console, filters, and nothing lost."""

from __future__ import annotations

import os

import pytest

STARTS = pytest.mark.parametrize("start", ["--preload=json", "--no-warm"])

SPEAK = """
import os, sys
rank = os.environ["RANK"]
print("out of", rank)
print("err of", rank, file=sys.stderr)
"""


def logs_of(job) -> dict[str, str]:
    """What lies in the job's log directory, by path below it; the journal left out."""
    (root,) = (job.folder / "logs").iterdir()
    files = [path for path in root.rglob("*") if path.is_file() and path.suffix == ".log"]
    return {str(path.relative_to(root)): path.read_text() for path in files}


@STARTS
def test_without_options_everything_is_on_the_console_and_nothing_in_files(run_job, start) -> None:
    job = run_job(start, "--nproc-per-node=2", script=SPEAK)
    assert sorted(job.stdout.splitlines()) == ["out of 0", "out of 1"]
    assert {"err of 0", "err of 1"} <= set(job.stderr.splitlines())
    assert logs_of(job) == {}


@STARTS
def test_redirected_output_is_in_files_only(run_job, start) -> None:
    job = run_job(start, "--nproc-per-node=2", "--redirects=3", script=SPEAK)
    assert job.stdout == ""
    assert "err of" not in job.stderr
    assert logs_of(job) == {
        "attempt_0/0/stdout.log": "out of 0\n",
        "attempt_0/0/stderr.log": "err of 0\n",
        "attempt_0/1/stdout.log": "out of 1\n",
        "attempt_0/1/stderr.log": "err of 1\n",
    }


@STARTS
def test_teed_output_is_in_files_and_prefixed_on_the_console(run_job, start) -> None:
    job = run_job(start, "--nproc-per-node=2", "--tee=3", "--role=trainer", script=SPEAK)
    expected = ["[trainer0]:out of 0", "[trainer1]:out of 1"]
    assert sorted(job.stdout.splitlines()) == expected
    assert {"[trainer0]:err of 0", "[trainer1]:err of 1"} <= set(job.stderr.splitlines())
    assert logs_of(job)["attempt_0/1/stdout.log"] == "out of 1\n"
    assert len(logs_of(job)) == 4


def test_each_rank_can_have_its_own_way(run_job) -> None:
    words = ("--nproc-per-node=3", "-r", "0:3,1:1", "-t", "2:2")
    job = run_job(*words, script=SPEAK)
    assert logs_of(job) == {
        "attempt_0/0/stdout.log": "out of 0\n",
        "attempt_0/0/stderr.log": "err of 0\n",
        "attempt_0/1/stdout.log": "out of 1\n",
        "attempt_0/2/stderr.log": "err of 2\n",
    }
    assert job.stdout.splitlines() == ["out of 2"]
    shown = [line for line in job.stderr.splitlines() if "err of" in line]
    assert sorted(shown) == ["[default2]:err of 2", "err of 1"]


def test_every_attempt_has_files_of_its_own(run_job) -> None:
    script = SPEAK + "sys.exit(os.environ['TORCHELASTIC_RESTART_COUNT'] == '0')"
    job = run_job("--redirects=1", "--max-restarts=1", script=script)
    assert set(logs_of(job)) == {"attempt_0/0/stdout.log", "attempt_1/0/stdout.log"}


def test_no_log_directory_is_left_behind_where_none_was_asked_for(run_job, tmp_path) -> None:
    env = {"TMPDIR": str(tmp_path)}
    job = run_job("--nproc-per-node=2", script=SPEAK, env=env, log_dir=False)
    assert job.process.returncode == 0
    assert list(tmp_path.glob("holdfast*")) == []


# A worker that writes the lines of a sum, counts what the kernel took, and is killed.
FLOOD = """
import os, signal, sys
line = (f"{os.environ['RANK']}:" + "x" * 997 + "\\n").encode()
block = line * 100
written = 0
while written < 20_000_000:
    written += os.write(1, block)
open("written.new", "w").write(str(written))
os.replace("written.new", "written")
os.write(1, b"the last words")
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_nothing_is_lost_of_what_a_killed_worker_wrote(run_job) -> None:
    job = run_job("--tee=1", script=FLOOD)
    assert job.process.returncode == 1
    (root,) = (job.folder / "logs").iterdir()
    size = (root / "attempt_0/0/stdout.log").stat().st_size
    assert size == int(job.read("written")) + len("the last words")
    with open(root / "attempt_0/0/stdout.log", "rb") as file:
        file.seek(-14, os.SEEK_END)
        assert file.read() == b"the last words"


def test_nothing_is_lost_on_the_console_of_what_a_killed_worker_wrote(run_job) -> None:
    job = run_job(script=FLOOD)
    shown = (job.folder / "agent.stdout").read_bytes()
    assert len(shown) == int(job.read("written")) + len("the last words")
    assert shown.endswith(b"the last words")


# It counts in a shared file what the kernel has taken of it, and never stops writing.
WRITE_ON = """
import mmap, os
with open("count", "wb+") as file:
    file.truncate(8)
    count = mmap.mmap(file.fileno(), 8)
open("pid.new", "w").write(str(os.getpid()))
os.rename("pid.new", "pid")
total = 0
while True:
    total += os.write(1, b"y" * 65535 + b"\\n")
    count[:] = total.to_bytes(8, "little")
"""


def test_nothing_is_lost_where_the_reader_is_slower_than_the_worker(start_job) -> None:
    """The agent has stopped reading, because nobody reads what it shows, when the worker dies."""
    reader = "| (while [ ! -e go ]; do sleep 0.01; done; cat > shown)"
    job = start_job(script=WRITE_ON, shell=reader)
    job.until_files("pid")
    job.until(lambda: written(job) > 4_500_000, "more than the agent keeps for a slow reader")
    os.kill(int(job.read("pid")), 9)
    job.until(lambda: '"AllGone"' in job.journal().read_text(), "the end of the round")
    (job.folder / "go").touch()
    assert job.wait() == 1
    assert len(job.read("shown")) >= written(job)


def written(job) -> int:
    return int.from_bytes((job.folder / "count").read_bytes(), "little")


def test_a_reader_that_goes_away_does_not_break_the_job(start_job) -> None:
    """As in `holdfast run … | head -1`."""
    script = """
        import os, time
        print("first", flush=True)
        while not os.path.exists("gone"):
            time.sleep(0.002)
        for number in range(20000):
            print("x" * 100)
        open("done." + os.environ["RANK"], "w").close()
    """
    job = start_job("--nproc-per-node=2", script=script, shell="| (head -1; touch gone)")
    assert job.wait() == 0, job.stderr
    assert job.stdout.endswith("first\n")
    assert (job.folder / "done.0").exists()
    assert (job.folder / "done.1").exists()


@STARTS
@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_a_standard_stream_that_was_closed_is_no_obstacle(start_job, closed, start) -> None:
    """What is opened next would take its number, and be taken for it."""
    job = start_job(start, "--nproc-per-node=2", script=SPEAK, shell=closed)
    assert job.wait() == 0, job.stderr
    said = ["out of 0", "out of 1"] if ">&-" not in closed.replace("2>&-", "") else []
    assert sorted(job.stdout.splitlines()) == said
    assert ("err of 1" in job.stderr) == ("2>&-" not in closed)
    job.expect_nothing_left()
