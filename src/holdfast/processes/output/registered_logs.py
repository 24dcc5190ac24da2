"""Where workers write, as a class says that another package registered (`--logs-specs`).

    [project.entry-points."torchrun.logs_specs"]
    mine = "my_package.logs:MyLogsSpecs"

Rules
1. The class is called as `torchrun` calls it: made once, with the keywords `log_dir`,
   `redirects`, `tee` and `local_ranks_filter`; then `reify(envs)` for every start of the
   workers of this node, which may change their variables.
2. It may be written against PyTorch's `LogsSpecs` or against ours. Streams are handed in as
   the `Std` of the family that it belongs to, since PyTorch's looks at their type.
3. It may raise and return anything. If it cannot be made, the job does not start (`UsageError`);
   if it gives no answer, the round fails, with what it raised as the cause (`LogsRefused`).
4. A file is made empty when the job first names it, and appended to from then on.
5. A worker whose error file it does not name has the one that it would have without it.
"""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Callable
from enum import IntFlag
from pathlib import Path
from typing import Any

from holdfast.core.policy.config import JobConfig, Output
from holdfast.core.protocol.errors import UsageError
from holdfast.processes import environment
from holdfast.processes.output.run_folders import JobLogs
from holdfast.processes.output.stream_plans import (
    STDERR,
    STDOUT,
    Destination,
    Environments,
    LogsRefused,
    RoundLogs,
    StreamDestination,
    filtered_files,
    filtered_streams,
    kept_files,
    place_in,
)
from holdfast.worker.error_file import VARIABLE as ERROR_FILE

GROUP = "torchrun.logs_specs"
FAMILIES = (
    "torch.distributed.elastic.multiprocessing.api",
    "holdfast.elastic.multiprocessing.api",
)
"""Where a `Std` is found, for what is no class of either family itself."""
SHARED_NAMES = (
    "TORCHELASTIC_RUN_ID",
    "TORCHELASTIC_MAX_RESTARTS",
    "TORCH_NCCL_ASYNC_ERROR_HANDLING",
    "OMP_NUM_THREADS",
)
"""What it is told of the job's variables, beside those that only one worker has."""


def registered_layout(config: JobConfig) -> RegisteredLayout:
    """Find the class that the configuration names and make one of it.

    Raises `UsageError` where that cannot be done.
    """
    name = config.logs_specs or ""
    try:
        specs = _make(_load(name), config.output)
    except UsageError:
        raise
    except (Exception, SystemExit) as error:
        raise UsageError(
            f"the logs specs {name} cannot be made: {_in_words(error)}", _where(error)
        ) from error
    if not callable(getattr(specs, "reify", None)):
        kind = type(specs).__name__
        raise UsageError(
            f"the logs specs {name} is a {kind}, which has no `reify`",
            "register a subclass of torch.distributed.elastic.multiprocessing.LogsSpecs",
        )
    return RegisteredLayout(name, specs, config)


class RegisteredLayout:
    """Asks the registered object at the start of every round."""

    def __init__(self, name: str, specs: Any, config: JobConfig) -> None:
        self._name = name
        self._specs = specs
        self._output = config.output
        self._told = (*environment.per_worker(config), *SHARED_NAMES)
        self._emptied: set[str] = set()

    def begin(self, logs: JobLogs, restart_count: int, environments: Environments) -> RoundLogs:
        """A `Layout`."""
        given = {rank: self._own(variables) for rank, variables in environments.items()}
        names = {rank: set(own) for rank, own in given.items()}
        destination = self._reify(given)
        try:
            places = _places(destination, len(environments))
            filtered = filtered_files(destination, (STDOUT, STDERR))
            _check_variables(given)
        except (AttributeError, LookupError, TypeError, ValueError) as error:
            problem = f"the logs specs {self._name} gave no full answer: {error}"
            raise LogsRefused(problem, is_permanent=True) from error
        for rank, own in given.items():
            for gone in names[rank] - own.keys():
                del environments[rank][gone]
            environments[rank].update(own)
        wanted = {
            number: filtered[number]
            for number in filtered_streams(self._output)
            if number in filtered
        }
        self._empty({*kept_files(destination), *wanted.values()})
        error_files = {
            rank: _error_file(destination, rank, variables, logs.error_file(restart_count, rank))
            for rank, variables in environments.items()
        }
        return RoundLogs(places, error_files, {n: Path(path) for n, path in wanted.items()})

    def _own(self, variables: dict[str, str]) -> dict[str, str]:
        return {name: variables[name] for name in self._told if name in variables}

    def _reify(self, given: Environments) -> Destination:
        try:
            destination: Destination = self._specs.reify(given)
        except (Exception, SystemExit) as error:
            problem = f"the logs specs {self._name} failed: {_in_words(error)}"
            raise LogsRefused(problem, _their_traceback(error)) from error
        return destination

    def _empty(self, files: set[str]) -> None:
        """Rule 4. Only plain files: a link may lead to our own output."""
        for path in files - self._emptied:
            self._emptied.add(path)
            try:
                if stat.S_ISREG(os.lstat(path).st_mode):
                    os.truncate(path, 0)
            except OSError:
                pass  # It is not there, or opening it later will tell what is wrong with it.


