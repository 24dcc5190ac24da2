"""What `holdfast.progress` and `phase` cost a worker: `python -m benchmarks.progress_cost`.

A real job of two workers, each of which times calls in batches and gives the best and the median
batch; beside them what a call cost that sent a message over the channel, as every step once did.
The share is of a program that steps every millisecond, which is what 0.3 % was asked of.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

BATCHES, CALLS = 200, 5000
WORKERS = 2
STEP_S = 1e-3


def batches(call: Callable[[int], object], calls: int = CALLS) -> list[float]:
    """Seconds a call, of each batch."""
    taken = []
    for _ in range(BATCHES):
        began = time.perf_counter()
        for number in range(calls):
            call(number)
        taken.append((time.perf_counter() - began) / calls)
    return taken


def nothing(number: int) -> None:
    """What a loop with a call costs by itself."""


def measure() -> dict[str, list[float]]:
    """In a worker."""
    import holdfast
    from holdfast.worker.channel import Channel

    def phase(number: int) -> None:
        with holdfast.phase("checkpoint"):
            pass

    channel = Channel()
    return {
        "an empty call": batches(nothing),
        "progress(step)": batches(holdfast.progress),
        'with phase("checkpoint")': batches(phase, CALLS // 5),
        "a message over the channel": batches(lambda n: channel.send({"was": n}), CALLS // 50),
    }


def main() -> int:
    if len(sys.argv) > 1:
        path = Path(sys.argv[1]) / f"worker-{time.monotonic_ns()}.json"
        path.write_text(json.dumps(measure()))
        return 0
    with tempfile.TemporaryDirectory() as folder:
        command = [str(Path(sys.executable).parent / "holdfast"), "run", "--no-warm"]
        command += ["-n", str(WORKERS), "-m", "benchmarks.progress_cost", folder]
        subprocess.run(command, check=True)
        found = [json.loads(path.read_text()) for path in Path(folder).iterdir()]
    print(f"{'':28} {'best':>9} {'median':>9}   share of a step of 1 ms")
    for name in found[0]:
        taken = [seconds for worker in found for seconds in worker[name]]
        best, median = min(taken), statistics.median(taken)
        share = f"{best / STEP_S:.3%} to {median / STEP_S:.3%}"
        print(f"{name:28} {best * 1e9:6.0f} ns {median * 1e9:6.0f} ns   {share}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
