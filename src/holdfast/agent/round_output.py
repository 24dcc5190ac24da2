"""What the workers of one round read and write, and the variables that they find.

Made when the first of them is to start, for all of them: some may start warm and the others
cold, and where they write is decided once for the round. Closed when nothing of it is left.
"""

from __future__ import annotations

import os
from pathlib import Path

from msgspec import Struct

from holdfast.core.config import JobConfig, Output
from holdfast.core.model import Ranks
from holdfast.workers.console import Console
from holdfast.workers.event_loop import Loop
from holdfast.workers.output import Surroundings, WorkerStreams, open_planned
from holdfast.workers.round_logs import Environments, RoundLogs
from holdfast.workers.stream_plans import STDERR, STDOUT, StreamPlan, WorkerIdentity, plan_stream

ERROR_FILE = "TORCHELASTIC_ERROR_FILE"


class Berth(Struct, frozen=True):
    """What is ready for one worker."""

    streams: WorkerStreams
    variables: dict[str, str]
    error_file: Path | None


class RoundOutput:
    """The places of a round, and what is open of them."""

    def __init__(
        self,
        number: int,
        logs: RoundLogs,
        environments: Environments,
        console: Console,
        loop: Loop,
    ) -> None:
        self.round = number
        self._logs = logs
        self._environments = environments
        self._console = console
        self._loop = loop
        self._filters = logs.open_filters(console)

    def berth(self, config: JobConfig, ranks: Ranks) -> Berth:
        """Open what a worker writes to. Raises OSError when there are no descriptors left."""
        error_file = self._ready_error_file(ranks.local_rank)
        variables = self._environments[ranks.local_rank]
        if error_file is not None:
            variables.setdefault(ERROR_FILE, str(error_file))
        identity = WorkerIdentity(ranks.local_rank, ranks.rank, config.role, config.slots)
        plans = [self._plan(config.output, identity, number) for number in (STDOUT, STDERR)]
        surroundings = Surroundings(self._console, self._loop, self._filters, object())
        return Berth(open_planned(plans[0], plans[1], surroundings), variables, error_file)

    def close(self) -> None:
        if self._filters is not None:
            self._filters.close()

    def _plan(self, output: Output, identity: WorkerIdentity, number: int) -> StreamPlan:
        place = self._logs.place(identity.local_rank, number)
        return plan_stream(place, output, identity, number)

    def _ready_error_file(self, local_rank: int) -> Path | None:
        """Its path, with nothing there: what an earlier round left is not its own."""
        path = self._logs.error_file(local_rank)
        if path is None:
            return None
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            if path.is_file():
                path.unlink()
        except OSError as error:
            text = f"holdfast: cannot make {path}: {error.strerror}; errors are missing there\n"
            self._console.write(2, os.fsencode(text))
        return path


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
