"""What the kernel tells of files that others write: that they are there, that they have grown.

Rules
- Whoever watches first and reads then misses nothing: a change after the read is told.
- A file that is not there yet is watched for through the nearest folder that is. When something
  is made there, it has to be looked for, and watched for, anew.
- The kernel tells of what this machine writes. On a file system that others write to as well, and
  where no watch is to be had (a user has only so many), the answer is None: look yourself.
"""

from __future__ import annotations

import ctypes
import os
import select
import struct
from collections.abc import Iterator

OVERFLOW = -1
"""The mark that stands for all that the kernel had no room to tell."""

_MODIFIED, _MOVED_HERE, _CREATED = 0x2, 0x80, 0x100
_EVENT = struct.Struct("iIII")
_EVENTS_BYTES = 1 << 16
_STATFS_BYTES = 256

_REMOTE = {
    0x6969: "NFS",
    0x517B: "SMB",
    0xFE534D42: "SMB2",
    0xFF534D42: "CIFS",
    0x65735546: "FUSE",
    0x00C36400: "Ceph",
    0x0BD00BD0: "Lustre",
    0x01021997: "9P",
    0x19830326: "BeeGFS",
    0x47504653: "GPFS",
    0x5346414F: "AFS",
}
"""Kinds of file systems that other machines may write to, as `statfs` numbers them."""


class FileNews:
    """Watches, and a bell that ends a wait. For one thread."""

    def __init__(self, bell: int) -> None:
        self._bell = bell
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._inotify: int = self._libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        """Below zero where there is none: then nothing is ever heard."""
        self._poll = select.poll()
        for descriptor in (bell, self._inotify):
            if descriptor >= 0:
                self._poll.register(descriptor, select.POLLIN)

    def watch_file(self, descriptor: int) -> int | None:
        """Hear when what is open under this descriptor grows: the mark by which it is told."""
        # By its descriptor: under its path there may be another file by now.
        return self._watch(f"/proc/self/fd/{descriptor}", _MODIFIED)

    def watch_for(self, path: str) -> int | None:
        """Hear when this file may be there; it may have come meanwhile."""
        path = os.path.abspath(path)
        while True:
            missing = path
            while not os.path.exists(folder := os.path.dirname(missing)):
                missing = folder
            mark = self._watch(folder, _CREATED | _MOVED_HERE)
            if missing == path or not os.path.lexists(missing):
                return mark

    def forget(self, mark: int) -> None:
        """Hear of it no more."""
        self._libc.inotify_rm_watch(self._inotify, mark)

    def wait(self, timeout_s: float | None) -> set[int] | None:
        """The marks of what has happened, none of them when time is over; None for the bell."""
        timeout_ms = None if timeout_s is None else timeout_s * 1000
        ready = {descriptor for descriptor, _ in self._poll.poll(timeout_ms)}
        if self._bell in ready:
            return None
        return set(self._marks()) if ready else set()

    def _marks(self) -> Iterator[int]:
        events = os.read(self._inotify, _EVENTS_BYTES)
        while events:
            mark, _, _, length = _EVENT.unpack_from(events)
            events = events[_EVENT.size + length :]
            yield mark

    def close(self) -> None:
        if self._inotify >= 0:
            os.close(self._inotify)

    def _watch(self, path: str, mask: int) -> int | None:
        if self._is_written_elsewhere(path):
            return None
        mark: int = self._libc.inotify_add_watch(self._inotify, os.fsencode(path), mask)
        return mark if mark >= 0 else None

    def _is_written_elsewhere(self, path: str) -> bool:
        about = ctypes.create_string_buffer(_STATFS_BYTES)
        if self._libc.statfs(os.fsencode(path), about) < 0:
            return False
        (kind,) = struct.unpack_from("l", about)
        return kind & 0xFFFFFFFF in _REMOTE
