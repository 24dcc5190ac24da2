"""What is known of a worker that failed: its own words, its last output, the kernel's doing.

The kernel is asked at once (`with_evidence`). What the worker left lies on a disk, and is read
where waiting for that holds up nobody (`with_details`).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from signal import SIGKILL

from msgspec.structs import replace

from holdfast.core.node_io import WorkerExited
from holdfast.core.policy.config import Program
from holdfast.core.protocol.model import ErrorDetail
from holdfast.processes import failures
from holdfast.processes.host.oom import OutOfMemoryWatch

SEARCHED_LINES = 200
"""How far back in stderr a traceback is looked for."""
SHOWN_LINES = 20
PATIENCE_S = 2.0
"""How long a failure waits to be told for the disk that has its details."""
CRASH = "Fatal Python error: "
UNREAD = "(what it left could not be read: its disk did not answer)"


def with_evidence(event: WorkerExited, memory: OutOfMemoryWatch, stack: str) -> WorkerExited:
    """The event with what is known of it without a disk: as it is told if that does not answer.

    `stack` is what its crash handler left (`processes.stdlib_only.stack_handler`), if anything.
    """
    was_killed = event.status.signal == SIGKILL
    return replace(
        event,
        error=ErrorDetail(traceback=_of_crash(stack) if event.status.signal else ""),
        stderr_tail=UNREAD,
        out_of_memory=memory.evidence(event.pid) if was_killed else "",
        wall_time=time.time(),
    )


def with_details(
    event: WorkerExited,
    error_file: Path | None,
    read_stderr: Callable[[int], str],
    program: Program,
    find_versions: Callable[[], str] | None = None,
) -> WorkerExited:
    """The event with all that can be found out about it, now that its output is in."""
    import holdfast.core.policy.kinds  # noqa: F401 - for the loop, which needs it next

    tail = read_stderr(SEARCHED_LINES)
    error = ErrorDetail() if error_file is None else failures.read_error(error_file)
    if not error.traceback and event.error.traceback:
        from holdfast.core.policy.stacks import without_own_frames

        error = replace(error, traceback=without_own_frames(event.error.traceback))
    there = str(error_file) if error_file is not None and error_file.exists() else ""
    if not error.traceback and event.status.signal is None:
        error = failures.completed_from_stderr(error, tail)
    error = failures.with_place_of_module(error, program)
    shown = "\n".join(tail.splitlines()[-SHOWN_LINES:])
    versions = find_versions() if find_versions is not None else ""
    return replace(event, error=error, stderr_tail=shown, error_file=there, versions=versions)


def _of_crash(text: str) -> str:
    """The stack of the thread that crashed, of what `faulthandler` wrote of all of them last."""
    _, found, crash = text.rpartition(CRASH)
    before, current, thread = crash.partition("Current thread ")
    if not found or not current:
        return ""
    frames = thread.partition("\n\n")[0].rstrip()
    what = before.partition("\n")[0]
    return f"{CRASH}{what}\nCurrent thread {frames}\n"
