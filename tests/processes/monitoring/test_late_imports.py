"""What the agent imports of its looks at workers, and when: never where somebody waits for it."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

MONITORING = "holdfast.processes.monitoring"
SETTING = """
import os, sys
from pathlib import Path
from holdfast.core.protocol.model import Ranks
from holdfast.processes.monitoring import monitor
from holdfast.processes.monitoring.pages import StackMeans
from holdfast.processes.output.log_files import AT_ONCE
from holdfast.runtime.loop import EventLoop
places = {"TORCH_FR_DUMP_TEMP_FILE": sys.argv[1] + "/of rank "}
means = StackMeans(EventLoop(), AT_ONCE, AT_ONCE, os.getpid(), places)
watched = monitor.WatchedRound(1, 1, 3600.0, stacks_folder=Path(sys.argv[1], "kept"))
watch = monitor.Monitor(watched, means, print)
watch.started(Ranks(rank=0, local_rank=0, role_rank=0), os.getpid())
"""


def imported_by(code: str, before: str, folder: Path) -> set[str]:
    """The modules that this brings into an interpreter that watches a worker."""
    program = f"{SETTING}\n{before}\nbefore = set(sys.modules)\n{code}\n"
    program += "print(*(set(sys.modules) - before))"
    command = [sys.executable, "-I", "-c", program, str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    return set(done.stdout.split())


def test_the_loop_finds_loaded_what_looks_need(tmp_path: Path) -> None:
    looks = "from holdfast.core.policy import hangs, stuck, worker_progress\n"
    looks += f"from {MONITORING} import checks, stacks"
    assert imported_by(looks, "", tmp_path)
    assert imported_by(looks, "monitor.load()", tmp_path) == set()


def test_keeping_the_flight_record_of_a_failed_worker_loads_nothing_for_stacks(
    tmp_path: Path,
) -> None:
    record, later = tmp_path / "of rank 0", time.time() + 100
    record.write_bytes(b"written by the worker")
    os.utime(record, (later, later))
    keeping = "watch.keep_flight_record(0)"
    assert imported_by(keeping, "", tmp_path) == {f"{MONITORING}.flight_records"}
    assert (tmp_path / "kept" / "flight_record_rank_0").exists()
