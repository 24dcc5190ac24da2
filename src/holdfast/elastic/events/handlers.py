"""Destinations of events, by name.

`null` and `dynamic_rendezvous` keep nothing, `console` writes to stderr. Any other name is
looked for among what other packages have registered (`observe.event_handlers`).
"""

from __future__ import annotations

import logging
import sys
from typing import TextIO

from holdfast.observe.event_handlers import ENTRY_POINTS, installed_handler

__all__ = ["ENTRY_POINTS", "get_logging_handler"]


class ConsoleHandler(logging.StreamHandler[TextIO]):
    """Writes to what stderr is now, not to what it was when this module was imported."""

    def emit(self, record: logging.LogRecord) -> None:
        if sys.stderr is not None:  # a daemon may have none
            self.setStream(sys.stderr)
            super().emit(record)


_log_handlers: dict[str, logging.Handler] = {
    "console": ConsoleHandler(),
    "dynamic_rendezvous": logging.NullHandler(),
    "null": logging.NullHandler(),
}


def get_logging_handler(destination: str = "null") -> logging.Handler:
    """The handler of that name, always the same one. Raises `KeyError` where there is none."""
    if destination not in _log_handlers:
        _log_handlers[destination] = installed_handler(destination, _log_handlers)
    return _log_handlers[destination]
