"""What a `LogsDest` says, for all who start processes by one.

A `LogsDest`, PyTorch's or ours, has the paths of every local rank. The empty path stands for
the stream of the process that starts them, `os.devnull` for nowhere. A stream under `tee_…` is
shown as well as kept; which path stands there does not matter, unless it is `os.devnull`.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Protocol

from holdfast.processes.output.stream_plans import STDERR, STDOUT, StreamDestination


class Destination(Protocol):
    """Paths by local rank, and the two files of filtered lines."""

    stdouts: dict[int, str]
    stderrs: dict[int, str]
    tee_stdouts: dict[int, str]
    tee_stderrs: dict[int, str]
    error_files: dict[int, str]
    filtered_stdout: str
    filtered_stderr: str


def place_in(destination: Destination, local_rank: int, number: int) -> StreamDestination:
    """Where a stream goes; without a file, to the stream of the process that starts it."""
    if number == STDOUT:
        kept, teed = destination.stdouts, destination.tee_stdouts
    else:
        kept, teed = destination.stderrs, destination.tee_stderrs
    path = os.fspath(kept[local_rank])
    if not path:
        return StreamDestination()
    if os.fspath(teed.get(local_rank, os.devnull)) != os.devnull:
        return StreamDestination(Path(path), prefixed=True)
    return StreamDestination(Path(path), direct=True, shown=path != os.devnull)


def kept_files(destination: Destination) -> list[str]:
    """The files that streams go to."""
    paths = (*destination.stdouts.values(), *destination.stderrs.values())
    return [path for path in map(os.fspath, paths) if path and path != os.devnull]


def filtered_files(destination: Destination, wanted: Iterable[int]) -> dict[int, str]:
    """Where lines of stdout (1) and stderr (2) that match are copied to, if anywhere."""
    named = {STDOUT: destination.filtered_stdout, STDERR: destination.filtered_stderr}
    paths = {number: os.fspath(named[number]) for number in wanted}
    return {
        number: path
        for number, path in paths.items()
        if path and os.devnull not in (path, os.path.dirname(path))
    }
