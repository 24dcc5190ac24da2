"""A training program: adds up over gloo, step by step, until it is told to finish.

    gloo_job.py FOLDER

What each worker did stands in a file of its own in the folder, one JSON line for what it
has just done: `start`, `step` (with the sum that it got), `end`; and `alive`, many times a
second from a thread of its own, so that one that hangs in a collective is still seen to run.
Times are of the monotonic clock, which is one for all hosts of a test.

What can be put into the folder to steer it:
- `finish`: all workers end with success, after the same step.
- `fail.HOST`: the workers of that host raise an exception.
- `hold.HOST`: the workers of that host wait, before the group forms, until it is gone.
- `linger.HOST`: the workers of that host end later than the others, when it is gone.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import threading
import time
from pathlib import Path

import torch
import torch.distributed as dist

import holdfast

STEP_S = 0.05
PULSE_S = 0.02


class Diary:
    """What this worker did, for the tests to read."""

    def __init__(self, folder: Path) -> None:
        names = {"round": "HOLDFAST_ROUND", "rank": "RANK", "world": "WORLD_SIZE"}
        self.who = {key: int(os.environ[name]) for key, name in names.items()}
        self.who |= {"host": socket.gethostname(), "pid": os.getpid()}
        name = "worker.{host}.{round}.{rank}.{pid}.jsonl".format(**self.who)
        self.file = os.open(folder / name, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def write(self, did: str, **more: int) -> None:
        line = {"did": did, "time": time.monotonic(), **self.who, **more}
        os.write(self.file, json.dumps(line).encode() + b"\n")

    def keep_alive(self) -> None:
        """Say all the time that this process runs, whatever its main thread waits for."""
        while True:
            time.sleep(PULSE_S)
            self.write("alive")


def add_up(finish: bool) -> tuple[int, bool]:
    """Return the sum of all ranks, counted from one, and whether anybody wants to finish."""
    values = torch.tensor([dist.get_rank() + 1, int(finish)])
    dist.all_reduce(values)
    total, wishes = values.tolist()
    return total, wishes > 0


def wait_while(path: Path) -> None:
    while path.exists():
        time.sleep(PULSE_S)


def main() -> None:
    folder = Path(sys.argv[1])
    diary = Diary(folder)
    diary.write("start")
    threading.Thread(target=diary.keep_alive, daemon=True).start()
    host = socket.gethostname()
    wait_while(folder / f"hold.{host}")
    dist.init_process_group("gloo")
    step, done = 0, False
    while not done:
        if (folder / f"fail.{host}").exists():
            raise RuntimeError(f"told to fail on {host}")
        total, done = add_up((folder / "finish").exists())
        step += 1
        diary.write("step", step=step, sum=total)
        holdfast.progress(step)
        time.sleep(STEP_S)
    diary.write("end", step=step)
    dist.destroy_process_group()
    wait_while(folder / f"linger.{host}")


if __name__ == "__main__":
    main()
