"""The liveness locks of nodes on this machine: making one's own, and finding those of the ended.

What a lock file proves is decided in `core.policy.liveness_locks`; this finds the evidence, off the
loop, since all of it may wait for a disk.

Rules
1. The folder is this user's alone, and on a disk of this very machine: a lock of a file that lies
   elsewhere proves nothing here. Where no file can be kept, the node goes without.
2. A file is locked before it has its name, and written in place, whole, in one go. All processes of
   the node hold the lock, until the last has ended.
3. A reader shares the lock with other readers, and keeps it no longer than it takes to read.
   What a file holds is believed only within its bounds (`core.protocol.bounds`).
4. What was found to have ended is told. For what may still run the kernel is asked to say when it
   has ended, in a thread of its own: it may take for ever, and keeps nobody.
5. Files of no more use are removed: those of earlier rounds once a later one runs here, and all of
   the job when it is over.
"""

from __future__ import annotations

import _thread
import contextlib
import fcntl
import os
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from holdfast.core.node_io import EndedFound, LivenessLockTaken, NodeEvent, RecordSeat
from holdfast.core.policy.liveness_locks import (
    Evidence,
    LockOrigin,
    LockRecord,
    LockVerdict,
    RecordedSeat,
    ended_member,
    judge,
)
from holdfast.processes.stdlib_only import linux
from holdfast.runtime.disk import Disk
from holdfast.runtime.private_folder import is_ours, private_folder

ENDING = ".note"
READ_BYTES = 1 << 14
KEPT_S = 24 * 3600.0
MARKER = "HOLDFAST_CHANNEL"
"""The variable that whatever a worker executes has, with a value of its node's alone."""
LOCAL_DISKS = frozenset(
    {"ext2", "ext3", "ext4", "xfs", "btrfs", "f2fs", "zfs", "bcachefs", "tmpfs", "overlay", "jfs"}
)
"""Kinds of file systems whose locks are the kernel's own. Others may be shared by machines."""
MOUNTS = "/proc/self/mounts"


class Found(Struct, frozen=True):
    """The lock file of another node of this job, and what it proves."""

    file: str
    record: LockRecord
    verdict: LockVerdict


