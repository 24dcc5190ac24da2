"""Passing the error of a process to its launcher.

A function under `record` leaves what it raises in the file that `TORCHELASTIC_ERROR_FILE`
names. The launcher reads it into a `ProcessFailure`, raises a
`ChildFailedError` for all that failed and, being under `record` as well, passes the first of
them up. The file and the decorator are those of `holdfast.worker`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ParamSpec, TypeVar

from holdfast.elastic.multiprocessing.errors.error_handler import ErrorHandler
from holdfast.elastic.multiprocessing.errors.failures import ChildFailedError, ProcessFailure
from holdfast.elastic.multiprocessing.errors.failures import GlobalRank as GlobalRank
from holdfast.elastic.multiprocessing.errors.handlers import get_error_handler
from holdfast.worker.record import first_failure, left_by, recorded

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["ChildFailedError", "ErrorHandler", "ProcessFailure", "get_error_handler", "record"]

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
