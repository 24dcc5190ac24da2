"""What happens to each stream of each process, from where its `LogsDest` says that it goes."""

from __future__ import annotations

import os

from msgspec import Struct

from holdfast.elastic.multiprocessing.logs_specs import LogsDest
from holdfast.processes.output import stream_plans as destinations
from holdfast.processes.output.stream_plans import StreamPlan, WorkerIdentity, pipe_bytes


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
        kept = destinations.kept_files(self.destination)
        for path in (*kept, *self.filtered_files().values()):
            with open(path, "wb"):
                pass

    def filtered_files(self) -> dict[int, str]:
        """Where lines that match are copied to, by stream."""
        wanted = [number for number, words in self.filters.items() if words]
        return destinations.filtered_files(self.destination, wanted)

    def of(self, local_rank: int, number: int) -> StreamPlan | None:
        """The plan of one stream; None where it is this process's own."""
        place = destinations.place_in(self.destination, local_rank, number)
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


def _template(prefix: str) -> str:
    """A prefix is as it should be, but for the pid, which nobody knew."""
    return prefix.replace("$", "$$").replace("$${pid}", "${pid}")
