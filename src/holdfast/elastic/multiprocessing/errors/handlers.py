"""Which `ErrorHandler` is used where none is given."""

from __future__ import annotations

from holdfast.elastic.multiprocessing.errors.error_handler import ErrorHandler

__all__ = ["get_error_handler"]


def get_error_handler() -> ErrorHandler:
    """A new handler for this process."""
    return ErrorHandler()
