"""What the workers of one round read and write, and the variables that they find.

Made when the first of them is to start, for all of them: some may start warm and the others
cold, and where they write is decided once for the round. Closed when nothing of it is left.

Rules
- `prepare` is all that may have to wait for a disk, or for somebody's own class that says where
  workers write. It runs in a lane of the disk, one call at a time; the rest is for the loop.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path

from msgspec import Struct

from holdfast.core.policy.config import JobConfig
from holdfast.core.protocol.model import Ranks
from holdfast.processes.output.console import Console
from holdfast.processes.output.log_files import (
    Lane,
    LogFile,
    Opened,
    close_file,
    open_to_append,
)
from holdfast.processes.output.output import Surroundings, WorkerStreams, open_planned
from holdfast.processes.output.recent import RecentOutput
from holdfast.processes.output.round_logs import Environments, LogsRefused, RoundLogs
from holdfast.processes.output.stream_plans import (
    STDERR,
    STDOUT,
    StreamPlan,
    WorkerIdentity,
    plan_stream,
)
from holdfast.runtime.loop import Loop
from holdfast.worker.error_file import VARIABLE as ERROR_FILE


class Around(Struct, frozen=True):
    """What the output of every round needs."""

    config: JobConfig
    console: Console
    loop: Loop
    lane: Lane
    """Where files are written."""
    recent: RecentOutput


class PreparedStreams(Struct, frozen=True):
    """What was made ready for one worker."""

    ranks: Ranks
    plans: dict[int, StreamPlan]
    opened: dict[int, Opened]
    """The files that it writes to itself, by the number of the stream."""
    variables: dict[str, str]
    error_file: Path | None
    problem: str = ""


class RoundOutput:
    """The places of a round, and what is open of them."""

    def __init__(
        self,
        number: int,
        begin: Callable[[], RoundLogs],
        environments: Environments,
        around: Around,
    ) -> None:
        """`begin` says where the round's workers write; it may change their environments."""
        self.round = number
        self._begin = begin
        self._environments = environments
        self._around = around
        self._logs: RoundLogs | None = None
        self._filters: dict[int, LogFile] | None = None
        """By stream, for lines that match; None until the first worker starts."""

    # In a lane.

    def prepare(self, workers: list[Ranks]) -> list[PreparedStreams] | LogsRefused:
        """Make ready what workers write to."""
        if self._logs is None:
            try:
                self._logs = self._begin()
            except LogsRefused as refusal:
                return refusal
        return [self._prepared(ranks, self._logs) for ranks in workers]

    def _prepared(self, ranks: Ranks, logs: RoundLogs) -> PreparedStreams:
        error_file = logs.error_files[ranks.local_rank]
        problem = _clear_error_file(error_file) if error_file is not None else ""
        variables = self._environments[ranks.local_rank]
        if error_file is not None:
            variables.setdefault(ERROR_FILE, str(error_file))
        config = self._around.config
        identity = WorkerIdentity(ranks.local_rank, ranks.rank, config.role, config.slots)
        plans = {
            number: plan_stream(place, config.output, identity, number)
            for number, place in logs.places[ranks.local_rank].items()
        }
        for plan in plans.values():
            plan.prefix("")  # Whatever that has to import is imported here, not on the loop.
        opened = {
            number: open_to_append(plan.file)
            for number, plan in plans.items()
            if plan.direct and plan.file
        }
        return PreparedStreams(ranks, plans, opened, variables, error_file, problem)

    # On the loop.

    def open(self, ready: PreparedStreams) -> WorkerStreams:
        """Open the rest. Raises OSError when there are no descriptors left."""
        around = self._around
        if ready.problem:
            around.console.write(2, os.fsencode(f"holdfast: {ready.problem}\n"))
        surroundings = Surroundings(
            around.console, around.loop, self._shared_filters(), object(), around.lane,
            around.recent,
        )  # fmt: skip
        _note_files(around.recent, ready)
        return open_planned(ready.plans[STDOUT], ready.plans[STDERR], surroundings, ready.opened)

    def discard(self, ready: PreparedStreams) -> None:
        """It is not needed after all."""
        for opened in ready.opened.values():
            self._around.lane.do(partial(close_file, opened.descriptor))

    def _shared_filters(self) -> dict[int, LogFile]:
        """Opened with the first worker."""
        assert self._logs is not None, "a worker is opened that was not made ready"
        if self._filters is None:
            console, lane = self._around.console, self._around.lane
            wanted = self._logs.filtered.items()
            self._filters = {number: LogFile(path, console, lane) for number, path in wanted}
        return self._filters

    def close(self) -> None:
        for file in (self._filters or {}).values():
            file.close()


def _note_files(recent: RecentOutput, ready: PreparedStreams) -> None:
    """Which of its streams a worker writes into a file itself."""
    for number, plan in ready.plans.items():
        at = (ready.ranks.rank, number)
        if plan.direct and plan.file:
            recent.files[at] = str(plan.file)
        else:
            recent.files.pop(at, None)


def _clear_error_file(path: Path) -> str:
    """Have nothing at its path: what an earlier round left is not its own. Or what is wrong."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.is_file():
            path.unlink()
    except OSError as error:
        return f"cannot make {path}: {error.strerror}; errors are missing there"
    return ""


def standard_input(local_rank: int) -> int:
    """Local rank 0 reads what the agent would; the others find nothing there."""
    if local_rank == 0:
        try:
            return os.dup(0)
        except OSError:
            pass  # The agent was started with its standard input closed.
    return null_device(os.O_RDONLY)


def null_device(mode: int) -> int:
    return os.open(os.devnull, mode | os.O_CLOEXEC)
