"""Processes of one entrypoint, as a whole (`PContext`), and where their output goes (`LogsSpecs`).

Rules
1. All or nothing: there is a result when all have ended well, or when one has failed, and then
   all are ended before the result is given.
2. Waiting waits for the end of a process and looks at no clock: `period` is accepted and
   means nothing.
3. `close` may be called at any time, from any thread, any number of times. It returns when
   nothing is left of the processes, whatever they started, or of what was used for them, but for
   a zygote that waits for the next context (`zygote_pool.py`).
4. When this process ends, however it does, they are killed.
5. Signals to the process that waits arrive as an exception. The waiting code catches
   `SignalException` and closes with its `sigval`, so that the processes get the same signal. Where
   processes are being made, signals are held back (`held_back`): an exception between any two
   lines would leave behind what the first of them took and the second was to note.
6. A `LogsSpecs` is asked once for each start of a group: given the variables of its processes,
   `reify` says where every stream goes, makes the folders, and sets `TORCHELASTIC_ERROR_FILE`.
   The layout is the one of `processes.output.run_folders`. In a `LogsDest` the empty path stands
   for this process's own stream, and `os.devnull` for nowhere. Streams under `tee_…` are shown as
   well as kept.

How it works: a spawner is the parent of all of them (`processes.spawner.spawner`), and a thread
watches them and their output (`started_processes.py`).
"""

from __future__ import annotations

import contextlib
import logging
import os
import pickle
import re
import shutil
import signal
import tempfile
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from enum import IntFlag
from pathlib import Path
from types import FrameType
from typing import Any

from holdfast.core.policy.config import DEFAULT_SIGNALS
from holdfast.elastic.multiprocessing import calls, zygote_pool
from holdfast.elastic.multiprocessing.errors import ProcessFailure
from holdfast.elastic.multiprocessing.started_processes import Exit, Start, StartedProcesses
from holdfast.processes.environment import without_secrets
from holdfast.processes.output.run_folders import (
    FILTERED_FILES,
    STREAM_FILES,
    JobLogs,
    create_job_logs,
)
from holdfast.processes.output.stream_plans import (
    StreamPlan,
    WorkerIdentity,
    filtered_files,
    kept_files,
    pipe_bytes,
    place_in,
)
from holdfast.processes.spawner_process import SpawnerProcess
from holdfast.processes.stdlib_only.private_messages import Execute, ForkCall
from holdfast.worker import error_file

__all__ = [
    "DefaultLogsSpecs",
    "LogsDest",
    "LogsSpecs",
    "MultiprocessContext",
    "PContext",
    "ProcessFailure",
    "RunProcsResult",
    "SignalException",
    "Std",
    "SubprocessContext",
    "to_map",
]

logger = logging.getLogger(__name__)


_ONE = re.compile(r"[0-3]")
_PER_RANK = re.compile(r"\d+:[0-3](,\d+:[0-3])*")


class Std(IntFlag):
    """stdout, stderr, both or neither."""

    NONE = 0
    OUT = 1
    ERR = 2
    ALL = OUT | ERR

    @classmethod
    def from_str(cls, vm: str) -> Std | dict[int, Std]:
        """Read `3`, for all ranks, or `0:3,12:1`. Raises `ValueError` for anything else."""
        if _ONE.fullmatch(vm):
            return cls(int(vm))
        if not _PER_RANK.fullmatch(vm):
            raise ValueError(f"{vm!r} is neither a number from 0 to 3 nor a list like 0:3,1:2")
        pairs = (entry.split(":") for entry in vm.split(","))
        return {int(local_rank): cls(int(streams)) for local_rank, streams in pairs}


def to_map(val_or_map: Std | dict[int, Std], local_world_size: int) -> dict[int, Std]:
    """The streams of every local rank: the same for all, or none for those not named."""
    ranks = range(local_world_size)
    if isinstance(val_or_map, dict):
        return {rank: Std(val_or_map.get(rank, Std.NONE)) for rank in ranks}
    return dict.fromkeys(ranks, Std(val_or_map))


SIGNALS_TO_HANDLE = "TORCHELASTIC_SIGNALS_TO_HANDLE"


class SignalException(Exception):
    """This process was sent a signal that ends it. `sigval` says which."""

    def __init__(self, msg: str, sigval: signal.Signals) -> None:
        super().__init__(msg)
        self.sigval = sigval


