"""A record that somebody else has put where the coordinator's host looks for its own."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec
import pytest

from holdfast.core.protocol.document import Document, Ledger
from holdfast.engine.sentences import without_record
from holdfast.registers.job_record import JobRecord
from holdfast.registers.sentences import foreign, not_believed
from holdfast.runtime.sentences import FILE_NOT_OURS, LINK, NOT_OURS

from ..free_ports import free_port
from .conftest import Job, StartJob

RUN_ID = "job"
STATUS_USAGE = 2
LEAVE_A_MARK = "open('it-ran', 'w').close()"
FINISHED = Document(7, 2, 1, "node/1", "node", ledger=Ledger(round=1, size=1, done=(0,)))
"""By this, all workers have succeeded already."""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "records"
    folder.mkdir(mode=0o700)
    return folder


def start(start_job: StartJob, folder: Path, port: int) -> Job:
    meet = (f"--rdzv-endpoint=127.0.0.1:{port}", f"--rdzv-id={RUN_ID}", "--nnodes=1:2")
    keep = (f"--snapshot-dir={folder}", "--rdzv-conf=last_call_timeout=1", "--no-warm")
    return start_job(*meet, *keep, script=LEAVE_A_MARK)


def plant(folder: Path, port: int, **changes: object) -> Path:
    record = JobRecord(folder, f"{port}-{RUN_ID}")
    record.write(FINISHED)
    written = msgspec.json.decode(record.path.read_bytes())
    written["ledger"].update(changes)
    record.path.write_bytes(msgspec.json.encode(written))
    return record.path


@pytest.mark.parametrize(
    "changes",
    [{"size": 10**13}, {"charges": 10**13}, {"done": [99]}, {"size": -3, "done": []}],
    ids=["size", "charges", "seat", "negative"],
)
def test_what_holdfast_did_not_write_is_told_and_the_job_runs(
    start_job: StartJob, folder: Path, changes: dict[str, object]
) -> None:
    port = free_port()
    planted = plant(folder, port, **changes)
    job = start(start_job, folder, port)
    assert job.wait() == 0, job.stderr
    assert (job.folder / "it-ran").exists()
    assert without_record(foreign(planted)) in job.stderr


def test_a_record_that_others_can_write_does_not_end_the_job(
    start_job: StartJob, folder: Path
) -> None:
    port = free_port()
    planted = plant(folder, port)
    planted.chmod(0o666)
    job = start(start_job, folder, port)
    assert job.wait() == 0, job.stderr
    assert (job.folder / "it-ran").exists()
    assert without_record(not_believed(planted, FILE_NOT_OURS)) in job.stderr


def test_a_folder_that_is_a_link_is_refused_in_words(start_job: StartJob, folder: Path) -> None:
    port = free_port()
    plant(folder, port)
    (folder.parent / "link").symlink_to(folder)
    job = start(start_job, folder.parent / "link", port)
    assert job.wait() == STATUS_USAGE, job.stderr
    assert LINK in job.stderr
    assert "Traceback" not in job.stderr


@pytest.mark.root
def test_a_folder_of_another_user_is_refused_in_words(start_job: StartJob, folder: Path) -> None:
    port = free_port()
    os.chown(plant(folder, port), 12345, 12345)
    os.chown(folder, 12345, 12345)
    job = start(start_job, folder, port)
    assert job.wait() == STATUS_USAGE, job.stderr
    assert NOT_OURS in job.stderr
