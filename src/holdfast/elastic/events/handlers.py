"""Where events can go, by name.

`null` and `dynamic_rendezvous` keep nothing, `console` writes to stderr. Any other name is
looked for among the entry points of the group `holdfast.event_handlers`: each names a
`logging.Handler`, or something that makes one when it is called without arguments.
"""

from __future__ import annotations

import logging
import sys
from typing import Any, TextIO

__all__ = ["get_logging_handler"]

ENTRY_POINTS = "holdfast.event_handlers"


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
        _log_handlers[destination] = _installed(destination)
    return _log_handlers[destination]


def _installed(name: str) -> logging.Handler:
    from importlib.metadata import entry_points

    found = entry_points(group=ENTRY_POINTS)
    if name not in found.names:
        known = ", ".join(sorted({*_log_handlers, *found.names}))
        raise KeyError(f"there is no event handler {name}; there are {known}")
    loaded: Any = found[name].load()
    handler = loaded if isinstance(loaded, logging.Handler) else loaded()
    if not isinstance(handler, logging.Handler):
        raise TypeError(f"the event handler {name} is no logging.Handler")
    return handler
