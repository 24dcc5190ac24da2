"""The embedded register: the record that the coordinator's host keeps on its own disk.

Rules
- One small file per job, replaced as a whole. It is not forced onto the disk: it has to survive
  the death of the process, and after a crash of the machine the nodes' own memory stands for
  it (`core.coordinator`), so no recovery waits for a disk.
- A record that was not touched for longer than nodes wait for their coordinator is of a job
  that is over: nobody can be left who remembers it.
- It is removed when the job is over.
- Its folder is this user's alone (`private_folder`), which is looked at with every use. A folder
  that was named and is not so is refused. Where the usual one is not, somebody else was there
  first: the job goes on without a record, and says so.
- What is in the file is believed only if Holdfast can have written it (`core.protocol.document`).
"""

from __future__ import annotations

import contextlib
import os
import stat
import time
from pathlib import Path
from urllib.parse import quote

import msgspec

from holdfast.core.protocol.document import READ_BYTES, Document, decode, decoder, encode
from holdfast.core.protocol.errors import UsageError
from holdfast.registers import sentences
from holdfast.runtime.private_folder import (
    NotPrivate,
    own_folder,
    private_folder,
    read_file,
    write_file,
)

KEPT_S = 24 * 3600.0
CLOSED_FOR_S = 60.0
"""How long the outcome counts of a job whose host was killed before everybody knew it: the next job
of that name is not to be taken for it."""
HINT = "--snapshot-dir names another folder"
_ENDING = ".record.json"
_NAME_MOST = 150
decoder()  # Records are read in a thread.


def _sweep(folder: int) -> None:
    """Remove what jobs left whose host was killed and never came back."""
    for name in os.listdir(folder):
        if _ENDING not in name:
            continue  # The folder may hold what is not ours to remove.
        with contextlib.suppress(OSError):
            found = os.stat(name, dir_fd=folder, follow_symlinks=False)
            if stat.S_ISREG(found.st_mode) and time.time() - found.st_mtime > KEPT_S:
                os.unlink(name, dir_fd=folder)


def _file_name(job: str) -> str:
    """A name that no other job has, and that every file system takes."""
    name = quote(job, safe="")
    if len(name) > _NAME_MOST:
        from hashlib import sha256

        name = f"{name[:_NAME_MOST]}.{sha256(job.encode()).hexdigest()[:32]}"
    return name + _ENDING


class JobRecord:
    """The record of one job, which only its coordinator's host writes."""

    def __init__(self, folder: Path, job: str) -> None:
        self.path = folder / _file_name(job)
        self.problem = ""
        """Why the last write failed, if it did."""
        self.unbelieved = ""
        """Why what was found does not count, where something was."""
        try:
            with private_folder(folder) as opened:
                _sweep(opened)
        except OSError as error:
            if folder != own_folder():
                words = sentences.not_kept(folder, error.strerror)
                ours = f"chmod go-w {folder}, or " if isinstance(error, NotPrivate) else ""
                raise UsageError(words, ours + HINT) from None

    def read(self, valid_for_s: float) -> Document | None:
        """The document of an earlier coordinator of this job, unless it is too old to matter."""
        self.unbelieved = ""
        try:
            with private_folder(self.path.parent) as folder:
                content, found = read_file(folder, self.path.name, READ_BYTES)
            document = decode(content)
            if document.ledger.outcome is not None:
                valid_for_s = min(valid_for_s, CLOSED_FOR_S)
            return document if time.time() - found.st_mtime <= valid_for_s else None
        except NotPrivate as error:
            self.unbelieved = sentences.not_believed(self.path, error.strerror)
        except OSError:
            pass  # There is none.
        except msgspec.DecodeError:
            self.unbelieved = sentences.foreign(self.path)
        return None

    def write(self, document: Document) -> None:
        """Replace the record. A disk that cannot be written is told, and stops nothing."""
        try:
            with private_folder(self.path.parent) as folder:
                write_file(folder, self.path.name, encode(document))
            self.problem = ""
        except OSError as error:
            self.problem = f"{self.path} cannot be written: {error.strerror} ({HINT})"

    def touch(self) -> None:
        """The job is still alive."""
        with contextlib.suppress(OSError), private_folder(self.path.parent) as folder:
            os.utime(self.path.name, dir_fd=folder, follow_symlinks=False)

    def remove(self) -> None:
        with contextlib.suppress(OSError), private_folder(self.path.parent) as folder:
            os.unlink(self.path.name, dir_fd=folder)
