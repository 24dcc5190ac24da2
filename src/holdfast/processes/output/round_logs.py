"""Where the workers of a round write: the one seam between a job and its log files.

A `Layout` is chosen when the job starts and asked at the start of every round; what it
answers, the `RoundLogs`, holds for all workers of that round on this node. Without another
wish it is `LayoutByOptions`: the paths of `log_layout`, as `--redirects` and its like say.
The other one (`registered_logs`) asks what a user has registered.
"""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from msgspec import Struct

from holdfast.core.policy.config import Output
from holdfast.core.protocol.errors import HoldfastError
from holdfast.processes.output.console import Console
from holdfast.processes.output.log_files import FilterFiles, Lane, open_filter_files
from holdfast.processes.output.log_layout import JobLogs
from holdfast.processes.output.stream_plans import StreamDestination, place_by_options

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


class RoundLogs(Protocol):
    """The places of one round on this node."""

    def place(self, local_rank: int, number: int) -> StreamDestination:
        """Where stdout (1) or stderr (2) of a worker goes."""

    def error_file(self, local_rank: int) -> Path | None:
        """Where a worker leaves its exception."""

    def open_filters(self, console: Console, lane: Lane) -> FilterFiles | None:
        """The files for lines that match a filter, if there is one; the lane opens them."""


class Layout(Protocol):
    """Decides for each round anew."""

    def begin(self, logs: JobLogs, restart_count: int, environments: Environments) -> RoundLogs:
        """The places of a round, whose workers have these variables; may change these.

        Raises `LogsRefused` where there are none.
        """


class LayoutByOptions(Struct, frozen=True):
    """As the options say."""

    output: Output

    def begin(self, logs: JobLogs, restart_count: int, environments: Environments) -> RoundLogs:
        return _RoundByOptions(self.output, logs, restart_count)


class _RoundByOptions(Struct, frozen=True):
    output: Output
    logs: JobLogs
    restart_count: int

    def place(self, local_rank: int, number: int) -> StreamDestination:
        directory = self.logs.worker(self.restart_count, local_rank)
        return place_by_options(self.output, directory, local_rank, number)

    def error_file(self, local_rank: int) -> Path | None:
        return self.logs.error_file(self.restart_count, local_rank)

    def open_filters(self, console: Console, lane: Lane) -> FilterFiles | None:
        attempt = self.logs.attempt(self.restart_count)
        return open_filter_files(self.output, attempt, console, lane)
