"""A program that is asked to save before its node leaves, and takes its time for it.

    saving_job.py FOLDER

Writes `asks.RANK` into the folder once it has asked, and `saved.RANK` when it has saved.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import holdfast

STEP_S = 0.05
SAVING_S = 1.0


def main() -> None:
    folder, rank = Path(sys.argv[1]), os.environ["RANK"]
    step = 0
    while not (drain := holdfast.draining(step)):
        (folder / f"asks.{rank}").touch()
        step += 1
        time.sleep(STEP_S)
    time.sleep(SAVING_S)
    (folder / f"saved.{rank}").touch()
    drain.saved()


if __name__ == "__main__":
    main()
