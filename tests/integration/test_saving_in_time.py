"""A worker that asked just before the news came, and one that asks just after it, save together."""

from __future__ import annotations

import signal
import subprocess
from pathlib import Path

from ..waiting import until

DEADLINE_S = 100
PROGRAM = """
import os, time
from pathlib import Path
import holdfast

def until(name):
    while not Path(name).exists():
        time.sleep(0.01)

rank = os.environ["RANK"]
if rank == "1":
    assert holdfast.draining(5) is None
    Path("ahead").touch()  # It has asked at step 5, and needs the other for step 6.
else:
    assert holdfast.draining(4) is None
    until("ahead")
    Path("behind").touch()
    until("told")
    assert holdfast.draining(5) is None, "the other one is past it"
    Path("joined").touch()
until("joined")
drain = holdfast.draining(6)
assert drain and drain.step == 6, drain
print(f"rank {rank} saves step 6", flush=True)
drain.saved()
"""


def test_nobody_waits_for_one_that_is_ahead_and_needs_it(holdfast: Path, tmp_path: Path) -> None:
    (tmp_path / "job.py").write_text(PROGRAM)
    options = ("-n", "2", "--no-warm", f"--save-timeout={DEADLINE_S}")
    with (
        (tmp_path / "said").open("w") as said,
        subprocess.Popen(
            [holdfast, "run", *options, "job.py"],
            cwd=tmp_path,
            stdout=subprocess.PIPE,
            stderr=said,
            text=True,
        ) as agent,
    ):
        until((tmp_path / "behind").exists)
        agent.send_signal(signal.SIGUSR1)
        until(lambda: "can save" in (tmp_path / "said").read_text())
        (tmp_path / "told").touch()
        shown = agent.communicate(timeout=DEADLINE_S)[0]
    lines = sorted(shown.splitlines())
    assert lines == ["rank 0 saves step 6", "rank 1 saves step 6"], (tmp_path / "said").read_text()


SAVES_ONE_STEP_LATER = """
import time
from pathlib import Path
import holdfast

step = 0
while not (drain := holdfast.draining(step)):
    Path("asks").touch()
    step += 1
    time.sleep(0.01)
Path("saving").touch()
while not Path("go on").exists():
    time.sleep(0.01)
print("saved", flush=True)
drain.saved()
"""


def test_a_signal_that_comes_twice_at_once_leaves_time_to_save(
    holdfast: Path, tmp_path: Path
) -> None:
    """As Slurm sends it at a time limit."""
    (tmp_path / "job.py").write_text(SAVES_ONE_STEP_LATER)
    words = [str(holdfast), "run", "--no-warm", f"--save-timeout={DEADLINE_S}", "job.py"]
    with subprocess.Popen(
        words, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as agent:
        until((tmp_path / "asks").exists)
        agent.send_signal(signal.SIGTERM)
        until(lambda: not is_pending(agent.pid, signal.SIGTERM))
        agent.send_signal(signal.SIGTERM)
        until((tmp_path / "saving").exists, over=lambda: agent.poll() is not None)
        (tmp_path / "go on").touch()
        shown, said = agent.communicate(timeout=DEADLINE_S)
    assert shown == "saved\n", said


def is_pending(pid: int, number: signal.Signals) -> bool:
    """Whether a signal was sent to a process and is not delivered yet."""
    status = Path(f"/proc/{pid}/status").read_text()
    (waiting,) = (line for line in status.splitlines() if line.startswith("ShdPnd:"))
    return bool(int(waiting.split()[1], 16) >> (number - 1) & 1)
