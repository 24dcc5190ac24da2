"""What a dead worker left, read and passed up: its own words, its last output, the kernel's doing.

Rules
1. A dead worker's file is foreign input: missing, cut short, huge, of another shape or not
   a file at all, it never raises and never blocks. What can be understood is taken.
2. Every text that leaves here can be written as UTF-8, whatever the worker put in it.
3. The kernel is asked at once (`with_evidence`). What the worker left lies on a disk, and is read
   where waiting for that holds up nobody (`with_details`).
4. The process that launched *us* gets the cause as the worker wrote it, with the exit code added,
   or, where the worker wrote nothing, what we know in its stead.
5. For workers in which nothing of ours runs (a command), a traceback is looked for in what they
   wrote to stderr: a whole one, with its heading, its frames and the exception; the last one. One
   that the interpreter printed for a thread or a finaliser, which ends no process, is taken only
   for want of another; the line that says whose it is comes with it. What stands before the heading
   and before all lines that follow it (`[rank0]: `) is taken away.

The format is described in `worker.error_file`, which writes it.
"""

from __future__ import annotations

import math
import os
import re
import time
from collections.abc import Callable
from pathlib import Path
from signal import SIGKILL
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from holdfast.core.node_io import WorkerExited
from holdfast.core.protocol.model import ErrorDetail, Failure
from holdfast.processes.host.oom import OutOfMemoryWatch
from holdfast.worker import error_file

if TYPE_CHECKING:
    from collections.abc import Mapping

    from holdfast.core.policy.config import Program

HOOK_DIRECTORY = str(Path(__file__).resolve().parent.parent / "worker" / "hook")


def hook_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """The variables that make a cold Python worker leave its traceback by itself.

    `environ` is the environment that the worker would get without them. They are to be laid
    over it; the hook restores it before the script runs (see `worker/hook`). Empty where
    Holdfast is installed at a path that PYTHONPATH cannot hold.
    """
    if os.pathsep in HOOK_DIRECTORY:
        return {}
    variables = {"HOLDFAST_HOOK": "1", "PYTHONPATH": HOOK_DIRECTORY}
    original = environ.get("PYTHONPATH")
    if original is not None:
        variables["HOLDFAST_HOOK_PYTHONPATH"] = original
    if original:  # an empty entry would mean the working directory
        variables["PYTHONPATH"] = f"{HOOK_DIRECTORY}{os.pathsep}{original}"
    return variables


def read_error(path: Path) -> ErrorDetail:
    """What a worker said about its own end; all empty where nothing can be understood."""
    document = error_file.read(str(path)) or {}
    message = document.get("message")
    if not isinstance(message, dict):
        seconds = _number(document.get("timestamp"))
        return ErrorDetail(message=_text(message), timestamp=seconds)
    extra = message.get("extraInfo")
    if not isinstance(extra, dict):
        extra = {}
    return ErrorDetail(
        message=_text(message.get("message")),
        traceback=_text(extra.get("py_callstack")),
        timestamp=_timestamp(extra),
        non_retryable=extra.get("non_retryable") is True,
    )


def completed_from_stderr(error: ErrorDetail, tail: str) -> ErrorDetail:
    """The same, with the traceback that the worker printed, for one that left none."""
    trace = traceback_from_stderr(tail)
    if not trace:
        return error
    return replace(error, traceback=trace, message=error.message or _exception_line(trace))


MISSING = re.compile(r"ModuleNotFoundError: No module named '(\w+)((?:\.\w+)*)'$")
"""Of a name with a dot, the package was found: it is not the place that is wrong."""


def with_place_of_module(error: ErrorDetail, program: Program) -> ErrorDetail:
    """The same; of a module that is missing, where it is after all: it may be the user's own."""
    first, newline, rest = error.message.partition("\n")
    missing = MISSING.match(first)
    if missing is None:
        return error
    if missing[2]:
        is_script = program.kind in ("script", "run_path")
        folder = os.path.dirname(os.path.realpath(program.target)) if is_script else ""
        if not os.path.isdir(os.path.join(folder, missing[1])):
            return error
        return replace(error, message=f"{first} ({missing[1]} is the program's own){newline}{rest}")
    if program.kind == "module":
        place, folder = "beside the program", os.path.dirname(program.target.replace(".", os.sep))
    else:
        place, folder = "in the working directory, which is not on the module path", ""
    path = os.path.join(folder, missing[1])
    if not os.path.isdir(path) and not os.path.isfile(f"{path}.py"):
        return error
    return replace(error, message=f"{first} (it is {place}){newline}{rest}")


