"""The soak: a PyTorch job under injected faults for a long time, which checks its own arithmetic.

    make soak [FOR=1h]
    python -m benchmarks.soak --for 5m [--seed N] [--out FOLDER]

Three agents on this machine with one worker for each processor, DDP over gloo
(`programs/added_up.py`), a fault every 30 s on average: a worker is killed, or stopped for a
second, or a whole node is killed and started again. At the end it says where the time went, and
writes the same to FOLDER/summary.txt, with the numbers in FOLDER/summary.json. The status is 0 if
nothing was lost or left behind.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
from pathlib import Path

import msgspec

from holdfast.admin.client import AdminClient
from holdfast.cli import chaos_demo
from holdfast.cli.demo_job import DemoProgram
from holdfast.cli.fault_injection import FaultSchedule, InjectionLines
from holdfast.cli.time_arguments import duration
from holdfast.core.policy.fault_schedule import FaultRate, plan_faults
from holdfast.observe.summary import length

FAULTS = (
    FaultRate("kill worker", 40.0),
    FaultRate("pause worker", 240.0, 1.0),
    FaultRate("kill node", 240.0),
)
"""Together one fault in 30 s."""
NODES = 3
WORKERS = max(1, (os.cpu_count() or 1) // NODES)
"""One rank for each processor, as people run them, or at least one for each node."""
FILE = Path(__file__).parent / "programs" / "added_up.py"
GOAL = 0.97


class NotingLoad(InjectionLines):
    """Says what happens, and notes how busy the machine is meanwhile."""

    def __init__(self) -> None:
        self.loads: list[float] = []

    def refresh(self, job: AdminClient) -> None:
        self.loads.append(os.getloadavg()[0])

    def words(self) -> str:
        found = sorted(self.loads) or [0.0]
        middle = f"{found[len(found) // 2]:.1f}, at most {found[-1]:.1f}"
        return f"load of this machine, over a minute: {middle}; processors: {os.cpu_count()}\n"


def main(words: list[str]) -> int:
    asked = _parse(words)
    length_s, dice = duration(asked.length), random.Random(asked.seed)
    folder = Path(asked.out)
    print(f"a soak of {length(length_s)}, seed {asked.seed}", flush=True)
    schedule = FaultSchedule(plan_faults(FAULTS, length_s, dice), length_s, dice)
    view = NotingLoad()
    result = chaos_demo.run(DemoProgram(FILE, NODES, WORKERS), schedule, view)
    goodput = result.report.ledger.goodput or 0.0
    text = f"{chaos_demo.render(result)}{view.words()}goal: goodput of at least {GOAL:.0%}: "
    text += "reached\n" if goodput >= GOAL else "missed\n"
    print(text, end="", flush=True)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "summary.txt").write_text(text)
    (folder / "summary.json").write_bytes(msgspec.json.encode(_numbers(result)))
    return 0 if result.is_well else 1


def _parse(words: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.soak")
    parser.add_argument("--for", dest="length", default="1h", metavar="TIME")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6))
    parser.add_argument("--out", default=".soak", metavar="FOLDER")
    return parser.parse_args(words)


def _numbers(result: chaos_demo.DemoResult) -> dict[str, object]:
    book, told = result.report.ledger, result.told
    return {
        "seconds": book.end - book.start,
        "goodput": book.goodput,
        "parts_s": book.parts_s,
        "incidents": [
            {"reason": one.reason, "parts_s": one.parts_s, "steps_lost": one.steps_lost}
            for one in book.incidents
        ],
        "faults": told.faults,
        "recoveries_s": told.recoveries_s,
        "started_again": result.started_again,
        "is_right": result.is_right,
        "left": result.left,
    }


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
