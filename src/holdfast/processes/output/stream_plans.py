"""What happens to each stream of each worker, decided before anything is opened. Pure.

Where a stream goes is its `StreamDestination`: worked out from the options, or from what a
`LogsDest` says. A `StreamPlan` adds how its lines look, and is all that `output` needs to know.

A `Layout` is the one seam between a job and its log files: chosen when the job starts and asked at
the start of every round, it answers with the `RoundLogs` of all workers of this node. That is
`layout_by_options`, or what a user has registered (`registered_logs`).

A `LogsDest`, PyTorch's or ours, has the paths of every local rank. The empty path stands for
the stream of the process that starts them, `os.devnull` for nowhere. A stream under `tee_…` is
shown as well as kept; which path stands there does not matter, unless it is `os.devnull`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Protocol

from msgspec import Struct

from holdfast.core.policy.config import Output
from holdfast.core.protocol.errors import HoldfastError
from holdfast.processes.output.run_folders import FILTERED_FILES, STREAM_FILES, JobLogs

STDOUT, STDERR = 1, 2
PIPE_BYTES_MAX = 1024 * 1024
PIPE_BYTES_DEFAULT = 64 * 1024

_PIPE_BYTES_ALL_WORKERS = 16 * 1024 * 1024
"""The memory of all pipes of one node. The kernel counts pipes by user: a user that exceeds the
allowance (64 MiB) gets tiny pipes from then on, in all programs."""
_DEFAULT_PREFIX = "[${role_name}${local_rank}]:"


class WorkerIdentity(Struct, frozen=True):
    """The worker that writes: all that a prefix can name, except for the process id."""

    local_rank: int
    rank: int
    role: str
    slots: int


class StreamDestination(Struct, frozen=True):
    """Where one stream of one worker goes."""

    file: Path | None = None
    direct: bool = False
    """The worker writes into the file itself; the console is for when it cannot be opened."""
    shown: bool = True
    """On the console."""
    prefixed: bool = False


class StreamPlan(Struct, frozen=True):
    """What happens to one stream of one worker."""

    number: int
    """1 for stdout, 2 for stderr, of the worker and of the console alike."""
    file: Path | None
    direct: bool
    """The worker writes into the file itself."""
    to_console: bool
    prefix_template: str
    prefix_on_console: bool
    pass_through: bool
    """Bytes are shown as they come: there is nobody else whose lines they could mix with."""
    filters: tuple[bytes, ...]
    pipe_bytes: int
    identity: WorkerIdentity

    def prefix(self, pid: str) -> bytes:
        """The template with its names replaced; names that we do not know stay as they are."""
        if not self.prefix_on_console and not self.filters:
            return b""  # Most jobs have none, and do not wait for the import.
        from string import Template

        names = {
            "role_name": self.identity.role,
            "local_rank": self.identity.local_rank,
            "rank": self.identity.rank,
            "hostname": os.uname().nodename,
            "pid": pid,
        }
        return os.fsencode(Template(self.prefix_template).safe_substitute(names))


def place_by_options(
    output: Output, directory: Path | None, local_rank: int, number: int
) -> StreamDestination:
    """Where the options say that a stream goes; `directory` is the worker's."""
    tee = bool(output.teed(local_rank) & number)
    redirect = bool(output.redirected(local_rank) & number)
    return StreamDestination(
        file=directory / STREAM_FILES[number] if directory and (tee or redirect) else None,
        direct=redirect and not tee and directory is not None,
        shown=not output.local_ranks_filter or local_rank in output.local_ranks_filter,
        prefixed=tee,
    )


def plan_stream(
    place: StreamDestination, output: Output, identity: WorkerIdentity, number: int
) -> StreamPlan:
    """The plan of a stream that goes to this place."""
    return StreamPlan(
        number=number,
        file=place.file,
        direct=place.direct,
        to_console=place.shown,
        prefix_template=output.prefix_template or _DEFAULT_PREFIX,
        prefix_on_console=place.prefixed,
        pass_through=identity.slots == 1 and not place.prefixed,
        filters=tuple(map(os.fsencode, filters_of(output, number))) if place.shown else (),
        pipe_bytes=pipe_bytes(identity.slots),
        identity=identity,
    )


def filters_of(output: Output, number: int) -> tuple[str, ...]:
    """What a line of this stream must contain to be copied to the filtered file."""
    return output.stdout_filters if number == STDOUT else output.stderr_filters


def pipe_bytes(slots: int) -> int:
    """The size of each pipe: a power of two, as the kernel would round it."""
    share = min(PIPE_BYTES_MAX, _PIPE_BYTES_ALL_WORKERS // (2 * slots))
    return max(PIPE_BYTES_DEFAULT, 1 << (share.bit_length() - 1))


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


Environments = dict[int, dict[str, str]]
"""The variables of the workers of a round, by local rank."""


class LogsRefused(HoldfastError):
    """There is no telling where the workers of a round would write."""

    def __init__(self, message: str, traceback: str = "", *, is_permanent: bool = False) -> None:
        super().__init__(message)
        self.message = message
        self.traceback = traceback
        self.is_permanent = is_permanent
        """Whether asking again is no use."""


class RoundLogs(Struct, frozen=True):
    """The places of one round on this node."""

    places: dict[int, dict[int, StreamDestination]]
    """By local rank: where stdout (1) and stderr (2) of a worker go."""
    error_files: dict[int, Path | None]
    """By local rank: where a worker leaves its exception."""
    filtered: dict[int, Path]
    """By stream: the file for lines that match a filter, if there is one."""


Layout = Callable[[JobLogs, int, Environments], RoundLogs]
"""Decides for each round anew: takes the restart count, and the variables of the round's workers,
which it may change. Raises `LogsRefused` where there are no places."""


def layout_by_options(
    output: Output, logs: JobLogs, restart_count: int, environments: Environments
) -> RoundLogs:
    """As the options say."""
    attempt = logs.attempt(restart_count)
    filtered = {n: attempt / FILTERED_FILES[n] for n in filtered_streams(output)} if attempt else {}
    return RoundLogs(
        places={
            rank: _places(output, logs.worker(restart_count, rank), rank) for rank in environments
        },
        error_files={rank: logs.error_file(restart_count, rank) for rank in environments},
        filtered=filtered,
    )


def _places(
    output: Output, directory: Path | None, local_rank: int
) -> dict[int, StreamDestination]:
    return {n: place_by_options(output, directory, local_rank, n) for n in (STDOUT, STDERR)}


def filtered_streams(output: Output) -> list[int]:
    """The streams of which some lines are wanted in a file of their own."""
    return [number for number in (STDOUT, STDERR) if filters_of(output, number)]
