"""`PContext`: processes of one entrypoint, as a whole.

Rules
1. All or nothing: there is a result when all have ended well, or when one has failed, and then
   all are ended before the result is given.
2. Waiting waits for the end of a process and looks at no clock: `period` is accepted and
   means nothing.
3. `close` may be called at any time, from any thread, any number of times. It returns when
   nothing is left of the processes, whatever they started, or of what was used for them, but for
   a zygote that waits for the next context (`zygote_pool.py`).
4. When this process ends, however it does, they are killed.

How it works: a spawner is the parent of all of them (`processes.spawner.spawner`), and a thread
watches them and their output (`started_processes.py`).
"""

from __future__ import annotations

import logging
import os
import pickle
import shutil
import signal
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from typing import Any

from msgspec import Struct

from holdfast.elastic.multiprocessing import calls, forking, warm_plan, zygote_pool
from holdfast.elastic.multiprocessing.errors import ProcessFailure
from holdfast.elastic.multiprocessing.logs_specs import LogsDest, LogsSpecs
from holdfast.elastic.multiprocessing.signals import held_back, raise_on_signals
from holdfast.elastic.multiprocessing.started_processes import Exit, Start, StartedProcesses
from holdfast.processes.environment import without_secrets
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

__all__ = ["MultiprocessContext", "PContext", "RunProcsResult", "SubprocessContext"]

CLOSE_TIMEOUT_S = 30
START_METHODS = ("spawn", "fork", "forkserver")
HOOKS_OF_PYTORCH = {"_start", "_poll", "_close"}
"""By which its contexts are extended; there is nothing here that would call them."""

logger = logging.getLogger(__name__)


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


class StreamPlans(Struct, frozen=True):
    """The plans of all processes of one context."""

    name: str
    nprocs: int
    destination: LogsDest
    prefixes: dict[int, str]
    """By local rank; for those not named, `[<name><local rank>]:`."""
    filters: dict[int, list[str]]
    """Words of which a line to be copied has one, for stdout (1) and stderr (2)."""

    def make_files(self) -> None:
        """Start every file empty: what an earlier start left is not of this one."""
        kept = kept_files(self.destination)
        for path in (*kept, *self.filtered_files().values()):
            with open(path, "wb"):
                pass

    def filtered_files(self) -> dict[int, str]:
        """The files for copies of lines that match, by stream."""
        wanted = [number for number, words in self.filters.items() if words]
        return filtered_files(self.destination, wanted)

    def of(self, local_rank: int, number: int) -> StreamPlan | None:
        """The plan of one stream; None where it is this process's own."""
        place = place_in(self.destination, local_rank, number)
        if place.file is None:
            return None
        prefix = self.prefixes.get(local_rank, f"[{self.name}{local_rank}]:")
        return StreamPlan(
            number=number,
            file=place.file,
            direct=place.direct,
            to_console=place.shown,
            prefix_template=_template(prefix),
            prefix_on_console=True,
            pass_through=False,
            filters=() if place.direct else tuple(map(os.fsencode, self.filters[number])),
            pipe_bytes=pipe_bytes(self.nprocs),
            identity=WorkerIdentity(local_rank, local_rank, self.name, self.nprocs),
        )


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
        filters = {1: duplicate_stdout_filters or [], 2: duplicate_stderr_filters or []}
        prefixes = log_line_prefixes or {}
        self._streams = StreamPlans(name, self.nprocs, destination, prefixes, filters)
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
                "waited for by a spawner (see PContext in holdfast.elastic.multiprocessing.context)"
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
        self._streams.make_files()
        self._processor_sets = processor_sets(self._numa_options, self.nprocs)
        starts: list[Start] = []
        try:
            spawner = self._ready_to_start(starts)
            try:
                filtered = self._streams.filtered_files()
                made = StartedProcesses(starts, filtered, by_group=self._signals_groups)
                made.start(spawner, self._pooled)
            except BaseException:
                spawner.drop()
                raise
        except BaseException:
            for start in starts:
                start.drop()
            raise
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

    def wait_for_end(self, timeout_s: float | None) -> bool:
        """Wait until one has failed or all have ended, and say whether that is so.

        Nothing is ended or judged by it. None: as long as it takes.
        """
        return self._started.wait(timeout_s)

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

    _signals_groups: bool
    _reads_our_stdin: bool

    @abstractmethod
    def _ready_to_start(self, starts: list[Start]) -> SpawnerProcess:
        """Add all that it takes to start them; the caller drops it when this raises."""

    @abstractmethod
    def _failed(self, before: Collection[int]) -> Iterator[Exit]:
        """Those that count as failures; `before` had failed when the others were told to end."""

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
            reads_our_stdin=self._reads_our_stdin,
            stdout=self._streams.of(local_rank, 1),
            stderr=self._streams.of(local_rank, 2),
        )

    def _to_execute(self, local_rank: int, command: list[str]) -> Execute:
        return Execute(
            name=self._name_of(local_rank),
            argv=command,
            env=self._environment(local_rank),
            cpus=self._processor_sets[local_rank],
        )

    def _name_of(self, local_rank: int) -> str:
        """By which the spawner knows it."""
        return f"{self.name}:{local_rank}"

    def _environment(self, local_rank: int) -> dict[str, str]:
        return {**without_secrets(os.environ), **self.envs[local_rank]}


