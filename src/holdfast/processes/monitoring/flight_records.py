"""PyTorch's flight record of a rank's collectives, kept beside the stacks.

It gets another name than the one that the next attempt writes over. It is a pickle, so it is copied
and never opened here: to unpickle is to run whatever a file says.

It is imported when a worker has failed and the next attempt begins, so it needs nothing of what
takes stacks. All of it is for a lane.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

PREFIX_VARIABLES = ("TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE")
"""The newer one first, as PyTorch has it: a path to which the rank is added."""
SIZE_MOST = 256 << 20
BLOCK = 1 << 20


def keep(environ: Mapping[str, str], rank: int, since: float, folder: Path) -> str:
    """Copy what was written for this rank since then, by this user; the copy's path, or nothing."""
    for prefix in _prefixes(environ):
        with suppress(OSError):
            if _copy(f"{prefix}{rank}", since, folder / f"flight_record_rank_{rank}"):
                return str(folder / f"flight_record_rank_{rank}")
    return ""


def _prefixes(environ: Mapping[str, str]) -> list[str]:
    """Where PyTorch writes: what is set, else its own places, of today and of earlier versions."""
    named = [environ[name] for name in PREFIX_VARIABLES if environ.get(name)]
    if named:
        return named
    cache = environ.get("XDG_CACHE_HOME") or f"{environ.get('HOME', '')}/.cache"
    return [f"{cache}/torch/comm_lib_trace_rank_", "/tmp/nccl_trace_rank_"]


def _copy(source: str, since: float, target: Path) -> bool:
    """Nobody else's file, none of an earlier job, and nothing that is no file."""
    reader = os.open(source, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        found = os.fstat(reader)
        is_ours = stat.S_ISREG(found.st_mode) and found.st_uid == os.geteuid()
        if not is_ours or found.st_mtime < since or not 0 < found.st_size <= SIZE_MOST:
            return False
        target.parent.mkdir(parents=True, exist_ok=True)
        with open(target, "wb") as copy:
            while block := os.read(reader, BLOCK):
                copy.write(block)
    finally:
        os.close(reader)
    return True
