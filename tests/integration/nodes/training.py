"""A training program but for its group: adds up with the others, step by step, until told to end.

    socket_job.py FOLDER
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
- `saves`: workers ask at each step whether they are to save, and do it together.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

import holdfast

STEP_S = 0.05
PULSE_S = 0.02


class Group(Protocol):
    """All workers of a round. Whoever waits for one that is gone fails, as training does."""

    def add_up(self, *values: int) -> list[int]:
        """The sums of what all have brought, once all have."""

    def leave(self) -> None:
        """Nothing more is to be added up."""


class Diary:
    """What this worker did, for the tests to read."""

    def __init__(self, folder: Path) -> None:
        names = {"round": "HOLDFAST_ROUND", "rank": "RANK", "world": "WORLD_SIZE"}
        numbers = {key: int(os.environ[name]) for key, name in names.items()}
        self.rank = numbers["rank"]
        self.who = {**numbers, "host": socket.gethostname(), "pid": os.getpid()}
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


def wait_while(path: Path) -> None:
    while path.exists():
        time.sleep(PULSE_S)


def train(meet: Callable[[], Group]) -> None:
    """`meet` waits until all workers of the round are there."""
    folder = Path(sys.argv[1])
    diary = Diary(folder)
    diary.write("start")
    threading.Thread(target=diary.keep_alive, daemon=True).start()
    host = socket.gethostname()
    wait_while(folder / f"hold.{host}")
    group = meet()
    step, wishes = 0, 0
    while not wishes:
        if (folder / f"fail.{host}").exists():
            raise RuntimeError(f"told to fail on {host}")
        wish = (folder / "finish").exists()
        total, wishes = group.add_up(diary.rank + 1, int(wish))
        step += 1
        diary.write("step", step=step, sum=total)
        holdfast.progress(step)
        if (folder / "saves").exists() and (drain := holdfast.draining(step)):
            group.add_up(step)
            diary.write("save", step=step)
            drain.saved()
        time.sleep(STEP_S)
    diary.write("end", step=step)
    group.leave()
    wait_while(folder / f"linger.{host}")
