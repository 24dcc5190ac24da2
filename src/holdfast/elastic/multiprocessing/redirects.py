"""Send stdout or stderr of this very process to a file, for the length of a block.

The descriptor itself is turned, so that what C code and child processes write goes along. What
was written before and is still held in a buffer, of Python's or of C's, goes where it was meant
to go. Processes that `multiprocessing.start_processes` starts need none of this: they have their
streams from their beginning.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import TextIO

__all__ = ["redirect", "redirect_stderr", "redirect_stdout"]

STREAMS = ("stdout", "stderr")


@contextmanager
def redirect(std: str, to_file: str) -> Iterator[None]:
    """Let `std`, "stdout" or "stderr", be written to a file, which starts empty.

    Raises ValueError for another name, OSError for a file that cannot be opened or a stream
    without a descriptor; then nothing has changed.
    """
    if std not in STREAMS:
        raise ValueError(f"there is no stream {std!r} to redirect; there are stdout and stderr")
    stream: TextIO = getattr(sys, std)
    number = stream.fileno()
    kept = os.dup(number)
    try:
        file = os.open(to_file, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o666)
        try:
            _flush(stream)
            _turn(number, file)
        finally:
            os.close(file)
        try:
            yield
        finally:
            try:
                _flush(stream)
            finally:  # Also where the disk is full: what follows is for the old place.
                _turn(number, kept)
    finally:
        os.close(kept)


redirect_stdout = partial(redirect, "stdout")
redirect_stderr = partial(redirect, "stderr")


def _flush(stream: TextIO) -> None:
    import ctypes

    ctypes.CDLL(None).fflush(None)
    stream.flush()


def _turn(number: int, target: int) -> None:
    os.dup2(target, number, inheritable=os.get_inheritable(number))
