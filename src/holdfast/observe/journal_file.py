"""The files of a journal: bounded in size, without ever losing the beginning.

    journal.jsonl       the first line, and the beginning of the job
    journal.2.jsonl     what followed; journal.3.jsonl, …: of these only the last two are kept

Rules
1. All files of a journal together hold at most `limit_bytes`: the first one half of it, each of
   the others a quarter. Every file begins with the line that describes the job.
2. A line is in one file, whole. A failed write ends the journal there: the earlier lines can be
   read.
3. `append` and `close` may wait for a disk: a loop calls them in a thread.
"""

from __future__ import annotations

import os
from pathlib import Path

LIMIT_BYTES = 256 << 20
LATER_PARTS_KEPT = 2


def part(path: Path, number: int) -> Path:
    """The file of a later part, from 2 on."""
    return path.with_name(f"{path.stem}.{number}{path.suffix}")


def later_parts(path: Path) -> list[Path]:
    """The later parts that are there, in order."""
    prefix, suffix = f"{path.stem}.", path.suffix
    numbers = [
        int(number)
        for name in os.listdir(path.parent)
        if name.startswith(prefix) and name.endswith(suffix)
        and (number := name[len(prefix) : -len(suffix)]).isdecimal()
    ]  # fmt: skip
    return [part(path, number) for number in sorted(numbers)]


class JournalFile:
    """A journal on the disk, to be appended to. Raises OSError where it cannot be begun."""

    def __init__(self, path: Path, limit_bytes: int = LIMIT_BYTES) -> None:
        self._path = path
        self._limit_bytes = limit_bytes
        self._first_line = b""
        self._number = 1
        self._size = 0
        self._descriptor = _open(path)

    def append(self, line: bytes) -> str | None:
        """Write a line; the problem in words, if there is one, which ends the journal."""
        if self._descriptor < 0:
            return None
        try:
            if not self._first_line:
                self._first_line = line
            elif self._size + len(line) > self._limit_bytes // (2 if self._number == 1 else 4):
                self._begin_next_part()
            if os.write(self._descriptor, line) == len(line):
                self._size += len(line)
                return None
            problem = "the disk is full"
        except OSError as error:
            problem = error.strerror or str(error)
        self.close()
        return problem

    def _begin_next_part(self) -> None:
        self.close()
        self._number += 1
        self._descriptor = _open(part(self._path, self._number))
        too_old = self._number - LATER_PARTS_KEPT
        if too_old > 1:
            part(self._path, too_old).unlink(missing_ok=True)
        self._size = os.write(self._descriptor, self._first_line)

    def close(self) -> None:
        if self._descriptor >= 0:
            descriptor, self._descriptor = self._descriptor, -1
            os.close(descriptor)


def _open(path: Path) -> int:
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
