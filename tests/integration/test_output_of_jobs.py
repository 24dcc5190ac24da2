"""Where the output of whole jobs ends up: files, console, filters, and nothing lost."""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from .conftest import Job, StartJob

STARTS = pytest.mark.parametrize("start", ["--preload=json", "--no-warm"])

SPEAK = """
import os, sys
rank = os.environ["RANK"]
print("out of", rank)
print("err of", rank, file=sys.stderr)
"""


def logs_of(job: Job) -> dict[str, str]:
    """What lies in the job's log directory, by path below it; the journal left out."""
    (root,) = (job.folder / "logs").iterdir()
    files = [path for path in root.rglob("*") if path.is_file() and path.suffix == ".log"]
    return {str(path.relative_to(root)): path.read_text() for path in files}


@STARTS
def test_without_options_everything_is_on_the_console_and_nothing_in_files(
    run_job: StartJob, start: str
) -> None:
    job = run_job(start, "--nproc-per-node=2", script=SPEAK)
    assert sorted(job.stdout.splitlines()) == ["out of 0", "out of 1"]
    assert {"err of 0", "err of 1"} <= set(job.stderr.splitlines())
    assert logs_of(job) == {}


@STARTS
def test_redirected_output_is_in_files_only(run_job: StartJob, start: str) -> None:
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
def test_teed_output_is_in_files_and_prefixed_on_the_console(run_job: StartJob, start: str) -> None:
    job = run_job(start, "--nproc-per-node=2", "--tee=3", "--role=trainer", script=SPEAK)
    expected = ["[trainer0]:out of 0", "[trainer1]:out of 1"]
    assert sorted(job.stdout.splitlines()) == expected
    assert {"[trainer0]:err of 0", "[trainer1]:err of 1"} <= set(job.stderr.splitlines())
    assert logs_of(job)["attempt_0/1/stdout.log"] == "out of 1\n"
    assert len(logs_of(job)) == 4


def test_each_rank_can_have_its_own_way(run_job: StartJob) -> None:
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


@pytest.mark.thorough
def test_the_prefix_follows_its_template(run_job: StartJob) -> None:
    script = "import os\nprint(os.getpid())"
    template = "<${role_name}/${rank}/${local_rank}/${pid}> "
    env = {"TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE": template}
    job = run_job("--nproc-per-node=2", "--tee=1", script=script, env=env)
    lines = job.stdout.splitlines()
    assert len(lines) == 2
    for line in lines:
        assert re.fullmatch(r"<default/(\d)/\1/(\d+)> \2", line), line


@pytest.mark.thorough
def test_the_console_shows_only_the_ranks_asked_for(run_job: StartJob) -> None:
    words = ("--nproc-per-node=3", "--tee=3", "--local-ranks-filter=0,2")
    job = run_job(*words, script=SPEAK)
    assert sorted(job.stdout.splitlines()) == ["[default0]:out of 0", "[default2]:out of 2"]
    assert "err of 1" not in job.stderr
    assert logs_of(job)["attempt_0/1/stdout.log"] == "out of 1\n"


@pytest.mark.thorough
def test_lines_that_match_a_filter_are_collected(run_job: StartJob) -> None:
    script = """
        import os, sys
        for word in ("loss=1,5", "other", "step 7"):
            print(word, os.environ["RANK"])
            print("E", word, os.environ["RANK"], file=sys.stderr)
    """
    words = ("--nproc-per-node=2", "--tee=3")
    filters = ("--duplicate-stdout-filters=1,,5,step", "--duplicate-stderr-filters=other")
    job = run_job(*words, *filters, script=script)
    logs = logs_of(job)
    assert sorted(logs["attempt_0/filtered_stdout.log"].splitlines()) == [
        "[default0]:loss=1,5 0",
        "[default0]:step 7 0",
        "[default1]:loss=1,5 1",
        "[default1]:step 7 1",
    ]
    assert sorted(logs["attempt_0/filtered_stderr.log"].splitlines()) == [
        "[default0]:E other 0",
        "[default1]:E other 1",
    ]


