"""What is known of a worker that crashed."""

from __future__ import annotations

from holdfast.core.node_io import WorkerExited
from holdfast.core.policy.config import Program
from holdfast.core.protocol.model import ExitStatus
from holdfast.processes.failures import with_details, with_evidence
from holdfast.processes.host.oom import OutOfMemoryWatch

CRASH = """Fatal Python error: Segmentation fault

Thread 0x00007f0000000001 (most recent call first):
  File "/job/loader.py", line 3 in read

Current thread 0x00007f0000000002 (most recent call first):
  File "/job/train.py", line 66 in step
  File "/x/holdfast/processes/zygote/run_as_main.py", line 184 in run

Extension modules: numpy (total: 1)
"""


def event(status: ExitStatus) -> WorkerExited:
    return WorkerExited(1, 0, 100, status)


def told(status: ExitStatus, stack: str) -> str:
    memory = OutOfMemoryWatch()
    known = with_evidence(event(status), memory, stack)
    program = Program("script", "train.py")
    return with_details(known, None, lambda lines: "", program).error.traceback


def test_the_stack_of_the_thread_that_crashed_is_kept_without_our_frames() -> None:
    assert told(ExitStatus(signal=11), CRASH).splitlines() == [
        "Fatal Python error: Segmentation fault",
        "Current thread 0x00007f0000000002 (most recent call first):",
        '  File "/job/train.py", line 66 in step',
    ]


def test_the_last_crash_counts_where_a_child_had_one_before() -> None:
    earlier = CRASH.replace("train.py", "child.py")
    assert "train.py" in told(ExitStatus(signal=11), earlier + CRASH)
    assert "child.py" not in told(ExitStatus(signal=11), earlier + CRASH)


def test_what_is_no_crash_leaves_no_stack() -> None:
    for text in ("", "Current thread 0x0 (most recent call first):\n", "Fatal Python error: x"):
        assert told(ExitStatus(signal=11), text) == ""
    assert told(ExitStatus(code=1), CRASH) == "", "it ended by itself, after a child had crashed"