# Making one.


def _load(name: str) -> Callable[..., Any]:
    from importlib.metadata import entry_points

    for entry in entry_points(group=GROUP, name=name):
        loaded: Callable[..., Any] = entry.load()
        return loaded
    raise UsageError(f"no installed package registers logs specs {name}")


def _make(maker: Callable[..., Any], output: Output) -> Any:
    std = _std_for(maker)
    ranks = output.local_ranks_filter
    return maker(
        log_dir=output.log_dir,
        redirects=_streams(std, output.redirects, output.redirects_default),
        tee=_streams(std, output.tee, output.tee_default),
        local_ranks_filter=None if ranks is None else set(ranks),
    )


def _streams(std: Callable[[int], int], by_rank: dict[int, int], otherwise: int) -> Any:
    """One for all, or by local rank, as it was said on the command line."""
    if by_rank:
        return {local_rank: std(streams) for local_rank, streams in by_rank.items()}
    return std(otherwise)


def _std_for(maker: Callable[..., Any]) -> Callable[[int], int]:
    """The `Std` beside the oldest ancestor that has one; a plain number says the same."""
    ancestors = [base.__module__ for base in reversed(getattr(maker, "__mro__", ()))]
    for module in (*ancestors, getattr(maker, "__module__", ""), *FAMILIES):
        found = getattr(sys.modules.get(module), "Std", None)
        if isinstance(found, type) and issubclass(found, IntFlag):
            return found
    return int


# Judging what it answers.


def _places(destination: Destination, workers: int) -> dict[int, dict[int, StreamDestination]]:
    """Whatever is missing raises, here and not later."""
    for what in ("stdouts", "stderrs"):
        ranks = sorted(getattr(destination, what))
        if ranks != list(range(workers)):
            raise ValueError(
                f"{what} has the local ranks {ranks}, and must have 0 to {workers - 1}"
            )
    for local_rank in range(workers):
        os.fspath(destination.error_files.get(local_rank, ""))
    return {
        rank: {number: place_in(destination, rank, number) for number in (STDOUT, STDERR)}
        for rank in range(workers)
    }


def _error_file(
    destination: Destination, local_rank: int, variables: dict[str, str], ours: Path | None
) -> Path | None:
    """Rule 5."""
    named = destination.error_files.get(local_rank, variables.get(ERROR_FILE))
    if named is None:
        return ours
    path = os.fspath(named)
    return None if path in ("", os.devnull) else Path(path)


def _check_variables(given: Environments) -> None:
    for local_rank, own in given.items():
        for name, value in own.items():
            if not isinstance(value, str):
                raise TypeError(f"{name} of local rank {local_rank} is {value!r}, and no text")


def _in_words(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


def _where(error: BaseException) -> str:
    """The line that raised, unless it is one of ours."""
    import traceback

    frames = traceback.extract_tb(error.__traceback__)
    if not frames or frames[-1].filename == __file__:
        return ""
    return f"raised at {frames[-1].filename}:{frames[-1].lineno}"


def _their_traceback(error: BaseException) -> str:
    """From the first frame that is not ours."""
    import traceback

    theirs = error.__traceback__.tb_next if error.__traceback__ else None
    return "".join(traceback.format_exception(type(error), error, theirs)) if theirs else ""
