"""What is known of a worker that failed: its own words, its last output, the kernel's doing."""

from __future__ import annotations

import time
from pathlib import Path
from signal import SIGKILL

from msgspec.structs import replace

from holdfast.core.agent_io import WorkerExited
from holdfast.core.model import ErrorDetail
from holdfast.workers import failures
from holdfast.workers.oom import OutOfMemoryWatch
from holdfast.workers.output import WorkerStreams

SEARCHED_LINES = 200
"""How far back in stderr a traceback is looked for."""
SHOWN_LINES = 20


def with_details(
    event: WorkerExited,
    error_file: Path | None,
    streams: WorkerStreams,
    memory: OutOfMemoryWatch,
) -> WorkerExited:
    """The event with all that can be found out about it, now that its output is in."""
    tail = streams.stderr_tail(SEARCHED_LINES)
    error = ErrorDetail() if error_file is None else failures.read_error(error_file)
    if not error.traceback and event.status.signal is None:
        error = failures.completed_from_stderr(error, tail)
    was_killed = event.status.signal == SIGKILL
    return replace(
        event,
        error=error,
        stderr_tail="\n".join(tail.splitlines()[-SHOWN_LINES:]),
        out_of_memory=memory.evidence(event.pid) if was_killed else "",
        error_file=str(error_file) if error_file is not None and error_file.exists() else "",
        wall_time=time.time(),
    )
