"""`--quiet`, `--verbose`, `--json`, `--timestamps`: what of a job its own lines say, and how."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import get_args

import pytest

from holdfast.cli.options import parse_run
from holdfast.core.protocol.errors import UsageError
from holdfast.observe.story import Kind

from .conftest import Run

FAILS_ONCE = """
import os, sys
print("a worker's line", flush=True)
sys.exit(0 if int(os.environ["TORCHELASTIC_RESTART_COUNT"]) else 3)
"""


@pytest.fixture
def lines_of(tmp_path: Path, run_holdfast: Run) -> Callable[..., list[str]]:
    def run(*options: str, script: str = FAILS_ONCE, status: int = 0) -> list[str]:
        file = tmp_path / "train.py"
        file.write_text(script)
        common = ("--max-restarts", "1", "--nproc-per-node", "2", "--log-dir", str(tmp_path / "l"))
        done = run_holdfast("run", *common, *options, str(file), timeout=100)
        assert done.returncode == status, done.stderr
        assert done.stdout.count("a worker's line") >= 2, "workers' lines are left as they are"
        return done.stderr.splitlines()

    return run


def test_as_ever_without_any_of_them(lines_of: Callable[..., list[str]]) -> None:
    said = lines_of()
    assert sum("ended with exit code 3" in line for line in said) == 1, "once for each incident"
    assert sum(line.startswith("holdfast: recovered in") for line in said) == 1
    assert re.search(r"holdfast: succeeded in .*, 1 restart; report: holdfast report ", said[-1])
    assert any(line.startswith("holdfast: workers get OMP_NUM_THREADS=1") for line in said)


def test_quiet_has_failures_and_the_report(lines_of: Callable[..., list[str]]) -> None:
    said = lines_of("--quiet")
    (line,) = said
    assert "ended with exit code 3" in line
    assert "restarting (1 of 1)" in line


def test_a_quiet_job_that_goes_well_says_nothing(lines_of: Callable[..., list[str]]) -> None:
    assert lines_of("--quiet", script="""print("a worker's line")\n""") == []


def test_verbose_has_a_line_for_everything_and_nothing_twice(
    lines_of: Callable[..., list[str]],
) -> None:
    said = lines_of("--verbose")
    for words in ("started on", "round 1 begins: 2 ranks", "restarting (1 of 1)", "round 2 begins"):
        assert sum(words in line for line in said) == 1, words
    assert sum(line.startswith("holdfast: round 1 ends") for line in said) == 1
    assert sum(line.startswith("holdfast: the job succeeded") for line in said) == 1


def test_json_has_one_object_for_each_event(lines_of: Callable[..., list[str]]) -> None:
    events = [json.loads(line) for line in lines_of("--json")]
    kinds = [event["kind"] for event in events]
    assert set(kinds) <= set(get_args(Kind))
    assert kinds.count("round_formed") == 2
    assert kinds.count("round_ended") == kinds.count("job_finished") == 1
    failed = next(event for event in events if event["kind"] == "worker_failed")
    assert failed["round"] == 1
    assert failed["rank"] in (0, 1)
    decision = next(event for event in events if event["kind"] == "decision")
    assert decision["decision"] == "restart"
    assert all(event["at"] > 1.7e9 and event["words"] for event in events)
    last = events[-1]
    assert (last["kind"], last["verdict"], last["restarts"]) == ("summary", "succeeded", 1)
    assert Path(last["journal"]).exists()


def test_timestamps_stand_before_every_line_of_ours(lines_of: Callable[..., list[str]]) -> None:
    for options in (("--timestamps",), ("--timestamps", "--verbose")):
        ours = [line for line in lines_of(*options) if "holdfast: " in line]
        assert len(ours) >= 4
        assert all(re.match(r"\d\d:\d\d:\d\d\.\d{3} holdfast: ", line) for line in ours)


@pytest.mark.parametrize("pair", [("--quiet", "--json"), ("--verbose", "--quiet")])
def test_two_of_them_are_refused(pair: tuple[str, str]) -> None:
    with pytest.raises(UsageError):
        parse_run([*pair, "train.py"], {})
