"""What the workers of a node use, seen on real processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from holdfast.processes.monitoring import kernel as usage
from holdfast.processes.monitoring.kernel import UsageWatch, read_accelerators, read_machine

from ...waiting import once

BUSY_CHILD = """
import subprocess, sys
subprocess.run([sys.executable, "-c", "bytearray(50_000_000)\\nwhile True: pass"])
"""


def test_processors_and_memory_are_those_of_a_worker_and_its_children() -> None:
    watch = UsageWatch()
    with subprocess.Popen([sys.executable, "-c", BUSY_CHILD], start_new_session=True) as worker:
        try:
            first = watch.read([worker.pid])[worker.pid]
            assert first.cpu is None

            def busy() -> usage.ProcessUsage | None:
                seen = watch.read([worker.pid])[worker.pid]
                return seen if (seen.cpu or 0.0) > 0.05 else None

            seen = once(busy, "its child uses a processor")
            assert seen.state == "running"
            assert seen.memory_bytes is not None
            assert seen.memory_bytes > 10_000_000
        finally:
            os.killpg(worker.pid, signal.SIGKILL)


def test_a_process_that_is_gone_is_left_out_and_forgotten() -> None:
    watch = UsageWatch()
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as worker:
        assert worker.pid in watch.read([worker.pid])
        worker.kill()
    assert watch.read([worker.pid]) == {}
    assert watch.seen == {}


def test_the_machine_says_what_is_left_of_it() -> None:
    machine = read_machine()
    assert machine.memory_free_bytes is not None
    assert machine.memory_free_bytes > 0


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("0, 87, 31207, 81559\n1, 0, 4, 81559\n",
         ("GPU 0: 87 %, 31.2 of 81.6 GB", "GPU 1: 0 %, 0.0 of 81.6 GB")),
        ("NVIDIA-SMI has failed because it couldn't communicate with the driver\n", ()),
        ("0, [N/A], 3, 4\n", ()),
        ("", ()),
    ],
)  # fmt: skip
def test_accelerators_are_told_in_a_line_each(text: str, lines: tuple[str, ...]) -> None:
    assert read_accelerators(text) == lines
