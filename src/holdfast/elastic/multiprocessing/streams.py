"""What happens to each stream of each process, from where its `LogsDest` says that it goes."""

from __future__ import annotations

import os
from pathlib import Path

from msgspec import Struct

from holdfast.elastic.multiprocessing.logs_specs import LogsDest
from holdfast.workers.output import StreamPlan, WorkerIdentity, pipe_bytes


class StreamPlans(Struct, frozen=True):
    """The plans of all processes of one context."""

    name: str
    nprocs: int
    destination: LogsDest
    prefixes: dict[int, str]
    """By local rank; for those not named, `[<name><local rank>]:`."""
    filters: dict[int, list[str]]
    """What a line must contain to be copied, for stdout (1) and stderr (2)."""

    def make_files(self) -> None:
        """Start every file empty: what an earlier start left is not of this one."""
        kept = (*self.destination.stdouts.values(), *self.destination.stderrs.values())
        for path in (*kept, *self.filtered_files().values()):
            if path and path != os.devnull:
                with open(path, "wb"):
                    pass

    def filtered_files(self) -> dict[int, str]:
        """Where lines that match are copied to, by stream."""
        paths = {1: self.destination.filtered_stdout, 2: self.destination.filtered_stderr}
        return {
            number: path
            for number, path in paths.items()
            if self.filters[number] and path and os.path.dirname(path) != os.devnull
        }

    def of(self, local_rank: int, number: int) -> StreamPlan | None:
        """The plan of one stream; None where it is this process's own."""
        kept, teed = self._places(number)
        path = kept[local_rank]
        if not path:
            return None
        shown = teed.get(local_rank, os.devnull) != os.devnull
        prefix = self.prefixes.get(local_rank, f"[{self.name}{local_rank}]:")
        return StreamPlan(
            number=number,
            file=Path(path),
            direct=not shown,
            to_console=shown,
            prefix_template=prefix.replace("$", "$$"),
            prefix_on_console=True,
            pass_through=False,
            filters=tuple(map(os.fsencode, self.filters[number])) if shown else (),
            pipe_bytes=pipe_bytes(self.nprocs),
            identity=WorkerIdentity(local_rank, local_rank, self.name, self.nprocs),
        )

    def _places(self, number: int) -> tuple[dict[int, str], dict[int, str]]:
        if number == 1:
            return self.destination.stdouts, self.destination.tee_stdouts
        return self.destination.stderrs, self.destination.tee_stderrs
