"""The demo of the README, as `make demo` runs it, and the journal that it leaves."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

from tools.journals.replay import replay

from holdfast.core.node_io import WorkerExited
from holdfast.core.policy import sentences
from holdfast.observe.history import LiveHistory
from holdfast.observe.journal import NodeStep, read

DEMO = Path(__file__).parents[2] / "examples" / "demo.py"


def test_the_demo_recovers_explains_and_its_journal_replays(tmp_path: Path) -> None:
    ended = subprocess.run(
        [sys.executable, str(DEMO), str(tmp_path)],
        check=False,
        capture_output=True,
        text=True,
        timeout=110,
    )

    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert ">>> kill -9" in ended.stdout
    assert sentences.restarting(0.0, 1, 2) in ended.stdout
    assert "step 12   sum  54   from 4 workers" in ended.stdout
    assert "noticed the death" in ended.stdout
    (path,) = tmp_path.glob("*/journal.jsonl")
    header, steps = read(path)
    live = LiveHistory(header)
    for step in steps:
        live.feed(step)
    failures = [step.event for step in steps if isinstance(step, NodeStep)]
    killed = [one for one in failures if isinstance(one, WorkerExited) and one.status.signal]
    assert killed[0].status.signal == signal.SIGKILL
    (recovery,) = live.history.recoveries
    assert (recovery.from_round, recovery.to_round) == (1, 2)
    assert list(replay(header, steps)) == []