class held_back:  # noqa: N801 - used as a statement: `with held_back():`
    """Hold signals back: they raise at the end of the block, in the main thread only."""

    def __enter__(self) -> None:
        if threading.current_thread() is threading.main_thread():
            _held_back.append(self)

    def __exit__(self, *exception: object) -> None:
        if self in _held_back:
            _held_back.remove(self)
            if _came and not _held_back:
                number = _came[0]
                _came.clear()
                _raise(number, None)


_held_back: list[held_back] = []
_came: list[int] = []
# A fork is made in such a block, whose end it never sees.
os.register_at_fork(after_in_child=_held_back.clear)
os.register_at_fork(after_in_child=_came.clear)


def raise_on_signals() -> None:
    """From now on the signals that end a process raise `SignalException` in the main thread.

    Elsewhere than in the main thread nothing can be done, and nothing need be: when this
    process ends, however it does, what it started is killed.
    """
    if threading.current_thread() is not threading.main_thread():
        return
    for name in os.environ.get(SIGNALS_TO_HANDLE, ",".join(DEFAULT_SIGNALS)).split(","):
        try:
            signal.signal(signal.Signals[name.strip()], _raise)
        except (KeyError, OSError, ValueError):
            logger.warning("%s: %r is no signal that can be caught", SIGNALS_TO_HANDLE, name)


def _raise(number: int, frame: FrameType | None) -> None:
    if _held_back:
        _came.append(number)
        return
    sigval = signal.Signals(number)
    raise SignalException(f"process {os.getpid()} was sent {sigval.name}", sigval)


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


CLOSE_TIMEOUT_S = 30
START_METHODS = ("spawn", "fork", "forkserver")
HOOKS_OF_PYTORCH = {"_start", "_poll", "_close"}
"""By which its contexts are extended; there is nothing here that would call them."""


@dataclass
class RunProcsResult:
    """The result of the processes, by local rank.

    `return_values` is empty where one failed. `stdouts` and `stderrs` are paths, empty where
    the stream was not kept.
    """

    return_values: dict[int, Any] = field(default_factory=dict)
    failures: dict[int, ProcessFailure] = field(default_factory=dict)
    stdouts: dict[int, str] = field(default_factory=dict)
    stderrs: dict[int, str] = field(default_factory=dict)

    def is_failed(self) -> bool:
        return len(self.failures) > 0


