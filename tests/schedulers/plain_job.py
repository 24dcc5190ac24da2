"""A program for nodes that a scheduler placed: does steps until it is told to finish.

    plain_job.py FOLDER

What each worker did stands in a file of its own in the folder, in the lines that
`tests/integration/nodes/story.py` reads. A file `finish` in the folder ends all workers well;
`fail.HOST` makes those of that host raise once, and goes with it. Nothing is imported that takes
time: many of them run on one machine.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import time
from pathlib import Path

STEP_S = 0.05


def main() -> None:
    folder = Path(sys.argv[1])
    names = {"round": "HOLDFAST_ROUND", "rank": "RANK", "world": "WORLD_SIZE"}
    who: dict[str, int | str] = {key: int(os.environ[name]) for key, name in names.items()}
    who |= {"host": socket.gethostname(), "pid": os.getpid()}
    name = "worker.{host}.{round}.{rank}.{pid}.jsonl".format(**who)
    file = os.open(folder / name, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    world = int(os.environ["WORLD_SIZE"])

    def write(did: str, **more: int) -> None:
        line = {"did": did, "time": time.monotonic(), **who, **more}
        os.write(file, json.dumps(line).encode() + b"\n")

    write("start")
    fail = folder / f"fail.{who['host']}"
    step = 0
    while not (folder / "finish").exists():
        if fail.exists():
            fail.unlink()
            raise RuntimeError("told to fail")
        step += 1
        write("step", step=step, sum=world * (world + 1) // 2)
        time.sleep(STEP_S)
    print(f"rank {os.environ['RANK']} of {world} on {who['host']}", flush=True)


if __name__ == "__main__":
    main()
