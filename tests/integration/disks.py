"""Real disks that stall, are full or fail: small file systems on loop devices and in memory.

Rules
- A disk is made for one test, below its own folder, and is gone after it, whatever the test did:
  one that stalls is let go first, or nothing that waits for it could ever end.
- Where this machine cannot make one, the test is skipped with the reason.

How they do it: `fsfreeze` holds up everybody who writes to a file system until it is let go, as a
disk does that does not answer. A shut down ext4 answers every call with an input/output error, as
one does whose disk has gone. A file system in memory has the size that it is given.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import struct
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

COMMANDS = ("mkfs.ext4", "mount", "umount", "fsfreeze")
EXT4_IOC_SHUTDOWN = 0x8004587D
NO_LOG_FLUSH = 2


class StallingDisk:
    """A mounted ext4."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._is_stalled = False

    def stall(self) -> None:
        """Nobody who writes here comes back, until `answer`."""
        _run("fsfreeze", "-f", self.folder)
        self._is_stalled = True

    def answer(self) -> None:
        if self._is_stalled:
            self._is_stalled = False
            _run("fsfreeze", "-u", self.folder)

    def fail(self) -> None:
        """Nothing can be written here, or read that is not in memory, from now on."""
        descriptor = os.open(self.folder, os.O_RDONLY)
        try:
            fcntl.ioctl(descriptor, EXT4_IOC_SHUTDOWN, struct.pack("I", NO_LOG_FLUSH))
        finally:
            os.close(descriptor)


@contextmanager
def stalling_disk(folder: Path, mebibytes: int = 192) -> Iterator[StallingDisk]:
    skip_without_disks()
    image, mounted = folder / "disk.img", folder / "disk"
    mounted.mkdir()
    with open(image, "wb") as file:
        file.truncate(mebibytes << 20)
    _run("mkfs.ext4", "-q", "-O", "^has_journal", image)
    _mount("-o", "loop", image, mounted)
    disk = StallingDisk(mounted)
    try:
        yield disk
    finally:
        disk.answer()
        _run("umount", "-l", mounted)
        image.unlink()


@contextmanager
def small_disk(folder: Path, kibibytes: int) -> Iterator[Path]:
    """A file system that is full after so much."""
    skip_without_disks()
    mounted = folder / "small"
    mounted.mkdir()
    _mount("-t", "tmpfs", "-o", f"size={kibibytes}k", "tmpfs", mounted)
    try:
        yield mounted
    finally:
        _run("umount", "-l", mounted)


def skip_without_disks() -> None:
    missing = [name for name in COMMANDS if shutil.which(name) is None]
    if missing:
        pytest.skip(f"needs {', '.join(missing)}, which is not on this machine")


def _mount(*words: str | Path) -> None:
    ended = subprocess.run(["mount", *words], capture_output=True, text=True, check=False)
    if ended.returncode:
        pytest.skip(f"this machine lets nobody mount a disk: {ended.stderr.strip()}")


def _run(*words: str | Path) -> None:
    subprocess.run(words, check=True, capture_output=True)