class PContext(ABC):
    """Processes of one entrypoint, one for each local rank."""

    close_timeout: float = CLOSE_TIMEOUT_S
    """The grace that the others have when one has failed."""

    def __init__(
        self,
        name: str,
        entrypoint: Callable[..., Any] | str,
        args: dict[int, tuple[Any, ...]],
        envs: dict[int, dict[str, str]],
        logs_specs: LogsSpecs,
        log_line_prefixes: dict[int, str] | None = None,
        duplicate_stdout_filters: list[str] | None = None,
        duplicate_stderr_filters: list[str] | None = None,
        numa_options: Any = None,
    ) -> None:
        self.name = name
        self.entrypoint = entrypoint
        self.args = args
        self.envs = envs
        self.nprocs = len(args)
        destination = logs_specs.reify(envs)
        check_full_rank(destination.stdouts, self.nprocs, "stdouts")
        check_full_rank(destination.stderrs, self.nprocs, "stderrs")
        self.stdouts = destination.stdouts
        self.stderrs = destination.stderrs
        self.error_files = destination.error_files
        self._destination = destination
        self._prefixes = log_line_prefixes or {}
        self._filters = {1: duplicate_stdout_filters or [], 2: duplicate_stderr_filters or []}
        self._numa_options = numa_options
        self._processes: StartedProcesses | None = None
        self._pooled: zygote_pool.PooledSpawner | None = None
        """The spawner's zygote, where the processes come from one."""
        self._processor_sets: list[tuple[int, ...] | None] = []
        self._preparing = threading.RLock()
        self._closed = threading.Event()
        self._finishing = threading.RLock()
        self._first_failures: dict[int, ProcessFailure] | None = None
        self._result: RunProcsResult | None = None

    def __init_subclass__(cls, **settings: Any) -> None:
        super().__init_subclass__(**settings)
        for name in HOOKS_OF_PYTORCH & vars(cls).keys():
            raise TypeError(
                f"{cls.__name__}.{name} would never be called: the processes are started and "
                "waited for by a spawner (see PContext in holdfast.elastic.multiprocessing.api)"
            )

    # The life of it.

    def start(self) -> None:
        """Start them all. Each has its pid when this returns.

        In the main thread, signals that would end this process raise `SignalException` from
        now on. Raises `ValueError` when called a second time, or after `close`, and what cannot
        be started; nothing is left of it then.
        """
        raise_on_signals()
        with self._preparing:
            if self._processes is not None or self._closed.is_set():
                raise ValueError("the processes have been started or closed already")
            try:
                with held_back():
                    self._processes = self._prepared()
                self._processes.wait_for_pids()
            except BaseException:
                self.close()
                raise
            if self._closed.is_set():  # By a signal handler, before there was anything to close.
                self.close()

    def _prepared(self) -> StartedProcesses:
        """The processes, being started, and watched by their own thread."""
        wanted = [number for number, words in self._filters.items() if words]
        filtered = filtered_files(self._destination, wanted)
        for path in (*kept_files(self._destination), *filtered.values()):
            with open(path, "wb"):
                pass  # What an earlier start left is not of this one.
        self._processor_sets = processor_sets(self._numa_options, self.nprocs)
        with contextlib.ExitStack() as undo:
            starts: list[Start] = []
            undo.callback(_drop_all, starts)
            spawner = self._ready_to_start(starts)
            undo.callback(spawner.drop)
            made = StartedProcesses(starts, filtered, by_group=self._is_of_commands)
            made.start(spawner, self._pooled)
            undo.pop_all()
        return made

    def wait(self, timeout: float = -1, period: float = 1) -> RunProcsResult | None:
        """The result, or None when there is none yet after `timeout` seconds.

        Negative: wait as long as it takes. Zero: only look.
        """
        if not self.wait_for_end(None if timeout < 0 else timeout):
            return None
        with self._finishing:
            if self._result is None:
                result = self._finish()
                if len(self._started.exits) < self.nprocs:
                    # Somebody has replaced `close`, to leave the healthy ones alone: look anew.
                    self._first_failures = None
                    return result
                self._result = result
        return self._result

    def wait_for_end(
        self, timeout_s: float | None, or_when: Callable[[], bool] = lambda: False
    ) -> bool:
        """Wait until one has failed or all have ended, and say whether that is so.

        Nothing is ended or judged by it. None: as long as it takes. `or_when` ends the wait, too;
        it is asked again after each `wake`.
        """
        return self._started.wait(timeout_s, or_when)

    def wake(self) -> None:
        """Have what else is waited for looked at again."""
        self._started.wake()

    def pids(self) -> dict[int, int]:
        """The pids by local rank, also of those that have ended."""
        return dict(sorted(self._started.pids.items()))

    def close(
        self, death_sig: signal.Signals | None = None, timeout: float = CLOSE_TIMEOUT_S
    ) -> None:
        """End them: `death_sig` (SIGTERM), and SIGKILL for all that is left after `timeout`."""
        with self._preparing:
            self._closed.set()
        if self._processes is not None:
            self._processes.close(death_sig or signal.SIGTERM, timeout)

    @property
    def _started(self) -> StartedProcesses:
        if self._processes is None:
            raise RuntimeError("the processes have not been started")
        return self._processes

    # What differs between commands and functions.

    _is_of_commands: bool
    """A command has our standard input, and its process group the signals."""

    @abstractmethod
    def _ready_to_start(self, starts: list[Start]) -> SpawnerProcess:
        """Add all that it takes to start them; the caller drops it when this raises."""

    @abstractmethod
    def _failed(self, before: Collection[int]) -> Iterator[Exit]:
        """Processes that count as failures; `before` had failed before the others were stopped."""

    @abstractmethod
    def _return_value(self, local_rank: int) -> Any:
        """The value that the process of a rank returned; all have ended well."""

    def _finish(self) -> RunProcsResult:
        """End what still runs, and say what came of it."""
        if self._first_failures is None:  # Else an interrupt came while they were being ended.
            self._first_failures = {
                ended.local_rank: self._failure(ended)
                for ended in list(self._started.exits.values())
                if ended.code
            }
        first = self._first_failures
        self.close(timeout=self.close_timeout)
        if self._result is not None:  # A signal handler that came meanwhile has waited too.
            return self._result
        failures = {
            ended.local_rank: first.get(ended.local_rank) or self._failure(ended)
            for ended in sorted(self._failed(first.keys()), key=lambda ended: ended.local_rank)
        }
        result = RunProcsResult(failures=failures, stdouts=self.stdouts, stderrs=self.stderrs)
        if not failures:
            result.return_values = {rank: self._return_value(rank) for rank in range(self.nprocs)}
        for rank, failure in failures.items():
            words, level = "failed", logging.ERROR
            if rank not in first:  # Which is a failure to the caller, but nobody's fault.
                words, level = "was told to end, and did", logging.INFO
            who = f"local rank {rank} (pid {failure.pid}) of {self.name}"
            logger.log(level, "%s %s with exit code %s", who, words, failure.exitcode)
        return result

    def _failure(self, ended: Exit) -> ProcessFailure:
        path = self.error_files[ended.local_rank]
        failure = ProcessFailure(ended.local_rank, ended.pid, ended.code, path)
        if ended.error:
            failure.message = ended.error
        return failure

    def _start_of(self, local_rank: int, request: Execute | ForkCall) -> Start:
        return Start(
            local_rank=local_rank,
            request=request,
            reads_our_stdin=self._is_of_commands,
            stdout=self._stream_plan(local_rank, 1),
            stderr=self._stream_plan(local_rank, 2),
        )

    def _stream_plan(self, local_rank: int, number: int) -> StreamPlan | None:
        """The plan of one stream; None where it is this process's own."""
        place = place_in(self._destination, local_rank, number)
        if place.file is None:
            return None
        prefix = self._prefixes.get(local_rank, f"[{self.name}{local_rank}]:")
        return StreamPlan(
            number=number,
            file=place.file,
            direct=place.direct,
            to_console=place.shown,
            # A prefix is as it should be, but for the pid, which nobody knew.
            prefix_template=prefix.replace("$", "$$").replace("$${pid}", "${pid}"),
            prefix_on_console=True,
            pass_through=False,
            filters=() if place.direct else tuple(map(os.fsencode, self._filters[number])),
            pipe_bytes=pipe_bytes(self.nprocs),
            identity=WorkerIdentity(local_rank, local_rank, self.name, self.nprocs),
        )

    def _to_execute(self, local_rank: int, command: list[str]) -> Execute:
        return Execute(
            name=self._name_of(local_rank),
            argv=command,
            env=self._environment(local_rank),
            cpus=self._processor_sets[local_rank],
        )

    def _name_of(self, local_rank: int) -> str:
        """The name of the process for the spawner."""
        return f"{self.name}:{local_rank}"

    def _environment(self, local_rank: int) -> dict[str, str]:
        return {**without_secrets(os.environ), **self.envs[local_rank]}


