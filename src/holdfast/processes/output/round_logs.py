"""Where the workers of a round write: the one seam between a job and its log files.

A `Layout` is chosen when the job starts and asked at the start of every round; what it
answers, the `RoundLogs`, holds for all workers of that round on this node. Without another
wish it is `layout_by_options`: the paths of `log_layout`, as `--redirects` and its like say.
The other one (`registered_logs`) asks what a user has registered.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from msgspec import Struct

from holdfast.core.policy.config import Output
from holdfast.core.protocol.errors import HoldfastError
from holdfast.processes.output.log_layout import FILTERED_FILES, JobLogs
from holdfast.processes.output.stream_plans import (
    STDERR,
    STDOUT,
    StreamDestination,
    filters_of,
    place_by_options,
)

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
