"""`holdfast report` as it is called, on journals of real jobs."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tools.journals.explaining import in_words

from holdfast.observe.journal import JournalHeader, Step

from ..another_user import STRANGER
from .conftest import Run

FAILS_ONCE = """
import os, sys, time, holdfast
restarts = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
for step in range(3 * restarts, 10):
    holdfast.progress(step)
    time.sleep(0.02)
    if not restarts and step == 6:
        sys.exit(3)
"""


@pytest.fixture(scope="module")
def logs(tmp_path_factory: pytest.TempPathFactory, run_holdfast: Run) -> Path:
    """The log folder of a job that was restarted once."""
    place = tmp_path_factory.mktemp("report")
    script, folder = place / "train.py", place / "logs"
    script.write_text(FAILS_ONCE)
    options = ("--rdzv-id", "nightly", "--max-restarts", "1", "--log-dir", str(folder))
    done = run_holdfast("run", *options, str(script), timeout=100)
    assert done.returncode == 0, done.stderr
    return folder


def test_a_job_is_told_with_its_story_its_time_and_its_incident(
    logs: Path, run_holdfast: Run
) -> None:
    shown = run_holdfast("report", str(logs))
    assert shown.returncode == 0, shown.stderr
    assert shown.stdout.startswith("nightly on ")
    assert "the job succeeded: all workers succeeded" in shown.stdout
    assert "ended with exit code 3" in shown.stdout
    assert "restarting (1 of 1)" in shown.stdout
    assert "round 1 → 2, cost" in shown.stdout
    assert "lost steps" in shown.stdout
    assert "steps made again" in shown.stdout


def test_a_journal_that_ends_in_the_middle_is_told_up_to_there(
    logs: Path, run_holdfast: Run, tmp_path: Path
) -> None:
    (journal,) = logs.rglob("journal.jsonl")
    whole = journal.read_bytes()
    cut = tmp_path / "journal.jsonl"
    cut.write_bytes(whole[: len(whole) // 2])
    shown = run_holdfast("report", str(cut))
    assert shown.returncode == 0, shown.stderr
    assert "the end is not known" in shown.stdout
    assert "the journals end in the middle" in shown.stdout


def test_programs_get_the_same_as_json(logs: Path, run_holdfast: Run) -> None:
    shown = run_holdfast("report", "--json", str(logs))
    told = json.loads(shown.stdout)
    parts = told["ledger"]["parts_s"]
    assert sum(parts.values()) == pytest.approx(told["end"] - told["start"], abs=0.01)
    assert told["verdict"] == "succeeded"
    assert told["restarts"] == 1
    assert any(event["kind"] == "worker_failed" for event in told["events"])
    (incident,) = told["ledger"]["interruptions"]
    assert incident["steps_lost"] >= 3


def test_a_page_is_written(logs: Path, run_holdfast: Run, tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    shown = run_holdfast("report", str(logs), "--html", str(page))
    assert shown.returncode == 0, shown.stderr
    assert page.read_text().startswith("<!doctype html>")
    assert run_holdfast("report", str(logs), "--html=-").stdout.startswith("<!doctype html>")


def test_only_the_end_can_be_asked_for(logs: Path, run_holdfast: Run) -> None:
    whole = json.loads(run_holdfast("report", "--json", str(logs)).stdout)
    length_s = whole["end"] - whole["events"][-1]["at"] + 0.001
    end = json.loads(run_holdfast("report", "--json", f"--since={length_s:f}", str(logs)).stdout)
    assert end["end"] == whole["end"]
    assert 0 < len(end["events"]) < len(whole["events"])
    assert end["events"][-1] == whole["events"][-1]


def test_a_run_is_found_by_its_name_where_logs_go_by_default(
    tmp_path: Path, run_holdfast: Run
) -> None:
    script = tmp_path / "train.py"
    script.write_text(FAILS_ONCE)
    env = {**os.environ, "TMPDIR": str(tmp_path)}
    for run in ("first", "second"):
        options = ("--rdzv-id", run, "--max-restarts", "1")
        done = run_holdfast("run", *options, str(script), env=env, timeout=100)
        assert done.returncode == 0, done.stderr
    shown = run_holdfast("report", "first", env=env)
    assert shown.stdout.startswith("first on "), shown.stderr
    unknown = run_holdfast("report", "third", env=env)
    assert unknown.returncode == 2
    assert "no run called 'third'" in unknown.stderr
    assert "`holdfast jobs` lists them" in unknown.stderr


@pytest.mark.root
@pytest.mark.parametrize("kind", ["story", "pipe", "link"])
def test_what_another_user_leaves_where_logs_go_is_not_looked_at(
    tmp_path: Path, logs: Path, run_holdfast: Run, kind: str
) -> None:
    """Its story would be shown as the last of this user's jobs; its pipe would be waited for."""
    place = tmp_path / "tmp"
    folder = place / "holdfast_false"
    place.mkdir()
    theirs = shutil.copytree(logs, tmp_path / "theirs")
    (journal,) = theirs.rglob("journal.jsonl")
    job = f"theirs-{tmp_path.name}"  # This user has run one that is called as the original.
    journal.write_text(journal.read_text().replace('"job":"nightly"', f'"job":"{job}"', 1))
    if kind == "link":
        folder.symlink_to(theirs)
    else:
        shutil.move(theirs, folder)
    if kind == "pipe":
        (journal,) = folder.rglob("journal.jsonl")
        journal.unlink()
        os.mkfifo(journal)
    os.chown(folder, STRANGER, STRANGER, follow_symlinks=False)
    told = run_holdfast("report", job, env={**os.environ, "TMPDIR": str(place)})
    assert told.returncode == 2
    assert f"no run called {job!r}" in told.stderr


