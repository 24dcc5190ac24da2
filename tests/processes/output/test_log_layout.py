"""Where the files of a job lie."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from holdfast.core.protocol.errors import UsageError
from holdfast.processes.output.run_folders import (
    JobLogs,
    create_job_logs,
    only_our_records,
    remove_tree,
)


def test_the_layout_is_the_documented_one(tmp_path: Path) -> None:
    logs = create_job_logs(str(tmp_path / "new" / "logs"), "my-job")
    assert logs.root is not None
    assert logs.root.is_dir()
    assert logs.root.parent == tmp_path / "new" / "logs"
    assert logs.root.name.startswith("my-job_")
    assert logs.journal == logs.root / "journal.jsonl"
    assert logs.attempt(3) == logs.root / "attempt_3"
    assert logs.worker(3, 12) == logs.root / "attempt_3" / "12"
    assert logs.error_file(3, 12) == logs.root / "attempt_3" / "12" / "error.json"


def test_two_jobs_with_the_same_run_id_have_directories_of_their_own(tmp_path: Path) -> None:
    roots = {create_job_logs(str(tmp_path), "same").root for _ in range(20)}
    assert len(roots) == 20


@pytest.mark.parametrize("run_id", ["../../etc/x", "/abs/olute", "a b\n\0c", "..", "", "é" * 500])
def test_whatever_the_run_id_holds_the_directory_is_one_below_the_log_dir(
    tmp_path: Path, run_id: str
) -> None:
    logs = create_job_logs(str(tmp_path), run_id)
    assert logs.root is not None
    assert list(tmp_path.iterdir()) == [logs.root]
    assert not logs.root.name.startswith(".")


def test_devnull_as_log_dir_names_no_file_at_all() -> None:
    logs = create_job_logs(os.devnull, "job")
    assert logs == JobLogs(None)
    assert logs.journal is None
    assert logs.attempt(0) is None
    assert logs.worker(0, 0) is None
    assert logs.error_file(0, 0) is None


@pytest.mark.parametrize("name", ["stdout.log", "profile.bin"])
def test_what_a_worker_wrote_is_no_record_of_ours(tmp_path: Path, name: str) -> None:
    logs = create_job_logs(str(tmp_path), "job")
    worker, journal, error_file = logs.worker(0, 0), logs.journal, logs.error_file(0, 0)
    assert worker is not None
    assert journal is not None
    assert error_file is not None
    worker.mkdir(parents=True)
    journal.write_text("{}\n")
    error_file.write_text("{}")
    (worker / "stdout.log").touch()
    assert only_our_records(tmp_path)
    (worker / name).write_text("output")
    assert not only_our_records(tmp_path)


def test_a_temporary_directory_that_is_not_there_is_not_insisted_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path / "missing"))
    logs = create_job_logs(None, "job")
    assert logs.root is not None
    assert logs.root.is_dir()
    assert logs.temporary is not None
    remove_tree(logs.temporary)
    assert not logs.temporary.exists()


def test_a_log_dir_that_cannot_be_made_is_a_usage_error(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    for path in (file, file / "below"):
        with pytest.raises(UsageError) as raised:
            create_job_logs(str(path), "job")
        assert str(path) in raised.value.message
        assert "--log-dir" in raised.value.hint


def test_the_directory_carries_the_name_of_its_host(tmp_path: Path) -> None:
    logs = create_job_logs(str(tmp_path), "job", "node7.example.org")
    assert logs.root is not None
    assert logs.root.name.startswith("job_node7.example.org_")


@pytest.mark.parametrize("host", ["../up", "a/b", "..", "é" * 500, "\n"])
def test_whatever_a_host_is_called_the_directory_is_one_below_the_log_dir(
    tmp_path: Path, host: str
) -> None:
    logs = create_job_logs(str(tmp_path), "job", host)
    assert list(tmp_path.iterdir()) == [logs.root]
