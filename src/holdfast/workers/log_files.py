"""Files that workers' output is appended to.

Rules
- Nothing here raises into the loop: a file that cannot be opened or written is said so once,
  on the console, and whatever else happens to the output goes on.
- Files are appended to, never truncated: a later round of the same attempt adds to them.
"""

from __future__ import annotations

import os
from pathlib import Path

from holdfast.core.config import Output
from holdfast.workers.console import Console
from holdfast.workers.log_layout import FILTERED_FILES


class LogFile:
    """A file that is only appended to, and whose failures end here.

    A failure is said once, on the console. Later blocks are tried all the same: space may
    have been made.
    """

    def __init__(self, path: Path, console: Console) -> None:
        self._path = path
        self._console = console
        self._failure_said = False
        self.descriptor: int | None = None
        self.size_at_open = 0
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self.descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
            self.size_at_open = os.fstat(self.descriptor).st_size
        except OSError as error:
            self._say(error)

    def write(self, data: bytes) -> None:
        if self.descriptor is None:
            return
        view = memoryview(data)
        try:
            while view:
                view = view[os.write(self.descriptor, view) :]
        except OSError as error:
            self._say(error)

    def close(self) -> None:
        if self.descriptor is not None:
            os.close(self.descriptor)
            self.descriptor = None

    def _say(self, error: OSError) -> None:
        if not self._failure_said:
            self._failure_said = True
            text = f"holdfast: cannot write {self._path}: {error.strerror}; output is missing there"
            self._console.write(2, os.fsencode(text) + b"\n")


class FilterFiles:
    """The filtered files of one attempt, shared by all its workers."""

    def __init__(self, files: dict[int, LogFile]) -> None:
        self._files = files

    def append(self, number: int, lines: bytes) -> None:
        """Append whole lines that matched on stdout (1) or stderr (2)."""
        if number in self._files:
            self._files[number].write(lines)

    def close(self) -> None:
        for file in self._files.values():
            file.close()


def open_filter_files(output: Output, attempt: Path | None, console: Console) -> FilterFiles | None:
    """Open the files that the filters ask for in the attempt's directory, if they do."""
    filters = {1: output.stdout_filters, 2: output.stderr_filters}
    wanted = [number for number in filters if filters[number]]
    if attempt is None or not wanted:
        return None
    return FilterFiles(
        {number: LogFile(attempt / FILTERED_FILES[number], console) for number in wanted}
    )
