"""Workers that were asked for, and whose files are not ready yet.

Making them ready (folders, files that a worker writes to itself, error files of an earlier round)
may have to wait for a disk, so it happens in a lane. Until then a worker can be withdrawn, and
then it is never made. What was opened for one that nobody wants any more is closed.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from msgspec import Struct

from holdfast.core.node_io import StartWorkers
from holdfast.processes.output.log_files import Lane
from holdfast.processes.output.round_logs import LogsRefused
from holdfast.processes.output.round_output import PreparedStreams, RoundOutput


class PendingStart(Struct, eq=False):
    """What one order is about, and which of its workers are still wanted."""

    effect: StartWorkers
    output: RoundOutput
    local_ranks: set[int]


class Starts:
    """`start` gets workers that are ready, `refuse` the local ranks of those that cannot be."""

    def __init__(
        self,
        lane: Lane,
        start: Callable[[StartWorkers, RoundOutput, list[PreparedStreams]], None],
        refuse: Callable[[int, list[int], LogsRefused], None],
    ) -> None:
        self._lane, self._start, self._refuse = lane, start, refuse
        self._pending: list[PendingStart] = []

    def begin(self, effect: StartWorkers, output: RoundOutput) -> None:
        """Make them ready; of two orders for the same worker the later one counts."""
        self.withdraw(effect.local_ranks)
        pending = PendingStart(effect, output, set(effect.local_ranks))
        self._pending.append(pending)
        workers = [effect.assignment.workers[local_rank] for local_rank in effect.local_ranks]
        self._lane.do(partial(output.prepare, workers), partial(self._on_ready, pending))

    def withdraw(self, local_ranks: tuple[int, ...] | None = None) -> list[tuple[int, int]]:
        """Make none of these, or none at all; returns round and local rank of each."""
        withdrawn = []
        for pending in self._pending:
            named = pending.local_ranks if local_ranks is None else set(local_ranks)
            gone = sorted(pending.local_ranks & named)
            pending.local_ranks -= named
            withdrawn += [(pending.effect.assignment.round, rank) for rank in gone]
        return withdrawn

    def _on_ready(self, pending: PendingStart, made: list[PreparedStreams] | LogsRefused) -> None:
        self._pending.remove(pending)
        if isinstance(made, LogsRefused):
            self._refuse(pending.effect.assignment.round, sorted(pending.local_ranks), made)
            return
        wanted = []
        for ready in made:
            if ready.ranks.local_rank in pending.local_ranks:
                wanted.append(ready)
            else:
                pending.output.discard(ready)
        if wanted:
            self._start(pending.effect, pending.output, wanted)
