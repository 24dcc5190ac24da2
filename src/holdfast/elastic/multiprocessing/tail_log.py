"""Show what is written to files, line by line, while it is written.

Rules
1. Lines are whole: one that is written in pieces is shown when it ends, or when the tail stops.
   One without an end is shown in pieces of `LONGEST_LINE`.
2. After `stop`, all that stood in the files when it was called has been shown.
3. The files are looked at every `interval_sec`. Nothing but what is shown depends on it.
4. What goes wrong with one file, or with showing its lines, is logged by `stop`; the other files
   are followed on.

One thread follows all files. Workers of `start_processes` need no tail: their output is shown as
they write it, and the files get a copy.
"""

from __future__ import annotations

import atexit
import codecs
import io
import locale
import logging
import os
import threading
from collections.abc import Callable, Mapping
from typing import TextIO

__all__ = ["TailLog", "tail_logfile"]

LONGEST_LINE = 1 << 16
SHORTEST_INTERVAL_S = 0.001
_READ_BYTES = 1 << 16

logger = logging.getLogger(__name__)

Filter = Callable[[str], bool]


def _everything(line: str) -> bool:
    """The filter unless one is given."""
    return True


def tail_logfile(
    header: str,
    file: str,
    dst: TextIO,
    finished: threading.Event,
    interval_sec: float,
    log_line_filter: Filter | None = None,
) -> None:
    """Show the lines of one file until `finished` is set, looking every `interval_sec`."""
    followed = _Followed(file, header, dst, log_line_filter or _everything)
    try:
        while not finished.wait(interval_sec):
            followed.show_what_is_there()
        followed.show_the_rest()
    finally:
        followed.close()


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
        log_line_filter: Filter | None = _everything,
    ) -> None:
        self._name = name
        prefixes, shown = log_line_prefixes or {}, log_line_filter or _everything
        self._followed = {
            key: _Followed(file, prefixes.get(key, f"[{name}{key}]:"), dst, shown)
            for key, file in log_files.items()
            if dst is not None
        }
        self._interval_s = max(interval_sec, SHORTEST_INTERVAL_S)
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
            label = f"{type(self).__qualname__}_{self._name}"
            self._thread = threading.Thread(target=self._follow, name=label, daemon=True)
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
            for key, problem in self._problems.items():
                logger.exception("the end of %s%s is not shown", self._name, key, exc_info=problem)
        self._stopped = True

    def stopped(self) -> bool:
        """Whether `stop` was called, and is through."""
        return self._stopped

    def _follow(self) -> None:
        try:
            while not self._ending.wait(self._interval_s):
                self._for_each(_Followed.show_what_is_there)
            self._for_each(_Followed.show_the_rest)
        finally:
            for followed in self._followed.values():
                followed.close()

    def _for_each(self, show: Callable[[_Followed], None]) -> None:
        for key in sorted(self._followed.keys() - self._problems.keys()):
            try:
                show(self._followed[key])
            except Exception as error:  # noqa: BLE001 - destination and filter are the user's own
                self._problems[key] = error


class _Followed:
    """One file, and how far its lines have been shown."""

    def __init__(self, path: str, header: str, dst: TextIO, shown: Filter) -> None:
        self._path, self._header, self._dst, self._shown = path, header, dst, shown
        self._descriptor = -1
        decoder = codecs.getincrementaldecoder(locale.getencoding())("replace")
        self._decoder = io.IncrementalNewlineDecoder(decoder, translate=True)
        self._position = 0
        self._pieces: list[str] = []
        """Of the line that has not ended."""
        self._length = 0

    def _is_open(self) -> bool:
        """Whether the file is there. Raises OSError where it cannot be opened."""
        if self._descriptor < 0:
            try:
                self._descriptor = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
            except (FileNotFoundError, NotADirectoryError):
                return False
        return True

    def show_what_is_there(self) -> None:
        """Show whole lines, up to where the file ends now: a fast writer does not keep us."""
        if not self._is_open():
            return
        end = os.fstat(self._descriptor).st_size
        while True:
            try:
                block = os.read(self._descriptor, _READ_BYTES)
            except BlockingIOError:  # It is a pipe.
                return
            self._position += len(block)
            self._take(self._decoder.decode(block))
            if not block or self._position >= end:
                return

    def show_the_rest(self) -> None:
        """Show all that is there, and a last line that has not ended."""
        self.show_what_is_there()
        self._take(self._decoder.decode(b"", final=True))
        self._show("")

    def _take(self, text: str) -> None:
        *ended, rest = text.split("\n")
        for line in ended:
            self._show(line + "\n")
        if rest:
            self._pieces.append(rest)
            self._length += len(rest)
            if self._length >= LONGEST_LINE:
                self._show("")

    def _show(self, ending: str) -> None:
        line = "".join((*self._pieces, ending))
        self._pieces.clear()
        self._length = 0
        if line and self._shown(line):
            self._dst.write(f"{self._header}{line}")

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
