"""Destinations for the output and the errors of processes.

A `LogsSpecs` is asked once for each start of a group: given the variables of its processes,
`reify` says where every stream goes, makes the folders, and sets `TORCHELASTIC_ERROR_FILE`.
The layout is the one of `processes.output.run_folders`.

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
from holdfast.processes.output.run_folders import (
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
    """The user's wishes: streams to keep in files, to keep and show, and ranks to show."""

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
        number = int(shared.get("TORCHELASTIC_RESTART_COUNT", "0"))
        attempt = logs.attempt(number)
        if attempt is not None:
            _make_folders(attempt, len(envs))
        destination = LogsDest(
            filtered_stdout=os.path.join(attempt or os.devnull, FILTERED_FILES[1]),
            filtered_stderr=os.path.join(attempt or os.devnull, FILTERED_FILES[2]),
        )
        redirects, tees = to_map(self._redirects, len(envs)), to_map(self._tee, len(envs))
        for local_rank in range(len(envs)):
            own = logs.error_file(number, local_rank)
            destination.error_files[local_rank] = str(own) if own else os.devnull
            envs[local_rank][error_file.VARIABLE] = str(own) if own else ""
            folder = logs.worker(number, local_rank)
            self._place(destination, local_rank, folder, redirects[local_rank], tees[local_rank])
        return destination

    def _place(
        self, destination: LogsDest, local_rank: int, folder: Path | None, redirect: Std, tee: Std
    ) -> None:
        """Note where the streams of a rank go; without a folder nothing is kept."""
        shown = not self._local_ranks_filter or local_rank in self._local_ranks_filter
        kinds = (
            (Std.OUT, destination.stdouts, destination.tee_stdouts),
            (Std.ERR, destination.stderrs, destination.tee_stderrs),
        )
        for stream, kept, teed in kinds:
            kept[local_rank] = OWN_STREAM if shown else os.devnull
            if folder is None:
                teed[local_rank] = os.devnull
            elif (redirect | tee) & stream:
                kept[local_rank] = str(folder / STREAM_FILES[stream.value])
                if tee & stream and shown:
                    teed[local_rank] = kept[local_rank]

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


def _make_folders(attempt: Path, processes: int) -> None:
    """Anew: what an earlier start of the group left there is gone."""
    shutil.rmtree(attempt, ignore_errors=True)
    attempt.mkdir(parents=True)
    for local_rank in range(processes):
        (attempt / str(local_rank)).mkdir()
