"""Show what is written to files, line by line, while it is written.

Rules
1. Lines are whole: one that is written in pieces is shown when it ends, or when the tail stops.
   One without an end is shown in pieces of `LONGEST_LINE`.
2. After `stop`, everything that was in the files when it was called has been shown.
3. Errors of one file, or of showing its lines, are logged by `stop`; the other files are followed
   on.

One thread reads all files every `interval_sec`. Workers of `start_processes` need no tail: their
output is shown as they write it, and the files get a copy.
"""

from __future__ import annotations

import atexit
import locale
import logging
import os
import threading
from collections.abc import Callable, Mapping
from io import FileIO
from typing import TextIO

__all__ = ["TailLog", "tail_logfile"]

LONGEST_LINE = 1 << 16
SHORTEST_INTERVAL_S = 0.001

logger = logging.getLogger(__name__)

Filter = Callable[[str], bool]


def tail_logfile(
    header: str,
    file: str,
    dst: TextIO,
    finished: threading.Event,
    interval_sec: float,
    log_line_filter: Filter | None = None,
) -> None:
    """Show the lines of one file until `finished` is set, looking every `interval_sec`."""
    problems = _follow([_Followed(file, header, dst, log_line_filter)], finished, interval_sec)
    if problems:
        raise problems[0]


class TailLog:
    """Shows the lines of several files, each after `[<name><key>]:` or the prefix of its key.

    The files need not be there yet. A tail is started once, and ends with `stop` or with the
    process.
    """

    def __init__(
        self,
        name: str,
        log_files: Mapping[int, str],
        dst: TextIO | None,
        log_line_prefixes: Mapping[int, str] | None = None,
        interval_sec: float = 0.1,
        log_line_filter: Filter | None = None,
    ) -> None:
        self._name = name
        self._keys = sorted(log_files) if dst is not None else []
        prefixes = log_line_prefixes or {}
        self._followed = [
            _Followed(log_files[key], prefixes.get(key, f"[{name}{key}]:"), dst, log_line_filter)
            for key in self._keys
            if dst is not None
        ]
        self._interval_s = interval_sec
        self._process = os.getpid()
        self._thread: threading.Thread | None = None
        self._ending = threading.Event()
        self._problems: dict[int, Exception] = {}
        self._stopped = False

    def start(self) -> TailLog:
        """Begin, in a thread; nothing where there are no files or nothing to write to."""
        if self._stopped:
            raise RuntimeError("a TailLog that was stopped cannot be started again")
        if self._thread is None and self._followed:
            self._thread = threading.Thread(target=self._run, name="TailLog", daemon=True)
            self._thread.start()
            atexit.register(self.stop)
        return self

    def stop(self) -> None:
        """Show what stands in the files by now, and end. Raises nothing."""
        if os.getpid() != self._process:
            return  # A fork has no thread to stop, and the files are its parent's to show.
        if self._thread is not None:
            atexit.unregister(self.stop)
            self._ending.set()
            self._thread.join()
            self._thread = None
            for number, problem in self._problems.items():
                which = f"{self._name}{self._keys[number]}"
                logger.exception("the end of %s is not shown", which, exc_info=problem)
        self._stopped = True

    def stopped(self) -> bool:
        """Whether `stop` was called, and is through."""
        return self._stopped

    def _run(self) -> None:
        self._problems = _follow(self._followed, self._ending, self._interval_s)


class _Followed:
    """One file, and how far its lines have been shown."""

    def __init__(self, path: str, header: str, dst: TextIO, shown: Filter | None) -> None:
        self._path, self._header, self._dst, self._shown = path, header, dst, shown
        self._encoding = locale.getencoding()
        self._file: FileIO | None = None
        self._rest = b""
        """Of the line that has not ended."""

    def show(self) -> None:
        """Show whole lines, up to where the file ends now: a fast writer does not keep us."""
        if self._file is None:
            try:
                self._file = FileIO(self._path)
            except (FileNotFoundError, NotADirectoryError):
                return
        left = os.fstat(self._file.fileno()).st_size - self._file.tell()
        while left > 0 and (block := self._file.read(min(left, LONGEST_LINE))):
            left -= len(block)
            *lines, last = (self._rest + block).splitlines(keepends=True)
            # Behind a carriage return the rest of the line's end may follow.
            is_whole = last.endswith(b"\n") or len(last) >= LONGEST_LINE
            self._rest = b"" if is_whole else last
            for line in (*lines, last) if is_whole else lines:
                self._show(line)

    def finish(self) -> None:
        """Show all that is there, and a last line that has not ended."""
        self.show()
        if self._rest:
            self._show(self._rest)

    def _show(self, line: bytes) -> None:
        text = line.decode(self._encoding, "replace").replace("\r\n", "\n").replace("\r", "\n")
        if self._shown is None or self._shown(text):
            self._dst.write(f"{self._header}{text}")

    def close(self) -> None:
        if self._file is not None:
            self._file.close()


def _follow(
    files: list[_Followed], finished: threading.Event, interval_s: float
) -> dict[int, Exception]:
    """Show what comes until `finished` is set; what went wrong, by the number of the file."""
    problems: dict[int, Exception] = {}

    def for_each(show: Callable[[_Followed], None]) -> None:
        for number, file in enumerate(files):
            if number not in problems:
                try:
                    show(file)
                except Exception as error:  # noqa: BLE001 - destination and filter are the user's
                    problems[number] = error

    while not finished.wait(max(interval_s, SHORTEST_INTERVAL_S)):
        for_each(_Followed.show)
    for_each(_Followed.finish)
    for file in files:
        file.close()
    return problems
