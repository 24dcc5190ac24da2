"""The record that the coordinator's host keeps: whole, bounded in time, and gone at the end."""

from __future__ import annotations

import os
import stat
import time
from pathlib import Path

import pytest

from holdfast.control.record import Record
from holdfast.core.document import Document, Ledger
from holdfast.core.errors import UsageError

DOCUMENT = Document(7, 2, 1, "node/1", "node", ledger=Ledger(round=3, size=2, charges=1))


def test_what_was_written_is_read_by_the_next_one(tmp_path: Path) -> None:
    Record(tmp_path, "job").write(DOCUMENT)
    assert Record(tmp_path, "job").read(60.0) == DOCUMENT
    assert Record(tmp_path, "another job").read(60.0) is None


def test_a_record_that_nobody_can_remember_does_not_count(tmp_path: Path) -> None:
    record = Record(tmp_path, "job")
    record.write(DOCUMENT)
    os.utime(record.path, (time.time() - 100, time.time() - 100))
    assert record.read(60.0) is None
    record.touch()
    assert record.read(60.0) == DOCUMENT


def test_a_record_that_is_none_does_not_count(tmp_path: Path) -> None:
    record = Record(tmp_path, "job")
    record.path.write_bytes(b"{")
    assert record.read(60.0) is None


def test_it_is_readable_by_its_owner_only_and_leaves_nothing(tmp_path: Path) -> None:
    record = Record(tmp_path / "folder", "../job")
    record.write(DOCUMENT)
    assert record.path.parent == tmp_path / "folder"
    assert stat.S_IMODE(record.path.stat().st_mode) == 0o600
    record.remove()
    assert list((tmp_path / "folder").iterdir()) == []


def test_a_folder_that_cannot_be_made_is_refused_in_words(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match="cannot be kept"):
        Record(tmp_path / "file" / "folder", "job")


def test_a_record_that_cannot_be_written_says_so_and_stops_nothing(tmp_path: Path) -> None:
    record = Record(tmp_path / "folder", "job")
    (tmp_path / "folder").rmdir()
    record.write(DOCUMENT)
    assert "cannot be written" in record.problem