@pytest.mark.parametrize("words", [("--json", "--html", "x"), ("--html", "/nowhere/at/all.html")])
def test_a_page_that_cannot_be_written_is_refused(
    words: tuple[str, ...], logs: Path, call_holdfast: Run
) -> None:
    shown = call_holdfast("report", str(logs), *words)
    assert (shown.returncode, shown.stdout) == (2, "")
    assert [line.partition(": ")[0] for line in shown.stderr.splitlines()] == ["holdfast", "hint"]


def test_a_file_that_is_no_journal_and_a_folder_without_one(
    tmp_path: Path, call_holdfast: Run
) -> None:
    (tmp_path / "notes.txt").write_text("hello\n")
    assert "is not a journal" in call_holdfast("report", str(tmp_path / "notes.txt")).stderr
    assert "there is no journal in" in call_holdfast("report", str(tmp_path)).stderr


FORGED = "holdfast: the job succeeded"
HOSTILE = f"\n{FORGED}\n  round 9 → 10\x1b[2J\x1b]0;title\x07\r\u2028\u202e\x85"


def spoiled(line: bytes) -> bytes:
    """A line of a journal with the hostile words wherever a reader of journals takes them."""
    read = msgspec.json.Decoder(JournalHeader if b'"schema"' in line[:20] else Step).decode
    whole = json.loads(line)
    for holder, key in list(_texts(whole)):
        was, holder[key] = holder[key], f"{holder[key]}{HOSTILE}"
        try:
            read(json.dumps(whole).encode())
        except msgspec.MsgspecError:
            holder[key] = was  # A name, or a kind: it has a form of its own.
    return json.dumps(whole).encode()


def _texts(value: Any) -> Iterator[tuple[Any, Any]]:
    """Where the texts are: what holds each, and under which key."""
    pairs = value.items() if isinstance(value, dict) else enumerate(value)
    for key, one in pairs:
        if isinstance(one, str):
            yield value, key
        elif isinstance(one, (dict, list)):
            yield from _texts(one)


@pytest.mark.parametrize("options", [(), ("--all",)])
def test_what_nodes_say_forges_no_line_and_moves_no_cursor(
    logs: Path, run_holdfast: Run, tmp_path: Path, options: tuple[str, ...]
) -> None:
    (journal,) = logs.rglob("journal.jsonl")
    lines = journal.read_bytes().splitlines()
    (tmp_path / "journal.jsonl").write_bytes(b"\n".join(map(spoiled, lines)) + b"\n")
    shown = run_holdfast("report", str(tmp_path), *options)
    assert shown.returncode == 0, shown.stderr
    assert shown.stdout.count(FORGED) > 5
    for line in (shown.stdout + shown.stderr).splitlines():
        assert line.isprintable(), line
        assert not line.startswith((FORGED, "  round 9"))
    assert len(shown.stdout.splitlines()) == len(shown.stdout.split("\n")) - 1


def test_the_way_to_a_cause_is_one_line_for_each_step(logs: Path) -> None:
    (journal,) = logs.rglob("journal.jsonl")
    for line in journal.read_bytes().splitlines()[1:]:
        step: Step = msgspec.json.decode(spoiled(line), type=Step)
        assert in_words(step).isprintable()
