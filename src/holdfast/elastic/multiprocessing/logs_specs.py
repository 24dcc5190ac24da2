"""Where the output and the errors of processes go.

A `LogsSpecs` is asked once for each start of a group: given the variables of its processes,
`reify` says where every stream goes, makes the folders, and sets `TORCHELASTIC_ERROR_FILE`.
The layout is the one of `processes.output.log_layout`.

In a `LogsDest` the empty path stands for this process's own stream, and `os.devnull` for
nowhere. Streams under `tee_…` are shown as well as kept.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from pathlib import Path

from holdfast.elastic.multiprocessing.std import Std, to_map
from holdfast.processes.output.log_layout import (
    FILTERED_FILES,
    STREAM_FILES,
    JobLogs,
    create_job_logs,
)
from holdfast.worker import error_file

__all__ = ["DefaultLogsSpecs", "LogsDest", "LogsSpecs"]

OWN_STREAM = ""


@dataclass
class LogsDest:
    """Paths by local rank, and the two files of filtered lines."""

    stdouts: dict[int, str] = field(default_factory=dict)
    stderrs: dict[int, str] = field(default_factory=dict)
    tee_stdouts: dict[int, str] = field(default_factory=dict)
    tee_stderrs: dict[int, str] = field(default_factory=dict)
    error_files: dict[int, str] = field(default_factory=dict)
    filtered_stdout: str = ""
    filtered_stderr: str = ""


class LogsSpecs(ABC):
    """What is wished for: streams to keep in files, to keep and show, and ranks to show."""

    def __init__(
        self,
        log_dir: str | None = None,
        redirects: Std | dict[int, Std] = Std.NONE,
        tee: Std | dict[int, Std] = Std.NONE,
        local_ranks_filter: set[int] | None = None,
    ) -> None:
        self._root_log_dir = log_dir
        self._redirects = redirects
        self._tee = tee
        self._local_ranks_filter = local_ranks_filter

    @abstractmethod
    def reify(self, envs: dict[int, dict[str, str]]) -> LogsDest:
        """Make places for the processes that will have these variables, by local rank."""

    @property
    @abstractmethod
    def root_log_dir(self) -> str:
        """The folder under which everything lies."""


class DefaultLogsSpecs(LogsSpecs):
    """`<log_dir>/<run id>_<unique>/attempt_<restart>/<local rank>/…`

    Without `log_dir` a temporary folder is made, which stays. With `os.devnull` nothing is
    written. One object is good for all attempts of a run. Raises `NotADirectoryError` where
    `log_dir` is a file.
    """

    def __init__(
        self,
        log_dir: str | None = None,
        redirects: Std | dict[int, Std] = Std.NONE,
        tee: Std | dict[int, Std] = Std.NONE,
        local_ranks_filter: set[int] | None = None,
    ) -> None:
        if not log_dir:
            log_dir = tempfile.mkdtemp(prefix="holdfast_")
        elif os.path.isfile(log_dir):
            raise NotADirectoryError(f"log_dir: {log_dir} is a file")
        elif log_dir != os.devnull:
            os.makedirs(log_dir, exist_ok=True)
        super().__init__(log_dir, redirects, tee, local_ranks_filter)
        self._run_log_dir: str | None = None

    @property
    def root_log_dir(self) -> str:
        return str(self._root_log_dir)

    def reify(self, envs: dict[int, dict[str, str]]) -> LogsDest:
        """As the class says; `TORCHELASTIC_RUN_ID` and `…_RESTART_COUNT` name the folders."""
        shared = envs.get(0, {})
        logs = self._logs(shared.get("TORCHELASTIC_RUN_ID", "test_run_id"))
        attempt = _Attempt(logs, int(shared.get("TORCHELASTIC_RESTART_COUNT", "0")))
        attempt.make_folders(len(envs))
        destination = LogsDest(
            filtered_stdout=attempt.filtered(Std.OUT), filtered_stderr=attempt.filtered(Std.ERR)
        )
        redirects, tees = to_map(self._redirects, len(envs)), to_map(self._tee, len(envs))
        for local_rank in range(len(envs)):
            shown = not self._local_ranks_filter or local_rank in self._local_ranks_filter
            wish = _Wish(redirects[local_rank], tees[local_rank], shown)
            attempt.place(destination, local_rank, wish)
            own = destination.error_files[local_rank]
            envs[local_rank][error_file.VARIABLE] = "" if own == os.devnull else own
        return destination

    def _logs(self, run_id: str) -> JobLogs:
        if self._root_log_dir == os.devnull:
            return JobLogs(None)
        if self._run_log_dir is None:
            self._run_log_dir = str(create_job_logs(self._root_log_dir, run_id).root)
        return JobLogs(Path(self._run_log_dir))

    def __repr__(self) -> str:
        return (
            f"DefaultLogsSpecs(root_log_dir={self._root_log_dir}, redirects={self._redirects}, "
            f"tee={self._tee}, local_ranks_filter={self._local_ranks_filter})"
        )

    def _wishes(self) -> tuple[object, ...]:
        return self._root_log_dir, self._redirects, self._tee, self._local_ranks_filter

    def __eq__(self, other: object) -> bool:
        return isinstance(other, DefaultLogsSpecs) and self._wishes() == other._wishes()

    __hash__ = None  # type: ignore[assignment]  # As for whatever compares by what it holds.


@dataclass
class _Wish:
    """What is wanted of the streams of one local rank."""

    redirect: Std
    tee: Std
    shown: bool


class _Attempt:
    """The folders of one start of the group."""

    def __init__(self, logs: JobLogs, restart_count: int) -> None:
        self._logs = logs
        self._number = restart_count
        self._folder = logs.attempt(restart_count)

    def make_folders(self, processes: int) -> None:
        if self._folder is None:
            return
        shutil.rmtree(self._folder, ignore_errors=True)
        self._folder.mkdir(parents=True)
        for local_rank in range(processes):
            (self._folder / str(local_rank)).mkdir()

    def filtered(self, stream: Std) -> str:
        return os.path.join(self._folder or os.devnull, FILTERED_FILES[stream.value])

    def place(self, destination: LogsDest, local_rank: int, wish: _Wish) -> None:
        """Note where the streams and the error of a rank go."""
        own = self._logs.error_file(self._number, local_rank)
        destination.error_files[local_rank] = str(own) if own else os.devnull
        kinds = (
            (Std.OUT, destination.stdouts, destination.tee_stdouts),
            (Std.ERR, destination.stderrs, destination.tee_stderrs),
        )
        for stream, kept, teed in kinds:
            kept[local_rank] = self._kept(stream, local_rank, wish)
            if self._folder is None:
                teed[local_rank] = os.devnull
            elif wish.tee & stream and wish.shown:
                teed[local_rank] = kept[local_rank]

    def _kept(self, stream: Std, local_rank: int, wish: _Wish) -> str:
        folder = self._logs.worker(self._number, local_rank)
        if folder is not None and (wish.redirect | wish.tee) & stream:
            return str(folder / STREAM_FILES[stream.value])
        return OWN_STREAM if wish.shown else os.devnull