class SubprocessContext(PContext):
    """Commands."""

    entrypoint: str
    _signals_groups = True
    _reads_our_stdin = True

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
        super().__init__(name, entrypoint, args, envs, logs_specs, log_line_prefixes, *filters)
        self._numa_options = numa_options

    def _ready_to_start(self, starts: list[Start]) -> SpawnerProcess:
        for rank in range(self.nprocs):
            command = [self.entrypoint, *map(str, self.args[rank])]
            request = self._to_execute(rank, command)
            _check_command(self.entrypoint, request.env)
            starts.append(self._start_of(rank, request))
        return forking.new_spawner()

    def _failed(self, before: Collection[int]) -> Iterator[Exit]:
        """All that did not end with 0, those that were told to end among them."""
        return (ended for ended in self._started.exits.values() if ended.code)

    def _return_value(self, local_rank: int) -> None:
        return None


class MultiprocessContext(PContext):
    """Functions. `start_method` is `spawn`, `fork` or `forkserver` (see `calls.py`)."""

    entrypoint: Callable[..., Any]
    _signals_groups = False
    _reads_our_stdin = False

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
        super().__init__(name, entrypoint, args, envs, logs_specs, log_line_prefixes, *filters)
        self._numa_options = numa_options
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
        spawner = forking.fork_spawner(made)
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
            wanted = warm_plan.plan(self.entrypoint, arguments, self.envs, command)
        self._pooled = zygote_pool.take(wanted) if wanted is not None else None
        return self._pooled.process if self._pooled is not None else forking.new_spawner()

    def _fork(self, starts: list[Start], local_rank: int) -> None:
        paths = {1: self.stdouts[local_rank], 2: self.stderrs[local_rank]}
        own = [number for number, path in paths.items() if path]
        cpus = self._processor_sets[local_rank]
        request = ForkCall(name=self._name_of(local_rank), cpus=cpus, own_streams=own)
        start = self._start_of(local_rank, request)
        starts.append(start)
        start.ends = forking.reply_pair()
        start.given = (start.ends[1].fileno(),)

    def _ship(self, starts: list[Start], local_rank: int) -> None:
        request = self._to_execute(local_rank, [])
        start = self._start_of(local_rank, request)
        starts.append(start)
        start.ends = forking.reply_pair()
        title, call = self._title(local_rank), self._call(local_rank)
        shipment = calls.ship(title, call, start.ends[1], self.start_method)
        start.given, start.cargo = shipment.descriptors, shipment.cargo
        request.argv, request.keep = shipment.command, shipment.numbers

    def _call(self, local_rank: int) -> calls.FunctionCall:
        return calls.FunctionCall(self.entrypoint, self.args[local_rank], self.envs[local_rank])

    def _title(self, local_rank: int) -> str:
        return f"{self.name}{local_rank}"

    def _failed(self, before: Collection[int]) -> Iterator[Exit]:
        """Those that failed by themselves; if none did, those that were made to."""
        failed = [ended for ended in self._started.exits.values() if ended.code]
        by_themselves = [ended for ended in failed if ended.local_rank in before]
        return iter(by_themselves or failed)

    def _return_value(self, local_rank: int) -> Any:
        pickled = self._started.values.pop(local_rank, None)
        return None if pickled is None else pickle.loads(pickled)


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


def _template(prefix: str) -> str:
    """A prefix is as it should be, but for the pid, which nobody knew."""
    return prefix.replace("$", "$$").replace("$${pid}", "${pid}")


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
