"""Loggers whose level `LOGLEVEL` sets.

Where the variable is set, it is the level of everything in this package, and what that says is
shown on stderr, unless the program has handlers of its own at the root of its loggers: then these
alone show it, also if they come later.
"""

from __future__ import annotations

import logging
import os
import sys
from typing import TextIO

from holdfast.elastic.utils.log_level import get_log_level

__all__ = ["get_logger"]

OURS = "holdfast"
LINE = "%(asctime)s %(levelname)s %(name)s: %(message)s"


class _ForWantOfOthers(logging.StreamHandler[TextIO]):
    """Shows records as long as nobody else would."""

    def emit(self, record: logging.LogRecord) -> None:
        if not logging.root.handlers:
            self.stream = sys.stderr  # As it is now: programs replace it.
            super().emit(record)


def get_logger(name: str | None = None) -> logging.Logger:
    """The logger of that name or, without one, of the module that calls.

    Its level is set from the variable `LOGLEVEL`, else to WARNING. Raises `ValueError` where
    the variable holds no level.
    """
    logger = logging.getLogger(name or sys._getframe(1).f_globals.get("__name__"))
    level = os.environ.get("LOGLEVEL")
    logger.setLevel(get_log_level() if level is None else level)
    if level is not None and logger.name.startswith(f"{OURS}."):
        _show(level)
    return logger


def _show(level: str) -> None:
    ours = logging.getLogger(OURS)
    if not ours.handlers:
        handler = _ForWantOfOthers()
        handler.setFormatter(logging.Formatter(LINE))
        ours.addHandler(handler)
        ours.setLevel(level)
