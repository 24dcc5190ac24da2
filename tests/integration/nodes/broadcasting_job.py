"""Training that saves as some frameworks do: in the handler of SIGTERM, with a broadcast of rank 0.

    broadcasting_job.py FOLDER

Between two steps the workers have nothing to do with each other. If only some of them get the
signal, these wait in their handler for the others.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path
from types import FrameType

import torch
import torch.distributed as dist


def save(_number: int, _frame: FrameType | None) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # It may come from the scheduler and from us.
    rank, folder = dist.get_rank(), Path(sys.argv[1])
    (folder / f"heard.{rank}").touch()
    word = torch.tensor([42 if rank == 0 else 0])
    dist.broadcast(word, src=0)
    (folder / f"saved.{rank}").write_text(str(word.item()))
    os._exit(0)


if __name__ == "__main__":
    dist.init_process_group("gloo")
    signal.signal(signal.SIGTERM, save)
    (Path(sys.argv[1]) / f"ready.{dist.get_rank()}").touch()
    while True:
        time.sleep(0.05)