def test_every_attempt_has_files_of_its_own(run_job: StartJob) -> None:
    script = SPEAK + "sys.exit(os.environ['TORCHELASTIC_RESTART_COUNT'] == '0')"
    job = run_job("--redirects=1", "--max-restarts=1", script=script)
    assert set(logs_of(job)) == {"attempt_0/0/stdout.log", "attempt_1/0/stdout.log"}


def test_the_journal_and_the_last_output_are_kept_where_no_logs_were_asked_for(
    run_job: StartJob, tmp_path: Path
) -> None:
    env = {"TMPDIR": str(tmp_path)}
    job = run_job("--nproc-per-node=2", script=SPEAK, env=env, log_dir=False)
    assert job.process.returncode == 0
    left = [path.name for path in tmp_path.glob("holdfast_*/**/*") if path.is_file()]
    assert sorted(left) == ["journal.jsonl", "output", "run.json"]


# A worker that writes the lines of a sum, counts what the kernel took, and is killed.
FLOOD = """
import os, signal, sys
line = (f"{os.environ['RANK']}:" + "x" * 997 + "\\n").encode()
block = line * 100
written = 0
while written < 100_000_000:
    written += os.write(1, block)
open("written.new", "w").write(str(written))
os.replace("written.new", "written")
os.write(1, b"the last words")
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize("how", ["--tee=1", "--redirects=1"])
@STARTS
def test_nothing_is_lost_of_what_a_killed_worker_wrote(
    run_job: StartJob, how: str, start: str
) -> None:
    job = run_job(start, how, script=FLOOD)
    assert job.process.returncode == 1
    (root,) = (job.folder / "logs").iterdir()
    size = (root / "attempt_0/0/stdout.log").stat().st_size
    assert size == int(job.read("written")) + len("the last words")
    with open(root / "attempt_0/0/stdout.log", "rb") as file:
        file.seek(-14, os.SEEK_END)
        assert file.read() == b"the last words"


def test_nothing_is_lost_on_the_console_of_what_a_killed_worker_wrote(run_job: StartJob) -> None:
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


@pytest.mark.thorough
def test_a_worker_killed_in_the_middle_of_a_write_loses_nothing_before_it(
    start_job: StartJob,
) -> None:
    job = start_job("--tee=1", script=WRITE_ON)
    job.until_files("pid")
    job.until(lambda: written(job) > 20_000_000, "enough output")
    os.kill(int(job.read("pid")), 9)
    assert job.wait() == 1
    (root,) = (job.folder / "logs").iterdir()
    assert (root / "attempt_0/0/stdout.log").stat().st_size >= written(job)


def test_nothing_is_lost_where_the_reader_is_slower_than_the_worker(start_job: StartJob) -> None:
    """The agent has stopped reading, because nobody reads what it shows, when the worker dies."""
    reader = "| (while [ ! -e go ]; do sleep 0.01; done; cat > shown)"
    job = start_job(script=WRITE_ON, shell=reader)
    job.until_files("pid")
    job.until(lambda: written(job) > 4_500_000, "more than the agent keeps for a slow reader")
    os.kill(int(job.read("pid")), 9)
    journal = job.journal()
    assert journal is not None
    job.until(lambda: '"AllGone"' in journal.read_text(), "the end of the round")
    (job.folder / "go").touch()
    assert job.wait() == 1
    assert len(job.read("shown")) >= written(job)


def written(job: Job) -> int:
    return int.from_bytes((job.folder / "count").read_bytes(), "little")


@pytest.mark.thorough
@pytest.mark.parametrize("how", ["--tee=3", "--tee=0"])
def test_eight_ranks_never_mix_within_a_line(run_job: StartJob, how: str) -> None:
    """Lines of all lengths, in pieces, on both streams at once."""
    script = """
        import hashlib, os, random, sys, time
        rank = os.environ["RANK"]
        random.seed(rank)
        for number in range(400):
            body = f"{rank}-{number}-" + "z" * random.randrange(3000)
            line = f"{body} {hashlib.md5(body.encode()).hexdigest()}\\n".encode()
            cut = random.randrange(len(line))
            for stream in (1, 2):
                begun = time.monotonic()
                os.write(stream, line[:cut])
                os.write(stream, line[cut:])
                if time.monotonic() - begun > 0.09:
                    open("paused", "w").close()
    """
    job = run_job("--nproc-per-node=8", how, script=script)
    assert job.process.returncode == 0
    if (job.folder / "paused").exists():
        pytest.skip("the machine kept a writer waiting in a line's midst, so it may be in two")
    for text in (job.stdout, job.stderr):
        lines = [line for line in text.splitlines() if not line.startswith("holdfast:")]
        ranks = Counter(_rank_of_whole(line) for line in lines)
        assert ranks == Counter({str(rank): 400 for rank in range(8)})


def _rank_of_whole(line: str) -> str:
    body, _, digest = re.sub(r"^\[default\d\]:", "", line).partition(" ")
    assert hashlib.md5(body.encode()).hexdigest() == digest, f"a broken line: {line[:200]}"
    return body.partition("-")[0]


@pytest.mark.parametrize("how", ["--tee=3", "--redirects=0"])
def test_a_reader_that_goes_away_does_not_break_the_job(start_job: StartJob, how: str) -> None:
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
    job = start_job("--nproc-per-node=2", how, script=script, shell="| (head -1; touch gone)")
    assert job.wait() == 0, job.stderr
    assert job.stdout.endswith("first\n")
    assert (job.folder / "done.0").exists()
    assert (job.folder / "done.1").exists()


@STARTS
@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_a_standard_stream_that_was_closed_is_no_obstacle(
    start_job: StartJob, closed: str, start: str
) -> None:
    """What is opened next would take its number, and be taken for it."""
    job = start_job(start, "--nproc-per-node=2", script=SPEAK, shell=closed)
    assert job.wait() == 0, job.stderr
    said = ["out of 0", "out of 1"] if ">&-" not in closed.replace("2>&-", "") else []
    assert sorted(job.stdout.splitlines()) == said
    assert ("err of 1" in job.stderr) == ("2>&-" not in closed)
    job.expect_nothing_left()


@pytest.mark.thorough
def test_a_long_line_without_an_end_and_bytes_that_are_no_text_do_no_harm(
    run_job: StartJob,
) -> None:
    script = "import os\nos.write(1, bytes(range(256)) * 40000)"
    job = run_job("--nproc-per-node=2", "--tee=1", script=script)
    assert job.process.returncode == 0
    (root,) = (job.folder / "logs").iterdir()
    for rank in range(2):
        log = Path(root / f"attempt_0/{rank}/stdout.log").read_bytes()
        assert log == bytes(range(256)) * 40000


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system that is soon full."""
    place = tmp_path / "small"
    place.mkdir()
    words = ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(place)]
    if subprocess.run(words, capture_output=True, check=False).returncode != 0:
        pytest.skip("needs to be allowed to mount a file system")
    try:
        yield place
    finally:
        # Lazily: one that has just ended may still be closing its files.
        subprocess.run(["umount", "--lazy", str(place)], check=True)


@pytest.mark.thorough
@pytest.mark.root
def test_a_full_disk_is_told_and_ends_no_job(run_job: StartJob, small_disk: Path) -> None:
    script = """
        import os, sys, time
        for _ in range(100):
            os.write(1, b"x" * 4096)
        done = "done." + os.environ["TORCHELASTIC_RESTART_COUNT"] + "."
        open(done + os.environ["RANK"], "w").close()
        while not (os.path.exists(done + "0") and os.path.exists(done + "1")):
            time.sleep(0.001)  # the first to fail has the other one stopped
        sys.exit(os.environ["TORCHELASTIC_RESTART_COUNT"] == "0")
    """
    words = (f"--log-dir={small_disk}", "--tee=1", "--nproc-per-node=2", "--max-restarts=1")
    job = run_job(*words, script=script, log_dir=False)
    assert job.process.returncode == 0, job.stderr
    assert "No space left on device" in job.stderr
    assert "Traceback" not in job.stderr
    assert job.stdout.count("x") == 2 * 2 * 100 * 4096
