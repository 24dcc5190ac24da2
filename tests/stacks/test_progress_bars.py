"""Bars of the real `tqdm`, of two workers in one pipe, seen while they move."""

from __future__ import annotations

import os
import re
import subprocess
import textwrap
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from .environments import BY_NAME, why_not_ready
from .launches import COLD, environment, words

DEADLINE_S = 60.0
STEPS = 20
PLAIN = BY_NAME["plain"]
SCRIPT = f"""
    import os, time
    from tqdm import tqdm
    for step in tqdm(range({STEPS}), desc="bar " + os.environ["RANK"], mininterval=0):
        if step == 10:
            open("drawn." + os.environ["RANK"], "w").close()
            while not os.path.exists("seen"):
                time.sleep(0.002)
"""

pytestmark = pytest.mark.stacks


@pytest.mark.parametrize("how", ["--tee=0", "--tee=3"])
def test_bars_are_seen_while_they_move_and_read_well_in_a_log(tmp_path: Path, how: str) -> None:
    if reason := why_not_ready(PLAIN):
        pytest.skip(reason)
    (tmp_path / "bars.py").write_text(textwrap.dedent(SCRIPT))
    with subprocess.Popen(
        [*words(PLAIN, COLD), how, "bars.py"],
        cwd=tmp_path,
        env=environment(tmp_path / "memory", TMPDIR=str(tmp_path)),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    ) as job:
        try:
            shown = read_until(job, lambda text: all(is_at(text, rank, 10) for rank in "01"))
            (tmp_path / "seen").touch()
            shown += read_until(job, None)
            assert job.wait(DEADLINE_S) == 0
        finally:
            job.kill()
    for rank in "01":
        prefix = f"[default{rank}]:" if how == "--tee=3" else ""
        bars = [redraw for redraw in re.split("[\r\n]", shown) if f"bar {rank}:" in redraw]
        assert is_at(bars[-1], rank, STEPS)
        assert all(re.match(re.escape(prefix) + rf"bar {rank}: +\d+%\|", bar) for bar in bars)
    assert not re.search("bar 0.*bar 1|bar 1.*bar 0", shown), "two bars in one line"


def is_at(text: str, rank: str, step: int) -> bool:
    return re.search(rf"bar {rank}: .*\b{step}/{STEPS} ", text) is not None


def read_until(job: subprocess.Popen[bytes], condition: Callable[[str], bool] | None) -> str:
    """What comes until the condition holds, or to the end of it."""
    assert job.stdout is not None
    os.set_blocking(job.stdout.fileno(), False)
    text = b""
    deadline = time.monotonic() + DEADLINE_S
    while condition is None or not condition(text.decode(errors="replace")):
        assert time.monotonic() < deadline, f"it was never shown: {text!r}"
        try:
            block = os.read(job.stdout.fileno(), 65536)
        except BlockingIOError:
            time.sleep(0.002)
            continue
        if not block:
            assert condition is None, f"it was never shown: {text!r}"
            break
        text += block
    return text.decode()
