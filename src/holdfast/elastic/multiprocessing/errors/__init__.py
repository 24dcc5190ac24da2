"""Passing the error of a process to its launcher.

A function under `record` leaves what it raises in the file that `TORCHELASTIC_ERROR_FILE`
names. The launcher reads it into a `ProcessFailure`, raises a
`ChildFailedError` for all that failed and, being under `record` as well, passes the first of
them up. The file and the decorator are those of `holdfast.worker`.

Rules
1. What a process left is foreign input: a file that is missing, cut short or of another shape
   never raises. The failure then says what its exit code says.
2. `message` is what stands under "message" in the file: an object with a text and a traceback,
   or a plain text. Where there is no file it is a sentence of ours.
3. The earliest failure is the root cause. `timestamp` counts whole seconds, as others expect;
   where a finer time is known, it decides between failures of the same second.
"""

from __future__ import annotations

import logging
import math
import os
import signal
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from holdfast.elastic.multiprocessing.errors.error_handler import ErrorHandler
from holdfast.elastic.multiprocessing.errors.handlers import get_error_handler
from holdfast.worker import error_file as error_files
from holdfast.worker.record import first_failure, left_by, recorded

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.core.protocol.model import ErrorDetail, Failure

__all__ = ["ChildFailedError", "ErrorHandler", "ProcessFailure", "get_error_handler", "record"]

logger = logging.getLogger(__name__)


NOT_AVAILABLE = "<N/A>"
NOTHING_LEFT = "<NONE>"
GlobalRank = int


@dataclass
class ProcessFailure:
    """A process that failed, with what it left in its error file.

    `error_file` becomes `<N/A>` where no error can be read there.
    """

    local_rank: int
    pid: int
    exitcode: int
    error_file: str
    error_file_data: dict[str, Any] = field(init=False)
    message: Any = field(init=False)
    timestamp: int = field(init=False)

    def __post_init__(self) -> None:
        document = error_files.read(self.error_file)
        if document is not None and _is_understood(document):
            self._take_from(document)
        else:
            self._do_without()
        if not self.message:
            self._make_up_a_message()

    def _take_from(self, document: dict[str, Any]) -> None:
        self.error_file_data = document
        self.message = document["message"]
        self._exact_time_s = _exact_time_s(document, self.error_file)
        self.timestamp = int(self._exact_time_s)

    def _do_without(self) -> None:
        if error_files.is_present(self.error_file):
            logger.warning("%s holds no error that can be understood", self.error_file)
        self.error_file = NOT_AVAILABLE
        self.error_file_data = {"message": NOTHING_LEFT}
        self.message = ""
        self._exact_time_s = time.time()
        self.timestamp = int(self._exact_time_s)

    def _make_up_a_message(self) -> None:
        if self.exitcode < 0:
            number, name = -self.exitcode, self.signal_name()
            self.message = f"Signal {number} ({name}) ended process {self.pid}"
            return
        self.error_file_data["errorTraits"] = {
            "category": "system_terminated_error",
            "retryability": "False",
        }
        self.message = (
            f"Process {self.pid} ended with exit code {self.exitcode} and left no error; "
            "one whose main function is decorated with @record leaves its traceback"
        )

    def signal_name(self) -> str:
        """The name of the signal that ended it, or `<N/A>`."""
        try:
            return signal.Signals(-self.exitcode).name
        except ValueError:
            return NOT_AVAILABLE

    def timestamp_isoformat(self) -> str:
        """When it failed, in local time: `YYYY-MM-DD_HH:MM:SS`."""
        return datetime.fromtimestamp(self.timestamp).isoformat(sep="_")


class ChildFailedError(Exception):
    """Failed processes, by global rank, as an exception.

    Raised out of a function under `record`, it passes on what the first of them left, as that
    one wrote it.
    """

    def __init__(self, name: str, failures: Mapping[GlobalRank, ProcessFailure]) -> None:
        if not failures:
            raise AssertionError("a ChildFailedError needs at least one failure")
        self.name = name
        self.failures = failures
        super().__init__(self.format_msg())

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.name, self.failures)

    def get_first_failure(self) -> tuple[GlobalRank, ProcessFailure]:
        """The earliest failure, and the rank that it is of."""
        rank = min(self.failures, key=lambda rank: _moment(self.failures[rank]))
        return rank, self.failures[rank]

    def format_msg(self) -> str:
        """The report: the first failure and its cause, then the others; then every exit code, for
        programs that read logs, and the paths of the error files."""
        from holdfast.core.protocol.model import Outcome
        from holdfast.observe import report

        first, _ = self.get_first_failure()
        others = sorted(
            self.failures.keys() - {first}, key=lambda rank: _moment(self.failures[rank])
        )
        outcome = Outcome(
            verdict="failed",
            reason=f"{self.name} FAILED",
            exit_status=1,
            cause=self._as_failure(first),
            others=tuple(self._as_failure(rank) for rank in others),
        )
        ranks = [first, *others]
        told = ranks[: report.MAX_OTHERS + 1]
        ends = [f"rank {rank}: {_exit_code(self.failures[rank])}" for rank in told]
        if len(ranks) > len(told):
            ends.append(f"and {len(ranks) - len(told)} more")
        files = {rank: self.failures[rank].error_file for rank in ranks}
        kept = [f"rank {rank}: {file}" for rank, file in files.items() if file != NOT_AVAILABLE]
        sections = _section("Exit codes", ends)
        sections += _section("Error files", kept[: report.MAX_OTHERS + 1])
        return "\n" + report.render(outcome, None) + sections

    def _as_failure(self, rank: GlobalRank) -> Failure:
        import socket

        from holdfast.core.protocol.model import ExitStatus, Failure

        own = self.failures[rank]
        host = socket.gethostname()
        return Failure(
            node=host,
            host=host,
            local_rank=own.local_rank,
            rank=rank,
            role=self.name,
            pid=own.pid,
            status=ExitStatus.from_wait_status(own.exitcode),
            observed_at=own.timestamp,
            error=_detail(own),
            error_file=own.error_file,
            wall_time=own.timestamp,
        )


