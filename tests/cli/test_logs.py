"""`holdfast logs`: what workers write, on all nodes."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from holdfast.core.protocol.requests import LogBlock
from holdfast.observe.log_lines import LineMaker

from ..waiting import once, until
from .conftest import Run, start_quietly

PROGRAM = """
import os, sys, time
rank = os.environ["RANK"]
print(f"begin of {rank}", flush=True)
print(f"warning of {rank}", file=sys.stderr, flush=True)
while not os.path.exists(sys.argv[1]):
    time.sleep(0.05)
print(f"end of {rank}", flush=True)
"""
NAME = f"logged-{os.getpid()}"


def test_lines_of_all_workers_are_shown_filtered_and_followed(
    tmp_path: Path, holdfast: Path, run_holdfast: Run
) -> None:
    (tmp_path / "talk.py").write_text(PROGRAM)
    go_on = tmp_path / "go on"
    words = ("run", "-n2", f"--rdzv-id={NAME}", "--no-warm", tmp_path / "talk.py", go_on)
    with start_quietly(holdfast, *words) as job:

        def shown() -> list[str] | None:
            lines = run_holdfast("logs", NAME).stdout.splitlines()
            return sorted(lines) if len(lines) == 4 else None

        lines = once(shown, "all have written")
        assert lines == [
            "[0]: begin of 0",
            "[0]: warning of 0",
            "[1]: begin of 1",
            "[1]: warning of 1",
        ]
        only = run_holdfast("logs", NAME, "--rank=1").stdout.splitlines()
        assert sorted(only) == ["[1]: begin of 1", "[1]: warning of 1"]
        unknown = run_holdfast("logs", NAME, "--node", "nowhere")
        assert (unknown.returncode, unknown.stdout) == (1, "")
        follower = subprocess.Popen(
            [holdfast, "logs", NAME, "--follow"], stdout=subprocess.PIPE, text=True
        )
        assert follower.stdout is not None
        seen = [follower.stdout.readline() for _ in range(4)]
        go_on.touch()
        seen += follower.stdout.readlines()
        assert follower.wait(60) == 0
        follower.stdout.close()
        assert job.wait(60) == 0
    assert len(seen) >= 4
    until(lambda: "has ended" in run_holdfast("status", NAME).stdout, "the job is gone")
    kept = run_holdfast("logs", NAME, "--rank=1").stdout.splitlines()
    assert sorted(kept) == ["[1]: begin of 1", "[1]: end of 1", "[1]: warning of 1"]


TALKING = """
import itertools, os, time
for number in range(5000):
    os.write(1, b"%d\\n" % number)
for number in itertools.count():
    os.write(1, b"%d\\n" % number)
    time.sleep(0.1)
"""


def test_without_follow_it_ends_with_what_was_there_however_much_is_written(
    tmp_path: Path, holdfast: Path, run_holdfast: Run
) -> None:
    (tmp_path / "talk.py").write_text(TALKING)
    name = f"{NAME}-talking"
    words = ("run", "-n2", f"--rdzv-id={name}", "--no-warm", tmp_path / "talk.py")
    with start_quietly(holdfast, *words) as job:
        try:
            until(lambda: run_holdfast("logs", name).stdout.count("]: 4999\n") == 2)
        finally:
            job.terminate()


def test_a_line_in_two_blocks_is_one_and_a_bar_shows_its_last_state() -> None:
    lines = LineMaker()

    def take(text: bytes, rank: int = 0) -> list[str]:
        return [line for _, _, line in lines.take("a", LogBlock(1.0, rank, 1, text))]

    assert take(b"one\ntw") == ["one"]
    assert take(b"other\n", rank=1) == ["other"]
    assert take(b"o\n") == ["two"]
    assert take(b"10%\r50%\r100%\n") == ["100%"]
    assert take(b"\x1b[2Jforged\n") == ["\N{REPLACEMENT CHARACTER}[2Jforged"]
    assert take(b"no end") == []
    assert list(lines.rest()) == [(0, "no end")]
