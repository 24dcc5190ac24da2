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
