"""The embedded register: the record that the coordinator's host keeps on its own disk.

Rules
- One small file per job, replaced as a whole. It is not forced onto the disk: it has to survive
  the death of the process, and after a crash of the machine the nodes' own memory stands for
  it (`core.coordinator`), so no recovery waits for a disk.
- A record that was not touched for longer than nodes wait for their coordinator is of a job
  that is over: nobody can be left who remembers it.
- It is removed when the job is over.
"""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path
from urllib.parse import quote

import msgspec

from holdfast.core.document import Document, decode, encode
from holdfast.core.errors import UsageError

KEPT_S = 24 * 3600.0


def default_folder() -> Path:
    """A folder that outlives a reboot, and that nobody else can write to."""
    return Path("/var/tmp") / f"holdfast-{os.getuid()}"


def _sweep(folder: Path) -> None:
    """Remove what jobs left whose host was killed and never came back."""
    for path in folder.glob("*.json*"):
        with contextlib.suppress(OSError):
            if time.time() - path.stat().st_mtime > KEPT_S:
                path.unlink()


class Record:
    """The record of one job, which only its coordinator's host writes."""

    def __init__(self, folder: Path, job: str) -> None:
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise UsageError(
                f"the coordinator's record cannot be kept in {folder}: {error.strerror}",
                "--snapshot-dir names another folder",
            ) from None
        _sweep(folder)
        self.path = folder / f"{quote(job, safe='')[:200]}.json"
        self.problem = ""

    def read(self, valid_for_s: float) -> Document | None:
        """What an earlier coordinator of this job left, unless it is too old to matter."""
        try:
            age_s = time.time() - self.path.stat().st_mtime
            content = self.path.read_bytes()
        except OSError:
            return None
        if age_s > valid_for_s:
            return None
        try:
            return decode(content)
        except msgspec.DecodeError:
            return None

    def write(self, document: Document) -> None:
        """Replace the record. A disk that cannot be written is told, and stops nothing."""
        fresh = self.path.with_name(f"{self.path.name}.{os.getpid()}")
        try:
            fresh.touch(mode=0o600)
            fresh.write_bytes(encode(document))
            os.replace(fresh, self.path)
            self.problem = ""
        except OSError as error:
            self.problem = f"{self.path} cannot be written: {error.strerror}"
            with contextlib.suppress(OSError):
                fresh.unlink(missing_ok=True)

    def touch(self) -> None:
        """The job is still alive."""
        with contextlib.suppress(OSError):
            os.utime(self.path)

    def remove(self) -> None:
        with contextlib.suppress(OSError):
            self.path.unlink(missing_ok=True)
