"""The last runs of a user: which are kept, which go, and what is known of them."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from holdfast.processes.output import run_folders
from holdfast.processes.output.recent import LastOutput, OutputBlock
from holdfast.processes.output.run_folders import (
    JobLogs,
    KeptRun,
    RunRecord,
    create_job_logs,
    keep,
    only_our_records,
)

RECORD = RunRecord("job", "node", "host", 1.7e9, 3.0, "succeeded", "all workers succeeded", 0)
Begin = Callable[..., tuple[JobLogs, KeptRun]]


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    (tmp_path / "tmp").mkdir()
    return tmp_path / "tmp"


@pytest.fixture
def begin(temporary: Path) -> Iterator[Begin]:
    """Begin a run that has written a journal; those that are not ended end with the test."""
    running: list[KeptRun] = []

    def run(log_dir: str | None = None, size: int = 10) -> tuple[JobLogs, KeptRun]:
        logs = create_job_logs(log_dir, "job")
        assert logs.journal is not None
        logs.journal.write_bytes(b"x" * size)
        kept = keep(logs)
        assert kept is not None
        running.append(kept)
        return logs, kept

    yield run
    for each in running:
        each.remove_if_untouched()


def journals(temporary: Path) -> int:
    return len(list(temporary.glob("holdfast_*/*/journal.jsonl")))


def test_a_run_that_has_ended_is_kept_with_how_it_ended(begin: Begin) -> None:
    logs, kept = begin()
    assert logs.temporary is not None
    assert run_folders.is_running(logs.temporary)
    assert run_folders.record_of(logs.temporary) is None
    kept.end(RECORD)
    assert not run_folders.is_running(logs.temporary)
    assert run_folders.record_of(logs.temporary) == RECORD
    assert run_folders.folders()[0] == logs.temporary


def test_what_workers_wrote_last_is_kept_and_is_no_reason_to_keep_a_run(begin: Begin) -> None:
    logs, kept = begin()
    assert logs.temporary is not None
    output = LastOutput([OutputBlock(1, 5.0, 0, 1, b"hello\n")], ["rank 1: /logs/stdout.log"])
    kept.end(RECORD, output)
    assert run_folders.output_of(logs.temporary) == output
    assert only_our_records(logs.temporary)


def test_only_the_user_can_read_it(begin: Begin) -> None:
    logs, kept = begin()
    kept.end(RECORD)
    assert logs.temporary is not None
    assert logs.temporary.stat().st_mode & 0o077 == 0


def test_of_many_runs_the_last_are_kept(
    begin: Begin, temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_folders, "KEPT_RUNS", 3)
    for number in range(6):
        logs, kept = begin()
        kept.end(RECORD)
        assert logs.temporary is not None
        for path in (logs.temporary, *logs.temporary.rglob("*")):
            os.utime(path, (number, number))
        assert logs.journal is not None
    begin()[1].end(RECORD)
    assert journals(temporary) == 3
    assert logs.journal is not None
    assert logs.journal.exists(), "the last but one"


def test_large_journals_go_sooner_but_never_the_last(
    begin: Begin, temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_folders, "KEPT_BYTES", 1000)
    begin(size=600)[1].end(RECORD)
    logs, kept = begin(size=2000)
    kept.end(RECORD)
    assert journals(temporary) == 1
    assert logs.journal is not None
    assert logs.journal.exists()


def test_a_run_that_goes_on_is_never_removed(
    begin: Begin, temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_folders, "KEPT_RUNS", 1)
    running, _ = begin()
    assert running.temporary is not None
    for path in (running.temporary, *running.temporary.rglob("*")):
        os.utime(path, (1, 1))
    begin()[1].end(RECORD)
    begin()[1].end(RECORD)
    assert running.journal is not None
    assert running.journal.exists()
    assert journals(temporary) == 2


@pytest.mark.parametrize("name", ["stdout.log", "profile.bin"])
def test_a_run_whose_workers_have_written_something_stays(
    begin: Begin, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr(run_folders, "KEPT_RUNS", 0)
    logs, kept = begin()
    worker = logs.worker(0, 0)
    assert worker is not None
    worker.mkdir(parents=True)
    (worker / name).write_text("output")
    kept.end(RECORD)
    begin()[1].end(RECORD)
    assert (worker / name).read_text() == "output"


def test_what_another_user_could_have_put_there_is_no_run_of_ours(
    begin: Begin, temporary: Path
) -> None:
    (temporary / "holdfast_open").mkdir(mode=0o777)
    (temporary / "holdfast_open").chmod(0o777)
    (temporary / "holdfast_link").symlink_to(temporary)
    logs, kept = begin()
    kept.end(RECORD)
    assert [each for each in run_folders.folders() if each.parent == temporary] == [logs.temporary]


def test_a_run_with_a_log_dir_is_found_there_and_its_folder_is_never_removed(
    begin: Begin, temporary: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_folders, "KEPT_RUNS", 1)
    logs, kept = begin(str(tmp_path / "logs"))
    kept.end(RECORD)
    (folder,) = [each for each in run_folders.folders() if each.parent == temporary]
    assert logs.root in run_folders.places_of(folder)
    begin()[1].end(RECORD)
    begin()[1].end(RECORD)
    assert not folder.exists()
    assert logs.journal is not None
    assert logs.journal.exists()


def test_a_link_to_where_others_can_write_is_not_followed(begin: Begin, tmp_path: Path) -> None:
    logs, kept = begin(str(tmp_path / "logs"))
    kept.end(RECORD)
    assert logs.root is not None
    logs.root.chmod(0o777)
    assert logs.root not in [place for each in run_folders.folders()
                             for place in run_folders.places_of(each)]  # fmt: skip


def test_without_logs_there_is_nothing_to_keep() -> None:
    assert keep(create_job_logs(os.devnull, "job")) is None


def test_a_run_that_nobody_was_told_of_leaves_nothing(begin: Begin, temporary: Path) -> None:
    _, kept = begin()
    kept.remove_if_untouched()
    assert list(temporary.iterdir()) == []