class SubprocessContext(PContext):
    """Commands."""

    entrypoint: str
    _is_of_commands = True

    def __init__(
        self,
        name: str,
        entrypoint: str,
        args: dict[int, tuple[Any, ...]],
        envs: dict[int, dict[str, str]],
        logs_specs: LogsSpecs,
        log_line_prefixes: dict[int, str] | None = None,
        numa_options: Any = None,
        duplicate_stdout_filters: list[str] | None = None,
        duplicate_stderr_filters: list[str] | None = None,
    ) -> None:
        filters = duplicate_stdout_filters, duplicate_stderr_filters
        outputs = logs_specs, log_line_prefixes, *filters
        super().__init__(name, entrypoint, args, envs, *outputs, numa_options)

    def _ready_to_start(self, starts: list[Start]) -> SpawnerProcess:
        for rank in range(self.nprocs):
            command = [self.entrypoint, *map(str, self.args[rank])]
            request = self._to_execute(rank, command)
            _check_command(self.entrypoint, request.env)
            starts.append(self._start_of(rank, request))
        return calls.new_spawner()

    def _failed(self, before: Collection[int]) -> Iterator[Exit]:
        """All processes that did not end with 0, including those that were stopped."""
        return (ended for ended in self._started.exits.values() if ended.code)

    def _return_value(self, local_rank: int) -> None:
        return None


