"""The notes of nodes on this machine, as files: making one's own, and finding those of the ended.

What a note proves is decided in `core.policy.liveness_locks`; this finds the evidence. All of it
may wait for a disk: it is done beside the loop (`processes.lock_keeper`).

Rules
1. The folder is this user's alone, and on a disk of this very machine: a lock of a file that lies
   elsewhere proves nothing here.
2. A note is locked before it has its name, and written in place, whole, in one go: its number on
   the disk stays, and who reads it finds all of it, or cannot believe it.
3. Who looks shares the lock with others who look, and keeps it no longer than it takes to look.
4. What a file holds is believed only if it is a note (`core.protocol.bounds`).
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from holdfast.core.policy.liveness_locks import (
    Evidence,
    LockOrigin,
    MachineNote,
    NotedSeat,
    Verdict,
    judge,
)
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
MOUNTS = Path("/proc/self/mountinfo")
_SEPARATORS = {"\\040": " ", "\\011": "\t", "\\012": "\n", "\\134": "\\"}


class Found(Struct, frozen=True):
    """A note of another node of this job, and what it proves."""

    file: str
    note: MachineNote
    verdict: Verdict


class OwnNote:
    """The note of this node. It has its lock as long as anybody holds `descriptor`."""

    def __init__(self, folder: Path, note: MachineNote) -> None:
        """Make it. Raises `OSError`."""
        self.folder = folder
        self.file = f"{file_prefix(note.job)}{os.urandom(8).hex()}{ENDING}"
        part = f".{self.file}.part"
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        with private_folder(folder) as opened:
            self.descriptor = os.open(part, flags, 0o600, dir_fd=opened)
            try:
                fcntl.flock(self.descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                self._note = replace(note, file=os.fstat(self.descriptor).st_ino)
                self._write()
                os.rename(part, self.file, src_dir_fd=opened, dst_dir_fd=opened)
            except BaseException:
                os.close(self.descriptor)
                with contextlib.suppress(OSError):
                    os.unlink(part, dir_fd=opened)
                raise

    def put(self, seat: NotedSeat) -> None:
        """This is its seat from now on. A disk that cannot take that has the older one, or none."""
        self._note = replace(self._note, seat=seat)
        with contextlib.suppress(OSError):
            self._write()
            self.secure()

    def secure(self) -> None:
        """Have it survive a power cut, after which it is what proves that all was gone."""
        with contextlib.suppress(OSError), private_folder(self.folder) as opened:
            os.fsync(self.descriptor)
            os.fsync(opened)

    def _write(self) -> None:
        content = msgspec.json.encode(self._note)
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


def look(folder: Path, job: str, here: LockOrigin, without: str) -> list[Found]:
    """All notes of this job in the folder but one's own, and what each proves now."""
    found = []
    with contextlib.suppress(OSError), private_folder(folder) as opened:
        _sweep(opened)
        for file in sorted(os.listdir(opened)):
            if not file.startswith(file_prefix(job)) or not file.endswith(ENDING):
                continue
            one = _look_at(opened, file, here) if file != without else None
            if one is not None and one.note.job == job:
                found.append(one)
    return found


def wait_for(folder: Path, file: str, here: LockOrigin) -> Found | None:
    """Wait, for ever if need be, until nothing of a note's node runs. What it proves then."""
    try:
        with private_folder(folder) as opened, _opened(opened, file) as descriptor:
            fcntl.flock(descriptor, fcntl.LOCK_SH)
            note = _read(descriptor)
            while note is not None and (marked := _carriers(note.marker)):
                _wait_for_ends(marked)
            return _look_at(opened, file, here)
    except OSError:
        return None  # Somebody has removed it.


def _look_at(folder: int, file: str, here: LockOrigin) -> Found | None:
    try:
        with _opened(folder, file) as descriptor:
            is_locked = not _shares(descriptor)
            note = _read(descriptor)
            if note is None:
                return None
            marked = 0 if is_locked else len(_carriers(note.marker))
            number = os.fstat(descriptor).st_ino
            return Found(file, note, judge(note, here, Evidence(number, is_locked, marked)))
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


def _read(descriptor: int) -> MachineNote | None:
    try:
        return msgspec.json.decode(os.pread(descriptor, READ_BYTES, 0), type=MachineNote)
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
    place, kind = os.path.realpath(folder), ""
    longest = -1
    for line in MOUNTS.read_text(encoding="utf-8", errors="replace").splitlines():
        words, _, more = line.partition(" - ")
        mounted = _plain(words.split(" ")[4])
        within = place == mounted or place.startswith(mounted.rstrip("/") + "/")
        if within and len(mounted) >= longest:  # A later one lies on top.
            longest, kind = len(mounted), more.split(" ")[0]
    return kind in LOCAL_DISKS


def _plain(mounted: str) -> str:
    for written, meant in _SEPARATORS.items():
        mounted = mounted.replace(written, meant)
    return mounted
