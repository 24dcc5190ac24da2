"""The record that the coordinator's host keeps: whole, bounded in time, and gone at the end."""

from __future__ import annotations

import os
import stat
import time
from pathlib import Path

import pytest
from msgspec.structs import replace

from holdfast.core.protocol.document import Document, Ledger
from holdfast.core.protocol.errors import UsageError
from holdfast.core.protocol.model import Outcome
from holdfast.registers import job_record as records
from holdfast.registers import sentences
from holdfast.registers.job_record import KEPT_S, JobRecord
from holdfast.runtime.sentences import FILE_NOT_OURS

DOCUMENT = Document(7, 2, 1, "node/1", "node", ledger=Ledger(round=3, size=2, charges=1))


def test_what_was_written_is_read_by_the_next_one(tmp_path: Path) -> None:
    JobRecord(tmp_path, "job").write(DOCUMENT)
    assert JobRecord(tmp_path, "job").read(60.0) == DOCUMENT
    assert JobRecord(tmp_path, "another job").read(60.0) is None


def test_a_record_that_nobody_can_remember_does_not_count(tmp_path: Path) -> None:
    record = JobRecord(tmp_path, "job")
    record.write(DOCUMENT)
    os.utime(record.path, (time.time() - 100, time.time() - 100))
    assert record.read(60.0) is None
    record.touch()
    assert record.read(60.0) == DOCUMENT


def test_the_outcome_of_a_job_counts_for_a_minute_only(tmp_path: Path) -> None:
    record = JobRecord(tmp_path, "job")
    over = replace(DOCUMENT, ledger=Ledger(outcome=Outcome("succeeded", "all is done", 0)))
    record.write(over)
    assert record.read(600.0) == over
    two_minutes_ago = time.time() - 120.0
    os.utime(record.path, (two_minutes_ago, two_minutes_ago))
    assert record.read(600.0) is None, "the next job of that name is another one"
    record.write(DOCUMENT)
    os.utime(record.path, (two_minutes_ago, two_minutes_ago))
    assert record.read(600.0) == DOCUMENT


def test_a_record_that_is_none_does_not_count(tmp_path: Path) -> None:
    record = JobRecord(tmp_path, "job")
    record.path.write_bytes(b"{")
    assert record.read(60.0) is None


def test_it_is_readable_by_its_owner_only_and_leaves_nothing(tmp_path: Path) -> None:
    record = JobRecord(tmp_path / "folder", "../job")
    record.write(DOCUMENT)
    assert record.path.parent == tmp_path / "folder"
    assert stat.S_IMODE(record.path.stat().st_mode) == 0o600
    record.remove()
    assert list((tmp_path / "folder").iterdir()) == []


def test_a_folder_that_cannot_be_made_is_refused_in_words(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match="cannot be kept"):
        JobRecord(tmp_path / "file" / "folder", "job")


def test_a_record_that_cannot_be_written_says_so_and_stops_nothing(tmp_path: Path) -> None:
    record = JobRecord(tmp_path / "folder", "job")
    (tmp_path / "folder").rmdir()
    (tmp_path / "folder").touch()
    record.write(DOCUMENT)
    assert "cannot be written" in record.problem


# A folder in a place where others may have been first.


def old(path: Path) -> Path:
    """A file that was last touched longer ago than records are kept."""
    path.write_text("{}")
    os.utime(path, (time.time() - 2 * KEPT_S, time.time() - 2 * KEPT_S))
    return path


def test_a_folder_that_is_a_link_is_refused_and_nothing_behind_it_is_touched(
    tmp_path: Path,
) -> None:
    (tmp_path / "theirs").mkdir(mode=0o700)
    precious = [old(tmp_path / "theirs" / name) for name in ("job.json", "job.record.json")]
    (tmp_path / "records").symlink_to(tmp_path / "theirs")
    with pytest.raises(UsageError, match="cannot be kept"):
        JobRecord(tmp_path / "records", "job")
    assert all(path.exists() for path in precious)


