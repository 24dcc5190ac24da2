"""Liveness locks of nodes as files, with real processes that hold them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from holdfast.core.policy.liveness_locks import LockRecord, RecordedSeat
from holdfast.processes import lock_files
from holdfast.processes.lock_files import (
    ENDING,
    KEPT_S,
    MARKER,
    OwnLock,
    find_locks,
    is_local,
    lock_origin,
    remove,
    wait_for,
)

SEAT = RecordedSeat(5, 3, 1)
HOLD = "import sys; print(flush=True); sys.stdin.read()"
DEADLINE_S = 60.0
MARK = f"@holdfast-1-{os.urandom(4).hex()}"
"""Of this process's tests alone: others may run beside them."""


def record(job: str = "job", node: str = "here-1", marker: str = "") -> LockRecord:
    return LockRecord(job, node, lock_origin(), 0, marker)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "locks"


@pytest.fixture
def own(folder: Path) -> Iterator[OwnLock]:
    made = OwnLock(folder, record())
    yield made
    try:
        os.close(made.descriptor)
    except OSError:
        pass  # The test has let go of it.


def verdicts(folder: Path, job: str = "job") -> list[str]:
    return [found.verdict for found in find_locks(folder, job, lock_origin(), "")]


def let_go(own: OwnLock) -> None:
    os.close(own.descriptor)


class Holder:
    """A process that has the lock file's descriptor, as a worker has, and nothing else of it."""

    def __init__(self, *descriptors: int, env: dict[str, str] | None = None) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", HOLD],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            pass_fds=descriptors,
            start_new_session=True,
            env={**os.environ, **(env or {})},
        )
        assert self._process.stdout is not None
        self._process.stdout.readline()  # Before that its environment may not be shown.

    def end(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.stdout.close()
        self._process.wait(DEADLINE_S)


def test_a_node_has_ended_when_the_last_that_held_its_lock_file_has(own: OwnLock) -> None:
    holder = Holder(own.descriptor)
    assert verdicts(own.folder) == ["may run"]
    let_go(own)
    assert verdicts(own.folder) == ["may run"], "one of its processes is left"
    holder.end()
    assert verdicts(own.folder) == ["ended"]


def test_a_process_that_let_go_of_all_descriptors_is_known_by_its_environment(
    folder: Path,
) -> None:
    made = OwnLock(folder, record(marker=MARK))
    holder = Holder(env={MARKER: MARK})
    let_go(made)
    assert verdicts(folder) == ["may run"]
    holder.end()
    assert verdicts(folder) == ["ended"]


def test_a_longer_marker_is_another_one(folder: Path) -> None:
    made = OwnLock(folder, record(marker=MARK))
    holder = Holder(env={MARKER: f"{MARK}c"})
    let_go(made)
    assert verdicts(folder) == ["ended"]
    holder.end()


def test_the_end_of_what_may_run_is_waited_for(folder: Path) -> None:
    made = OwnLock(folder, record(marker=MARK))
    holders = Holder(made.descriptor), Holder(env={MARKER: MARK})
    let_go(made)
    found = []
    waiting = threading.Thread(
        target=lambda: found.append(wait_for(folder, made.file, lock_origin()))
    )
    waiting.start()
    for holder in holders:
        assert not found
        holder.end()
    waiting.join(DEADLINE_S)
    assert [one and one.verdict for one in found] == ["ended"]


def test_a_lock_file_that_is_removed_meanwhile_proves_nothing(own: OwnLock) -> None:
    (own.folder / own.file).unlink()
    assert wait_for(own.folder, own.file, lock_origin()) is None


def test_what_is_found_is_what_was_recorded_last(own: OwnLock) -> None:
    own.put(RecordedSeat(5, 2, 0))
    own.put(SEAT)
    let_go(own)
    (found,) = find_locks(own.folder, "job", lock_origin(), "")
    assert (found.record.node, found.record.seat, found.verdict) == ("here-1", SEAT, "ended")


def test_lock_files_of_other_jobs_and_one_s_own_are_not_looked_at(own: OwnLock) -> None:
    assert find_locks(own.folder, "another", lock_origin(), "") == []
    assert find_locks(own.folder, "job", lock_origin(), own.file) == []


def test_a_copy_of_a_lock_file_proves_nothing(own: OwnLock) -> None:
    copied = own.folder / own.file.replace(ENDING, f"-copied{ENDING}")
    shutil.copy(own.folder / own.file, copied)
    assert sorted(verdicts(own.folder)) == ["may run", "unknown"]


def test_a_lock_file_of_an_earlier_start_of_this_machine_proves_the_end(folder: Path) -> None:
    earlier = replace(lock_origin(), start="earlier", machine="m", namespace="pid:[4026531836]")
    let_go(OwnLock(folder, replace(record(), where=earlier)))
    (found,) = find_locks(folder, "job", replace(earlier, start="this one"), "")
    assert found.verdict == "ended"


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"job":"job"}', b"\xff" * 100])
def test_what_is_no_record_is_not_believed(own: OwnLock, content: bytes) -> None:
    (own.folder / own.file).write_bytes(content)
    assert verdicts(own.folder) == []


def test_a_lock_file_that_others_can_write_is_not_believed(own: OwnLock) -> None:
    (own.folder / own.file).chmod(0o666)
    let_go(own)
    assert verdicts(own.folder) == []


def test_only_its_user_can_read_a_lock_file(own: OwnLock) -> None:
    assert (own.folder / own.file).stat().st_mode & 0o777 == 0o600


def test_a_folder_that_is_not_private_is_not_used(folder: Path) -> None:
    folder.mkdir(mode=0o777)
    folder.chmod(0o777)
    with pytest.raises(PermissionError):
        OwnLock(folder, record())
    assert find_locks(folder, "job", lock_origin(), "") == []
    remove(folder, ("any",))


def test_what_nobody_came_back_for_is_swept_away_unless_it_is_held(own: OwnLock) -> None:
    left = OwnLock(own.folder, record("an older job"))
    long_ago = time.time() - 2 * KEPT_S
    for made in (own, left):
        os.utime(own.folder / made.file, (long_ago, long_ago))
    let_go(left)
    verdicts(own.folder)
    assert [path.name for path in own.folder.iterdir()] == [own.file]


def test_disks_of_other_machines_are_told_from_our_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = (
        "/dev/sda / ext4 rw 0 0",
        r"server:/home /home\040of\040all nfs4 rw 0 0",
        r"/dev/sdb /home\040of\040all/scratch xfs rw 0 0",
    )
    table = tmp_path / "mounts"
    table.write_text("\n".join(lines))
    monkeypatch.setattr(lock_files, "MOUNTS", str(table))
    known = {"/var/tmp": True, "/home of all/me": False, "/home of all/scratch/me": True}
    assert {place: is_local(Path(place)) for place in known} == known


def test_this_very_machine_has_a_disk(tmp_path: Path) -> None:
    assert is_local(tmp_path / "not" / "there" / "yet")
    assert all((lock_origin().start, lock_origin().namespace))
