"""Which of a process's two output streams is meant, and for which of the local ranks."""

from __future__ import annotations

import re
from enum import IntFlag

__all__ = ["Std", "to_map"]

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