class MultiprocessContext(PContext):
    """Functions. `start_method` is `spawn`, `fork` or `forkserver` (see `calls.py`)."""

    entrypoint: Callable[..., Any]
    _is_of_commands = False

    def __init__(
        self,
        name: str,
        entrypoint: Callable[..., Any],
        args: dict[int, tuple[Any, ...]],
        envs: dict[int, dict[str, str]],
        start_method: str,
        logs_specs: LogsSpecs,
        log_line_prefixes: dict[int, str] | None = None,
        numa_options: Any = None,
        duplicate_stdout_filters: list[str] | None = None,
        duplicate_stderr_filters: list[str] | None = None,
    ) -> None:
        if start_method not in START_METHODS:
            raise ValueError(
                f"start_method {start_method!r}: choose one of {', '.join(START_METHODS)}"
            )
        filters = duplicate_stdout_filters, duplicate_stderr_filters
        outputs = logs_specs, log_line_prefixes, *filters
        super().__init__(name, entrypoint, args, envs, *outputs, numa_options)
        self.start_method = start_method

    def _ready_to_start(self, starts: list[Start]) -> SpawnerProcess:
        calls.demand(self.start_method)
        if self.start_method != "fork":
            for rank in range(self.nprocs):
                self._ship(starts, rank)
            return self._spawner_for(starts)
        made = {
            self._name_of(rank): calls.process_object("fork", self._title(rank), call, -1)
            for rank, call in enumerate(map(self._call, range(self.nprocs)))
        }
        spawner = calls.fork_spawner(made)
        try:
            for rank in range(self.nprocs):
                self._fork(starts, rank)
        except BaseException:
            spawner.drop()
            raise
        return spawner

    def _spawner_for(self, starts: list[Start]) -> SpawnerProcess:
        """One with a zygote, if that is of use."""
        wanted = None
        if starts and isinstance(starts[0].request, Execute):
            command = starts[0].request.argv
            arguments = self.args.values()
            wanted = zygote_pool.plan(self.entrypoint, arguments, self.envs, command)
        self._pooled = zygote_pool.take(wanted) if wanted is not None else None
        return self._pooled.process if self._pooled is not None else calls.new_spawner()

    def _fork(self, starts: list[Start], local_rank: int) -> None:
        paths = {1: self.stdouts[local_rank], 2: self.stderrs[local_rank]}
        own = [number for number, path in paths.items() if path]
        cpus = self._processor_sets[local_rank]
        request = ForkCall(name=self._name_of(local_rank), cpus=cpus, own_streams=own)
        start = self._start_of(local_rank, request)
        starts.append(start)
        start.ends = calls.reply_pair()
        start.given = (start.ends[1].fileno(),)

    def _ship(self, starts: list[Start], local_rank: int) -> None:
        request = self._to_execute(local_rank, [])
        start = self._start_of(local_rank, request)
        starts.append(start)
        start.ends = calls.reply_pair()
        title, call = self._title(local_rank), self._call(local_rank)
        command, given, start.cargo = calls.ship(title, call, start.ends[1], self.start_method)
        start.given, request.keep = tuple(given.values()), tuple(given)
        request.argv = command

    def _call(self, local_rank: int) -> calls.FunctionCall:
        return calls.FunctionCall(self.entrypoint, self.args[local_rank], self.envs[local_rank])

    def _title(self, local_rank: int) -> str:
        return f"{self.name}{local_rank}"

    def _failed(self, before: Collection[int]) -> Iterator[Exit]:
        """Processes that failed by themselves; if none did, those that failed when stopped."""
        failed = [ended for ended in self._started.exits.values() if ended.code]
        by_themselves = [ended for ended in failed if ended.local_rank in before]
        return iter(by_themselves or failed)

    def _return_value(self, local_rank: int) -> Any:
        pickled = self._started.values.pop(local_rank, None)
        return None if pickled is None else pickle.loads(pickled)


def _drop_all(starts: list[Start]) -> None:
    for start in starts:
        start.drop()


def check_full_rank(mapping: dict[int, Any], nprocs: int, what: str) -> None:
    """Refuse a mapping that does not have exactly the ranks from 0 on."""
    if mapping.keys() != set(range(nprocs)):
        ranks = sorted(mapping)
        raise RuntimeError(f"{what}: the local ranks are {ranks}, and must be 0 to {nprocs - 1}")


def _check_command(command: str, environment: dict[str, str]) -> None:
    """Raise `FileNotFoundError` or `PermissionError` where there is no such command to run."""
    path = environment.get("PATH", os.defpath)
    if shutil.which(command, path=path) is None:
        if os.path.exists(command) and os.path.dirname(command):
            raise PermissionError(13, "it cannot be executed", command)
        raise FileNotFoundError(2, "there is no such command", command)


def processor_sets(options: Any, nprocs: int) -> list[tuple[int, ...] | None]:
    """The CPUs of each local rank; None: any.

    `options` are PyTorch's `NumaOptions` (or any object with their fields), or the name of a mode
    of `processes.host.numa`. Raises `RuntimeError` where it cannot be done, unless the options say
    to go on without.
    """
    if options is None:
        return [None] * nprocs
    from holdfast.core.protocol.errors import UsageError
    from holdfast.processes.host import numa

    mode = getattr(options, "affinity_mode", options)
    binding = str(getattr(mode, "value", mode))
    try:
        return list(numa.plan(binding, nprocs, devices=numa.cuda_devices(os.environ)))
    except UsageError as error:
        words = f"{error}; {error.hint}".replace("--numa-binding", "numa_options")
        if not getattr(options, "should_fall_back_if_binding_fails", False):
            raise RuntimeError(words) from error
        logger.warning("the processes run on any CPU, as the options allow: %s", words)
        return [None] * nprocs
