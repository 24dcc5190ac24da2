"""The program of `benchmarks.soak --plain`: it counts, resumes where it was, and checks itself.

Run by workers, with a folder as its argument. Rank 0 keeps the progress; all ranks continue from
there after a restart. It ends when the folder has a file called `enough`. Standard library only.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

from holdfast.worker.progress import progress

STEP_S = 0.05
SAVE_EVERY = 4
MODULUS = 2**61 - 1


def add(total: int, step: int) -> int:
    """Depends on the order: a step that is lost, or done twice, shows for ever after."""
    return (total * 31 + step) % MODULUS


def main(folder: Path) -> None:
    rank, kept = int(os.environ["RANK"]), folder / "checkpoint"
    step, total = map(int, kept.read_text().split()) if kept.exists() else (0, 0)
    while not (folder / "enough").exists():
        total = add(total, step)
        step += 1
        time.sleep(STEP_S)
        progress(step)
        if rank == 0 and step % SAVE_EVERY == 0:
            new = folder / "checkpoint.new"
            new.write_text(f"{step} {total}")
            new.replace(kept)
    wanted = 0
    for each in range(step):
        wanted = add(wanted, each)
    if total != wanted:
        raise ArithmeticError(f"{step:,} steps have not added up to what they must")
    print(f"{step:,} steps have added up to exactly what they must", flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
