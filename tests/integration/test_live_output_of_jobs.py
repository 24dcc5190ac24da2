"""What users see of whole jobs while they run: progress bars, and what nobody reads."""

from __future__ import annotations

import re
import signal
from functools import partial

import pytest

from .conftest import Job, StartJob

# Draws a bar as `tqdm` does, each step only when the one before has been seen on the console.
BARS = """
import os, sys, time
rank = os.environ["RANK"]
for step in range(4):
    sys.stderr.write(f"\\r<bar {rank}: {step} of 4>")
    sys.stderr.flush()
    while not os.path.exists(f"seen.{step}"):
        time.sleep(0.002)
sys.stderr.write("\\n")
"""


def are_shown(job: Job, bars: list[str]) -> bool:
    return all(bar in job.read("shown") for bar in bars)


@pytest.mark.parametrize(
    ("how", "console"), [("--tee=0", "2> shown"), ("--tee=3", "2>&1 | cat > shown")]
)
def test_bars_of_two_workers_are_shown_while_they_are_drawn(
    start_job: StartJob, how: str, console: str
) -> None:
    job = start_job("--nproc-per-node=2", how, script=BARS, shell=console)
    for step in range(4):
        drawn = [f"<bar {rank}: {step} of 4>" for rank in (0, 1)]
        job.until(partial(are_shown, job, drawn), str(drawn))
        (job.folder / f"seen.{step}").touch()
    assert job.wait() == 0
    prefix = "" if how == "--tee=0" else r"\[default\d\]:"
    redraws = re.split(r"[\r\n]", job.read("shown").rstrip("\n"))
    bars = [redraw for redraw in redraws if "<bar" in redraw]
    assert len(bars) == 8
    assert all(re.fullmatch(prefix + r"<bar \d: \d of 4>", bar) for bar in bars), bars


def test_what_was_written_before_the_agent_is_killed_is_on_the_console(start_job: StartJob) -> None:
    script = """
        import os, time
        os.write(1, b"half a line of " + os.environ["RANK"].encode())
        time.sleep(1000)
    """
    job = start_job("--nproc-per-node=2", script=script)
    job.until(lambda: len(re.findall("half a line of [01]", job.stdout)) == 2, "both halves")
    job.send(signal.SIGKILL)
    job.wait()
    assert sorted(job.stdout.splitlines()) == ["half a line of 0", "half a line of 1"]


# Writes more than all the agent keeps for a slow reader.
WRITES_ON = """
import os, time
for number in range(300):
    os.write(1, b"%099d\\n" % number * 1000)
open("written", "w").close()
while not os.path.exists("go"):
    time.sleep(0.002)
while not os.path.exists("shown") or b"left out" not in open("shown", "rb").read():
    time.sleep(0.002)
print("and on it goes")
"""
READS_LATER = "2>&1 | (while [ ! -e go ]; do sleep 0.01; done; cat > shown)"


def test_a_console_that_nobody_reads_does_not_stop_workers_with_files(start_job: StartJob) -> None:
    job = start_job("--tee=1", script=WRITES_ON, shell=READS_LATER)
    job.until_files("written")
    (job.folder / "go").touch()
    assert job.wait() == 0
    (log,) = job.folder.glob("logs/*/attempt_0/0/stdout.log")
    lines = [b"%099d\n" % number * 1000 for number in range(300)]
    assert log.read_bytes() == b"".join(lines) + b"and on it goes\n"
    shown = job.read("shown")
    found = re.search(
        r"\nholdfast: the console was not read for \d+ s: [\d.]+ MB left out here; "
        r"everything is in (.+)\n\[default0\]:and on it goes\n",
        shown,
    )
    assert found is not None, shown[-1000:]
    assert (job.folder / found[1]).samefile(log)