def test_a_folder_that_others_can_write_to_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "records"
    folder.mkdir()
    folder.chmod(0o777)
    with pytest.raises(UsageError, match="does not belong to this user alone"):
        JobRecord(folder, "job")


def test_without_the_usual_folder_a_job_has_no_record_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody else made it first: that must not keep anybody from their work."""
    (tmp_path / "theirs").mkdir()
    (tmp_path / "usual").symlink_to(tmp_path / "theirs")
    monkeypatch.setattr(records, "own_folder", lambda: tmp_path / "usual")
    record = JobRecord(tmp_path / "usual", "job")
    assert record.read(60.0) is None
    record.write(DOCUMENT)
    assert "cannot be written: it is a link" in record.problem
    assert "--snapshot-dir" in record.problem
    assert list((tmp_path / "theirs").iterdir()) == []


@pytest.mark.root
def test_a_folder_of_another_user_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "records"
    folder.mkdir(mode=0o700)
    os.chown(folder, 12345, 12345)
    with pytest.raises(UsageError, match="does not belong to this user alone"):
        JobRecord(folder, "job")


def test_a_folder_that_is_taken_away_under_a_record_is_not_written_to(tmp_path: Path) -> None:
    """It was ours when the job began, and is somebody's link when it is written."""
    record = JobRecord(tmp_path / "records", "job")
    (tmp_path / "records").rename(tmp_path / "away")
    (tmp_path / "theirs").mkdir()
    (tmp_path / "records").symlink_to(tmp_path / "theirs")
    record.write(DOCUMENT)
    assert "cannot be written" in record.problem
    assert record.read(60.0) is None
    record.touch()
    record.remove()
    assert list((tmp_path / "theirs").iterdir()) == []


def test_no_link_in_the_folder_is_followed(tmp_path: Path) -> None:
    precious = tmp_path / ".bashrc"
    precious.write_text("precious")
    record = JobRecord(tmp_path / "records", "job")
    record.path.symlink_to(precious)
    record.path.with_name(f"{record.path.name}.{os.getpid()}").symlink_to(precious)
    record.touch()
    assert record.read(60.0) is None
    record.write(DOCUMENT)
    assert precious.read_text() == "precious"
    assert record.read(60.0) == DOCUMENT
    assert not record.path.is_symlink()


def test_a_pipe_in_its_place_keeps_nobody(tmp_path: Path) -> None:
    record = JobRecord(tmp_path, "job")
    os.mkfifo(record.path)
    assert record.read(60.0) is None


def test_a_record_that_others_can_write_is_not_believed(tmp_path: Path) -> None:
    record = JobRecord(tmp_path, "job")
    record.write(DOCUMENT)
    record.path.chmod(0o666)
    assert record.read(60.0) is None
    assert record.unbelieved == sentences.not_believed(record.path, FILE_NOT_OURS)


def test_a_record_that_holdfast_did_not_write_is_not_believed(tmp_path: Path) -> None:
    record = JobRecord(tmp_path, "job")
    record.write(DOCUMENT)
    forged = record.path.read_text().replace('"size":2', '"size":10000000000000')
    record.path.write_text(forged)
    assert record.read(60.0) is None
    assert record.unbelieved == sentences.foreign(record.path)
    record.path.write_bytes(b" " * 1_000_000)
    assert record.read(60.0) is None


def test_only_what_jobs_left_is_removed_when_it_is_old(tmp_path: Path) -> None:
    left = JobRecord(tmp_path, "old job")
    left.write(DOCUMENT)
    os.utime(left.path, (time.time() - 2 * KEPT_S, time.time() - 2 * KEPT_S))
    others = [old(tmp_path / name) for name in ("results.json", "results.json.1", "x.record.txt")]
    JobRecord(tmp_path, "job")
    assert not left.path.exists()
    assert all(path.exists() for path in others)


def test_long_names_that_begin_alike_have_records_of_their_own(tmp_path: Path) -> None:
    one, other = (JobRecord(tmp_path, "job" * 100 + end) for end in ("1", "2"))
    one.write(DOCUMENT)
    assert other.read(60.0) is None
    assert one.read(60.0) == DOCUMENT
