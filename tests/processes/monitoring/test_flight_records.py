"""Which file of PyTorch's flight recorder is kept, and which is not."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from holdfast.processes.monitoring import flight_records
from holdfast.processes.monitoring.flight_records import keep

RECORD = b"\x80\x04a pickle that nobody opens"


@pytest.fixture
def place(tmp_path: Path) -> dict[str, str]:
    (tmp_path / "trace_3").write_bytes(RECORD)
    return {"TORCH_FR_DUMP_TEMP_FILE": str(tmp_path / "trace_"), "HOME": str(tmp_path)}


def test_what_was_written_for_a_rank_is_copied_as_it_is(
    place: dict[str, str], tmp_path: Path
) -> None:
    kept = keep(place, 3, 0.0, tmp_path / "logs")
    assert kept == str(tmp_path / "logs" / "flight_record_rank_3")
    assert Path(kept).read_bytes() == RECORD
    assert keep(place, 4, 0.0, tmp_path / "logs") == ""


def test_the_older_name_of_the_variable_counts_too(place: dict[str, str], tmp_path: Path) -> None:
    older = {"TORCH_NCCL_DEBUG_INFO_TEMP_FILE": place["TORCH_FR_DUMP_TEMP_FILE"]}
    assert keep(older, 3, 0.0, tmp_path / "logs")


def test_without_a_variable_it_is_looked_for_where_pytorch_puts_it(tmp_path: Path) -> None:
    (tmp_path / ".cache/torch").mkdir(parents=True)
    (tmp_path / ".cache/torch/comm_lib_trace_rank_3").write_bytes(RECORD)
    assert keep({"HOME": str(tmp_path)}, 3, 0.0, tmp_path / "logs")


def test_what_is_older_than_the_worker_is_of_another_job(
    place: dict[str, str], tmp_path: Path
) -> None:
    assert keep(place, 3, time.time() + 100, tmp_path / "logs") == ""


@pytest.mark.parametrize("kind", ["link", "pipe", "folder", "empty"])
def test_what_is_no_file_of_ours_is_not_touched(
    place: dict[str, str], tmp_path: Path, kind: str
) -> None:
    record = tmp_path / "trace_3"
    record.rename(tmp_path / "elsewhere")
    if kind == "link":
        record.symlink_to(tmp_path / "elsewhere")
    elif kind == "pipe":
        os.mkfifo(record)
    elif kind == "folder":
        record.mkdir()
    else:
        record.touch()
    assert keep(place, 3, 0.0, tmp_path / "logs") == ""


def test_one_that_is_too_large_is_left_where_it_is(
    place: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(flight_records, "SIZE_MOST", 8)
    assert keep(place, 3, 0.0, tmp_path / "logs") == ""
