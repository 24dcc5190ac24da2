"""What all oversight costs a job that steps every millisecond.

    python -m benchmarks.oversight_cost

Two jobs, one after the other: in one nobody looks (`--hang off --no-stacks`, and no word of
progress), in the other all is on, with looks for hangs twelve times as often as by default. Each
step is a millisecond of computation. Two things are counted, each where it is spent:

- in the worker, what a step takes of its processor: the same steps with and without `progress` in
  blocks that take turns, so that whatever else the machine does hits both, and the median of the
  ratios of neighbours;
- in the agent, all the processor time of its threads while the worker steps, as a share of one
  processor, with all on and with all off.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

STEP_S = 1e-3
BLOCKS, STEPS = 60, 100
ON = ("--hang=warn", "--hang-after=25")
OFF = ("--hang=off", "--no-stacks")


def amount_of_work() -> int:
    """How far to count for a millisecond, on the processor of this process."""
    count = 1000
    while True:
        taken = min(_timed(lambda: sum(range(count))) for _ in range(5))  # noqa: B023 - called here
        if taken >= STEP_S:
            return count
        count = int(count * min(2.0, 1.05 * STEP_S / max(taken, 1e-6)))


def _timed(work: Callable[[], object]) -> float:
    began = time.process_time()
    work()
    return time.process_time() - began


def agent_processor_s() -> float:
    """What the agent, the parent of this worker's parent, has used so far."""
    spawner = Path(f"/proc/{os.getppid()}/stat").read_text()
    agent = spawner.rpartition(")")[2].split()[1]
    threads = Path(f"/proc/{agent}/task").iterdir()
    return sum(int((one / "schedstat").read_text().split()[0]) for one in threads) / 1e9


def measure(with_progress: bool) -> dict[str, float]:
    """In the worker."""
    import holdfast

    count = amount_of_work()
    step = 0

    def block(says: bool) -> float:
        nonlocal step
        began = time.process_time()
        for _ in range(STEPS):
            sum(range(count))
            if says:
                step += 1
                holdfast.progress(step)
        return time.process_time() - began

    block(with_progress)
    time.sleep(3)  # What is loaded a while after the start is no part of a step.
    began, agent = time.monotonic(), agent_processor_s()
    ratios = [block(with_progress) / block(False) for _ in range(BLOCKS)]
    elapsed_s = time.monotonic() - began
    return {
        "worker": statistics.median(ratios) - 1,
        "agent": (agent_processor_s() - agent) / elapsed_s,
        "seconds": elapsed_s,
    }


def run(folder: str, name: str, *words: str) -> dict[str, float]:
    command = [str(Path(sys.executable).parent / "holdfast"), "run", "--no-warm", *words]
    place = Path(folder) / name
    subprocess.run([*command, "-m", "benchmarks.oversight_cost", name, place], check=True)
    found: dict[str, float] = json.loads(place.read_text())
    return found


def main() -> int:
    if len(sys.argv) > 2:
        Path(sys.argv[2]).write_text(json.dumps(measure(sys.argv[1] == "on")))
        return 0
    with tempfile.TemporaryDirectory() as folder:
        off, on = run(folder, "off", *OFF), run(folder, "on", *ON)
    print(f"{'':24} {'all off':>9} {'all on':>9}")
    print(f"{'a step of the worker':24} {off['worker']:>+9.3%} {on['worker']:>+9.3%}")
    print(f"{'the agent':24} {off['agent']:>9.3%} {on['agent']:>9.3%}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