class OwnLock:
    """The lock file of this node. It is locked as long as anybody holds `descriptor`."""

    def __init__(self, folder: Path, record: LockRecord) -> None:
        """Make it. Raises `OSError`."""
        self.folder = folder
        self.file = f"{file_prefix(record.job)}{os.urandom(8).hex()}{ENDING}"
        part = f".{self.file}.part"
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        with private_folder(folder) as opened:
            self.descriptor = os.open(part, flags, 0o600, dir_fd=opened)
            try:
                fcntl.flock(self.descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                self._record = replace(record, file=os.fstat(self.descriptor).st_ino)
                self._write()
                os.rename(part, self.file, src_dir_fd=opened, dst_dir_fd=opened)
            except BaseException:
                os.close(self.descriptor)
                with contextlib.suppress(OSError):
                    os.unlink(part, dir_fd=opened)
                raise

    def put(self, seat: RecordedSeat) -> None:
        """This is its seat from now on. A disk that cannot take that has the older one, or none."""
        self._record = replace(self._record, seat=seat)
        with contextlib.suppress(OSError):
            self._write()
            self.secure()

    def secure(self) -> None:
        """Have it survive a power cut, after which it is what proves that all was gone."""
        with contextlib.suppress(OSError), private_folder(self.folder) as opened:
            os.fsync(self.descriptor)
            os.fsync(opened)

    def _write(self) -> None:
        content = msgspec.json.encode(self._record)
        # Never shorter than before: blanks are no content, and it is one write.
        os.pwrite(self.descriptor, content.ljust(os.fstat(self.descriptor).st_size), 0)


def file_prefix(job: str) -> str:
    from hashlib import blake2b

    return blake2b(job.encode(), digest_size=12).hexdigest() + "-"


def remove(folder: Path, files: tuple[str, ...]) -> None:
    with contextlib.suppress(OSError), private_folder(folder) as opened:
        for file in files:
            with contextlib.suppress(OSError):
                os.unlink(file, dir_fd=opened)


# Looking.


def find_locks(folder: Path, job: str, here: LockOrigin, without: str) -> list[Found]:
    """All lock files of this job in the folder but one's own, and what each proves now."""
    found = []
    with contextlib.suppress(OSError), private_folder(folder) as opened:
        _sweep(opened)
        for file in sorted(os.listdir(opened)):
            if not file.startswith(file_prefix(job)) or not file.endswith(ENDING):
                continue
            one = _examined(opened, file, here) if file != without else None
            if one is not None and one.record.job == job:
                found.append(one)
    return found


def wait_for(folder: Path, file: str, here: LockOrigin) -> Found | None:
    """Wait, for ever if need be, until nothing of a lock file's node runs. What it proves then."""
    try:
        with private_folder(folder) as opened, _opened(opened, file) as descriptor:
            fcntl.flock(descriptor, fcntl.LOCK_SH)
            record = _read(descriptor)
            while record is not None and (marked := _carriers(record.marker)):
                _wait_for_ends(marked)
            return _examined(opened, file, here)
    except OSError:
        return None  # Somebody has removed it.


def _examined(folder: int, file: str, here: LockOrigin) -> Found | None:
    try:
        with _opened(folder, file) as descriptor:
            is_locked = not _shares(descriptor)
            record = _read(descriptor)
            if record is None:
                return None
            marked = 0 if is_locked else len(_carriers(record.marker))
            number = os.fstat(descriptor).st_ino
            return Found(file, record, judge(record, here, Evidence(number, is_locked, marked)))
    except OSError:
        return None


@contextlib.contextmanager
def _opened(folder: int, file: str) -> Iterator[int]:
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    descriptor = os.open(file, flags, dir_fd=folder)
    try:
        if not is_ours(os.fstat(descriptor)):
            raise PermissionError(0, "it is no file of this user's alone", file)
        yield descriptor
    finally:
        os.close(descriptor)


def _shares(descriptor: int) -> bool:
    """Whether nobody has the lock for itself."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _read(descriptor: int) -> LockRecord | None:
    try:
        return msgspec.json.decode(os.pread(descriptor, READ_BYTES, 0), type=LockRecord)
    except (msgspec.DecodeError, ValueError):
        return None


def _sweep(folder: int) -> None:
    """Remove what nodes left that never came back here."""
    for file in os.listdir(folder):
        if not file.endswith((ENDING, f"{ENDING}.part")):
            continue  # The folder may hold what is not ours to remove.
        with contextlib.suppress(OSError), _opened(folder, file) as descriptor:
            old = time.time() - os.fstat(descriptor).st_mtime > KEPT_S
            if old and _shares(descriptor):
                os.unlink(file, dir_fd=folder)


# Processes.


def _carriers(marker: str) -> list[int]:
    """The processes of this user that carry the marker in their environment."""
    if not marker:
        return []
    wanted = f"{MARKER}={marker}".encode()
    found = []
    for name in os.listdir("/proc"):
        if not name.isdecimal():
            continue
        # Another user's, or gone since.
        with contextlib.suppress(OSError), open(f"/proc/{name}/environ", "rb") as environment:
            if wanted in environment.read().split(b"\0"):
                found.append(int(name))
    return found


def _wait_for_ends(processes: list[int]) -> None:
    import select

    for process in processes:
        try:
            descriptor = os.pidfd_open(process)
        except ProcessLookupError:
            continue
        try:
            poll = select.poll()
            poll.register(descriptor, select.POLLIN)
            poll.poll()
        finally:
            os.close(descriptor)


# Where we are.


def lock_origin() -> LockOrigin:
    """Of this process."""
    return LockOrigin(
        _first_line("/etc/machine-id"),
        _first_line("/proc/sys/kernel/random/boot_id"),
        _link("/proc/self/ns/pid"),
    )


def _first_line(path: str) -> str:
    try:
        return Path(path).read_text(encoding="ascii", errors="replace").partition("\n")[0][:128]
    except OSError:
        return ""


def _link(path: str) -> str:
    try:
        return os.readlink(path)
    except OSError:
        return ""


def is_local(folder: Path) -> bool:
    """Whether a folder, which need not be there yet, is on a disk of this very machine."""
    _, kind = linux.mount_of(os.path.realpath(folder), MOUNTS)
    return kind in LOCAL_DISKS


WAITED_FOR_MOST = 16
"""Nodes of the job on one machine whose end is waited for by another one there."""


class LockKeeper:
    """Of one node of one job. `post` takes what comes of it, on the loop."""

    def __init__(
        self, disk: Disk, folders: tuple[Path, ...], post: Callable[[NodeEvent], None]
    ) -> None:
        self._disk, self._folders, self._post = disk, folders, post
        self._lane = disk.lane("locks")
        self._own: OwnLock | None = None
        self._ended: dict[str, LockRecord] = {}
        """By file: what was told."""
        self._is_closed = False

    def open(self, job: str, node: str, marker: str, hold: Callable[[int], None]) -> None:
        """Make the lock file, then look for others. `hold` gets its descriptor, and owns that."""

        def on_made(own: OwnLock | None) -> None:
            if self._is_closed:
                return
            if own is not None:
                self._own = own
                hold(os.dup(own.descriptor))
                self._lane.do(own.secure)
                self._lane.do(partial(self._find, own, job), self._on_found)
            self._post(LivenessLockTaken(own is not None))

        record = LockRecord(job, node, LockOrigin(), 0, marker)
        self._lane.do(lambda: (self._make(record),), lambda made: on_made(made[0]))

    def put(self, effect: RecordSeat) -> None:
        """The node has this seat from now on; nothing waits for that to be written."""
        own = self._own
        if own is None:
            return
        seat = RecordedSeat(effect.instance, effect.round, effect.seat)
        self._lane.do(partial(own.put, seat))
        needless = tuple(
            file
            for file, record in self._ended.items()
            if record.seat is None or _turn(record.seat) < _turn(seat)
        )
        for file in needless:
            del self._ended[file]
        if needless:
            self._lane.do(partial(remove, own.folder, needless))

    def remove(self) -> None:
        """Remove the lock files: the job is over, and none of them will be read."""
        if self._own is not None:
            files = (self._own.file, *self._ended)
            # Among what an end waits for, as it does not for files that are kept.
            self._disk.lane("files").do(partial(remove, self._own.folder, files))

    def close(self) -> None:
        """Release our own lock; the file is kept for the next node."""
        self._is_closed = True
        if self._own is not None:
            # Behind what is still to be written there.
            self._lane.do(partial(os.close, self._own.descriptor))
            self._own = None

    def _on_found(self, found: list[Found]) -> None:
        own = self._own
        if own is None:
            return
        self._tell([one for one in found if one.verdict == "ended"])
        running = [one for one in found if one.verdict == "may run"]
        for one in running[:WAITED_FOR_MOST]:
            _thread.start_new_thread(self._wait, (own.folder, one.file))

    def _tell(self, found: list[Found]) -> None:
        if not found or self._is_closed:
            return
        self._ended |= {one.file: one.record for one in found}
        members = [ended_member(one.record) for one in found]
        seated = tuple(one for one in members if one is not None)
        self._post(EndedFound(tuple(one.record.node for one in found), seated))

    # Beside the loop.

    def _make(self, record: LockRecord) -> OwnLock | None:
        for folder in self._folders:
            try:
                if is_local(folder):
                    return OwnLock(folder, replace(record, where=lock_origin()))
            except OSError:
                continue
        return None

    def _find(self, own: OwnLock, job: str) -> list[Found]:
        return find_locks(own.folder, job, lock_origin(), own.file)

    def _wait(self, folder: Path, file: str) -> None:
        found = wait_for(folder, file, lock_origin())
        if found is not None and found.verdict == "ended":
            self._disk.calls.put(self._tell, [found])


def _turn(seat: RecordedSeat) -> tuple[int, int]:
    return (seat.instance, seat.round)