def _exception_line(trace: str) -> str:
    """The line that names the exception: the first that is not indented below the frames."""
    named = ""
    for line in reversed(trace.splitlines()):
        if line.startswith((" ", "\t")):
            break
        named = line or named
    return named


def pass_up(cause: Failure, own_error_file: str | None) -> str:
    """Write the job's cause into the file that the launcher of this agent named for it.

    Returns an empty string, or the reason why it could not be written. Never raises for
    what is on the disk.
    """
    if not own_error_file:
        return ""
    document = error_file.read(cause.error_file) if cause.error_file else None
    if document is None or not _is_well_formed(document):
        document = _document_for(cause)
    if isinstance(document["message"], dict):
        document["message"]["errorCode"] = cause.status.returncode
    try:
        error_file.replace(own_error_file, document)
    except OSError as error:
        return f"the cause could not be passed up to {own_error_file}: {error.strerror or error}"
    return ""


HEADING = "Traceback (most recent call last):"
HARMLESS = re.compile(r"Exception (?:in thread|ignored)\b")


def traceback_from_stderr(text: str) -> str:
    """The last whole Python traceback in a text, or empty (rule 5)."""
    text = re.sub(r"\r+$", "", text, flags=re.MULTILINE)
    heading = re.compile(rf"^(?P<prefix>.*?){re.escape(HEADING)}[ \t]*$", re.MULTILINE)
    harmless = ""
    for begin in reversed(list(heading.finditer(text))):
        found = _traceback_at(text, begin)
        before = text[: begin.start()].rpartition("\n")[0].rpartition("\n")[2]
        if found and not HARMLESS.search(before):
            return found
        if found and not harmless:
            harmless = f"{before.removeprefix(begin['prefix'])}\n{found}"
    return harmless


def _traceback_at(text: str, begin: re.Match[str]) -> str:
    """The traceback with that heading, if it is whole."""
    # What stands before the heading may also be a progress bar that nobody ended.
    for prefix in dict.fromkeys((begin["prefix"], "")):
        start = re.escape(prefix)
        indented = rf"\n{start}[ \t](?!.*{re.escape(HEADING)}).*"
        # A text of several lines cannot be told from what was printed next, unless indented.
        whole = rf"(?:{indented})+\n{start}[^\W\d][\w.<>]*(?::.*)?$(?:{indented})*"
        if found := re.compile(whole, re.MULTILINE).match(text, begin.end()):
            return HEADING + found[0].replace(f"\n{prefix}", "\n") + "\n"
    return ""


def _is_well_formed(document: dict[str, Any]) -> bool:
    """Whether PyTorch's reader, which may have launched us, can read it."""
    message = document.get("message")
    if isinstance(message, dict):
        extra = message.get("extraInfo")
        return isinstance(extra, dict) and _number(extra.get("timestamp")) is not None
    return isinstance(message, str)


def _document_for(cause: Failure) -> dict[str, Any]:
    """An error file for a worker that left none on this machine."""
    message = cause.error.message or _in_words(cause)
    traceback = cause.error.traceback or traceback_from_stderr(cause.stderr_tail)
    seconds = cause.error.timestamp or time.time()
    extra: dict[str, Any] = {
        "py_callstack": traceback or message,  # it is what readers show first
        "timestamp": str(int(seconds)),
    }
    if cause.error.non_retryable:
        extra["non_retryable"] = True
    return {"message": {"message": message, "extraInfo": extra}}


def _in_words(cause: Failure) -> str:
    words = f"rank {cause.rank} (pid {cause.pid}) on {cause.host} ended with {cause.status}"
    return f"{words}: {cause.out_of_memory}" if cause.out_of_memory else words


def _text(value: object) -> str:
    """A text that can be written as UTF-8, or empty (rule 2)."""
    if not isinstance(value, str):
        return ""
    return value.encode("utf-8", "backslashreplace").decode("utf-8")


def _timestamp(extra: dict[str, Any]) -> float | None:
    nanoseconds = _number(extra.get("timestamp_ns"))
    return _number(extra.get("timestamp")) if nanoseconds is None else nanoseconds / 1e9


def _number(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        number = float(value)
    except (OverflowError, ValueError):
        return None
    return number if math.isfinite(number) else None


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
        out_of_memory=memory.evidence() if was_killed else "",
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
    error = ErrorDetail() if error_file is None else read_error(error_file)
    if not error.traceback and event.error.traceback:
        from holdfast.core.policy.stacks import without_own_frames

        error = replace(error, traceback=without_own_frames(event.error.traceback))
    there = str(error_file) if error_file is not None and error_file.exists() else ""
    if not error.traceback and event.status.signal is None:
        error = completed_from_stderr(error, tail)
    error = with_place_of_module(error, program)
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
