"""Show what is written to files, line by line, while it is written.

Rules
1. Lines are whole: one that is written in pieces is shown when it ends, or when the tail stops.
   One without an end is shown in pieces of `LONGEST_LINE`.
2. After `stop`, everything that was in the files when it was called has been shown.
3. An error of one file, or of showing its lines, is logged and ends the tail of that file only.

Workers of `start_processes` need no tail: their output is shown as they write it, and the files get
a copy.
"""

from __future__ import annotations

import atexit
import locale
import logging
import os
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import TextIO

__all__ = ["TailLog", "tail_logfile"]

LONGEST_LINE = 1 << 16
SHORTEST_INTERVAL_S = 0.001

logger = logging.getLogger(__name__)


def tail_logfile(
    header: str,
    file: str,
    dst: TextIO,
    finished: threading.Event,
    interval_sec: float,
    log_line_filter: Callable[[str], bool] | None = None,
) -> None:
    """Show the lines of one file until `finished` is set, looking every `interval_sec`."""

    def show(line: bytes) -> None:
        text = (
            line.decode(locale.getencoding(), "replace").replace("\r\n", "\n").replace("\r", "\n")
        )
        if log_line_filter is None or log_line_filter(text):
            dst.write(f"{header}{text}")

    position, rest, is_over = 0, b"", False
    while not is_over:
        is_over = finished.wait(max(interval_sec, SHORTEST_INTERVAL_S))
        for block in _blocks(file, position):
            position += len(block)
            *lines, rest = (rest + block).splitlines(keepends=True)
            # Behind a carriage return the rest of the line's end may follow.
            if rest.endswith(b"\n") or len(rest) >= LONGEST_LINE:
                lines.append(rest)
                rest = b""
            for line in lines:
                show(line)
    if rest:
        show(rest)


def _blocks(file: str, position: int) -> Iterator[bytes]:
    """The content behind a position, up to where the file ends now: a fast writer keeps nobody."""
    try:
        with open(file, "rb") as opened:
            left = os.fstat(opened.fileno()).st_size - position
            opened.seek(position)
            while left > 0 and (block := opened.read(min(left, LONGEST_LINE))):
                left -= len(block)
                yield block
    except (FileNotFoundError, NotADirectoryError):
        return  # It may come later.


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
        log_line_filter: Callable[[str], bool] | None = None,
    ) -> None:
        self._name = name
        self._log_files, self._dst, self._filter = log_files, dst, log_line_filter
        self._prefixes = log_line_prefixes or {}
        self._interval_s = interval_sec
        self._process = os.getpid()
        self._threads: list[threading.Thread] = []
        self._ending = threading.Event()

    def start(self) -> TailLog:
        """Begin, in a thread for each file; nothing where there is nothing to write to."""
        if self.stopped():
            raise RuntimeError("a TailLog that was stopped cannot be started again")
        if not self._threads and self._dst is not None:
            for key in self._log_files:
                name = f"TailLog_{self._name}{key}"
                thread = threading.Thread(target=self._tail, args=(key,), name=name, daemon=True)
                self._threads.append(thread)
                thread.start()
            atexit.register(self.stop)
        return self

    def _tail(self, key: int) -> None:
        header = self._prefixes.get(key, f"[{self._name}{key}]:")
        file, dst = self._log_files[key], self._dst
        assert dst is not None, "a tail without a destination has no threads"
        try:
            tail_logfile(header, file, dst, self._ending, self._interval_s, self._filter)
        except Exception:
            logger.exception("the end of %s%s is not shown", self._name, key)

    def stop(self) -> None:
        """Show what stands in the files by now, and end. Raises nothing."""
        if os.getpid() != self._process:
            return  # A fork has no threads to stop, and the files are its parent's to show.
        self._ending.set()
        for thread in self._threads:
            thread.join()
        atexit.unregister(self.stop)

    def stopped(self) -> bool:
        """Whether `stop` was called."""
        return self._ending.is_set()
