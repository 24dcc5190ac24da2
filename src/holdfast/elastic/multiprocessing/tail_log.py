"""Show what is written to files, line by line, while it is written.

Rules
1. Lines are whole: one that is written in pieces is shown when it ends, or when the tail stops.
   One without an end is shown in pieces of `LONGEST_LINE`.
2. After `stop`, all that stood in the files when it was called has been shown.
3. Nothing polls where the kernel tells of changes (`file_news`); elsewhere the files are looked
   at every `interval_sec`.
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

from holdfast.runtime.file_news import OVERFLOW, FileNews

__all__ = ["TailLog", "tail_logfile"]

LONGEST_LINE = 1 << 16
SHORTEST_INTERVAL_S = 0.001
_READ_BYTES = 1 << 16

logger = logging.getLogger(__name__)

Filter = Callable[[str], bool]


def _everything(line: str) -> bool:
    """What is shown unless a filter is given."""
    return True


def tail_logfile(
    header: str,
    file: str,
    dst: TextIO,
    finished: threading.Event,
    interval_sec: float,
    log_line_filter: Filter | None = None,
) -> None:
    """Show the lines of one file until `finished` is set, looking every `interval_sec`.

    An event can be waited for, but not together with a file: `TailLog` need not look.
    """
    followed = _Followed(file, header, dst, log_line_filter or _everything)
    try:
        while not finished.wait(interval_sec):
            if followed.is_open():
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
        self._following: _Following | None = None
        self._thread: threading.Thread | None = None
        self._stopped = False

    def start(self) -> TailLog:
        """Begin, in a thread; nothing where there are no files or nothing to write to."""
        if self._stopped:
            raise RuntimeError("a TailLog that was stopped cannot be started again")
        if self._thread is None and self._followed:
            self._following = _Following(self._followed, self._interval_s)
            label = f"{type(self).__qualname__}_{self._name}"
            self._thread = threading.Thread(target=self._following.run, name=label, daemon=True)
            self._thread.start()
            atexit.register(self.stop)
        return self

    def stop(self) -> None:
        """Show what stands in the files by now, and end. Raises nothing."""
        if os.getpid() != self._process:
            return  # A fork has no thread to stop, and the files are its parent's to show.
        if self._following is not None and self._thread is not None:
            atexit.unregister(self.stop)
            self._following.ring()
            self._thread.join()
            problems, self._following, self._thread = self._following.problems, None, None
            for key, problem in problems.items():
                logger.exception("the end of %s%s is not shown", self._name, key, exc_info=problem)
        self._stopped = True

    def stopped(self) -> bool:
        """Whether `stop` was called, and is through."""
        return self._stopped


class _Following:
    """What the thread of a tail does, until its bell is rung."""

    def __init__(self, followed: Mapping[int, _Followed], interval_s: float) -> None:
        self._followed, self._interval_s = followed, interval_s
        self._bell = os.eventfd(0, os.EFD_CLOEXEC)
        self._news = FileNews(self._bell)
        self._marks: dict[int, int] = {}
        """By which news of a file come, or of the folder where it is to appear."""
        self._heard: set[int] = set()
        """Files that are open, and of which news come."""
        self.problems: dict[int, Exception] = {}

    def ring(self) -> None:
        os.eventfd_write(self._bell, 1)

    def run(self) -> None:
        try:
            due: set[int] | None = set(self._followed)
            while due is not None:
                self._for_each(due, self._look)
                due = self._wait()
            self._for_each(set(self._followed), lambda key: self._followed[key].show_the_rest())
        finally:
            self._news.close()
            os.close(self._bell)
            for followed in self._followed.values():
                followed.close()

    def _for_each(self, keys: set[int], do: Callable[[int], None]) -> None:
        for key in sorted(keys - self.problems.keys()):
            try:
                do(key)
            except Exception as error:  # noqa: BLE001 - destination and filter are the user's own
                self.problems[key] = error
                self._listen_to(key, None)

    def _look(self, key: int) -> None:
        followed = self._followed[key]
        if not followed.is_open():
            self._listen_to(key, self._news.watch_for(followed.path))
            if not followed.is_open():  # It may have come before the watch.
                return
        if key not in self._heard:
            mark = self._news.watch_file(followed.descriptor)
            self._listen_to(key, mark)
            if mark is not None:
                self._heard.add(key)
        followed.show_what_is_there()

    def _listen_to(self, key: int, mark: int | None) -> None:
        """Have the news under this mark, and no others, be those of a file."""
        old = self._marks.pop(key, None)
        if mark is not None:
            self._marks[key] = mark
        if old is not None and old not in self._marks.values():
            self._news.forget(old)

    def _wait(self) -> set[int] | None:
        """The files to look at next; None when the bell rang."""
        unheard = self._followed.keys() - self._marks.keys() - self.problems.keys()
        marks = self._news.wait(self._interval_s if unheard else None)
        if marks is None:
            return None
        if not marks or OVERFLOW in marks:
            return set(self._followed)
        return {key for key, mark in self._marks.items() if mark in marks} | unheard


class _Followed:
    """One file, and how far its lines have been shown."""

    def __init__(self, path: str, header: str, dst: TextIO, shown: Filter) -> None:
        self.path, self._header, self._dst, self._shown = path, header, dst, shown
        self.descriptor = -1
        decoder = codecs.getincrementaldecoder(locale.getencoding())("replace")
        self._decoder = io.IncrementalNewlineDecoder(decoder, translate=True)
        self._position = 0
        self._pieces: list[str] = []
        """Of the line that has not ended."""
        self._length = 0

    def is_open(self) -> bool:
        """Whether the file is there. Raises OSError where it cannot be opened."""
        if self.descriptor < 0:
            try:
                self.descriptor = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
            except (FileNotFoundError, NotADirectoryError):
                return False
        return True

    def show_what_is_there(self) -> None:
        """Show whole lines, up to where the file ends now: a fast writer does not keep us."""
        end = os.fstat(self.descriptor).st_size
        while True:
            try:
                block = os.read(self.descriptor, _READ_BYTES)
            except BlockingIOError:  # It is a pipe.
                return
            self._position += len(block)
            self._take(self._decoder.decode(block))
            if not block or self._position >= end:
                return

    def show_the_rest(self) -> None:
        """Show all that is there, and a last line that has not ended."""
        if self.is_open():
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
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1