def _section(title: str, lines: list[str]) -> str:
    return "\n".join(["", f"  {title}", *(f"    {line}" for line in lines), ""]) if lines else ""


def _moment(failure: ProcessFailure) -> tuple[int, float]:
    """The key that orders failures. Their timestamps may have been set by others."""
    exact_s = getattr(failure, "_exact_time_s", failure.timestamp)
    return failure.timestamp, exact_s % 1.0 if int(exact_s) == failure.timestamp else 0.0


def _exit_code(failure: ProcessFailure) -> str:
    """The code as it is in `exitcode`, below zero for a signal, and the signal's name."""
    name = failure.signal_name()
    signalled = "" if name == NOT_AVAILABLE else f" ({name})"
    return f"exitcode: {failure.exitcode} (pid: {failure.pid}){signalled}"


def _detail(failure: ProcessFailure) -> ErrorDetail:
    from holdfast.core.protocol.model import ErrorDetail

    if not isinstance(failure.message, dict):
        return ErrorDetail(message=_printable(_enriched(str(failure.message), failure)))
    extra = failure.message.get("extraInfo")
    stack = extra.get("py_callstack") if isinstance(extra, dict) else None
    text = failure.message.get("message", NOT_AVAILABLE)
    text = _enriched(str(text), failure)
    return ErrorDetail(message=_printable(text), traceback=_printable(stack or ""))


def _enriched(message: str, failure: ProcessFailure) -> str:
    """The message, with what the handler of errors adds to it where a signal ended the process."""
    if failure.exitcode >= 0:
        return message
    try:
        handler = get_error_handler()
        return handler.maybe_enrich_signal_failure_message(message, failure.error_file)
    except Exception:
        logger.warning("nothing could be added to the message of a signal", exc_info=True)
        return message


def _printable(value: object) -> str:
    """A text that any file or terminal of UTF-8 takes, whatever the process put in it."""
    return str(value).encode("utf-8", "backslashreplace").decode("utf-8")


def _is_understood(document: dict[str, Any]) -> bool:
    return isinstance(document.get("message"), str | dict)


def _exact_time_s(document: dict[str, Any], path: str) -> float:
    """When the process failed: as it says itself, else when it wrote the file."""
    message = document["message"]
    extra = message.get("extraInfo") if isinstance(message, dict) else document
    if isinstance(extra, dict):
        seconds, nanoseconds = _number(extra.get("timestamp")), _number(extra.get("timestamp_ns"))
        if nanoseconds is not None and (seconds is None or int(nanoseconds / 1e9) == int(seconds)):
            return nanoseconds / 1e9
        if seconds is not None:
            return seconds
    try:
        return os.stat(path).st_mtime
    except OSError:
        return time.time()  # it is gone since it was read


def _number(value: object) -> float | None:
    if not isinstance(value, str | int | float):
        return None
    try:
        number = float(value)
    except (OverflowError, ValueError):
        return None
    return number if math.isfinite(number) and number >= 0 else None


P = ParamSpec("P")
R = TypeVar("R")


def record(fn: Callable[P, R], error_handler: ErrorHandler | None = None) -> Callable[P, R | None]:
    """Wrap a process's outermost function so that its error is handed to `error_handler`.

    What is raised goes on unchanged, except `SystemExit(0)`, which becomes a plain return.
    A `ChildFailedError` hands over what the first failed child left, if it left anything.
    """
    handler = error_handler or get_error_handler()

    def leave(error: Exception) -> None:
        child = first_failure(error)
        if child is not None and left_by(child) is not None:
            handler.dump_error_file(child.error_file, child.exitcode)
        else:
            handler.record_exception(error)

    def prepare() -> None:
        # A `functools.partial`, say, has no such name.
        handler.set_entrypoint_fn_name(getattr(fn, "__qualname__", None))
        handler.initialize()

    return recorded(fn, prepare, leave, handler.record_success)
