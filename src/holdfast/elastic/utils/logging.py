"""Loggers whose level `LOGLEVEL` sets."""

from __future__ import annotations

import logging
import os
import sys

from holdfast.elastic.utils.log_level import get_log_level

__all__ = ["get_logger"]


def get_logger(name: str | None = None) -> logging.Logger:
    """The logger of that name or, without one, of the module that calls.

    Its level is set from the variable `LOGLEVEL`, else to WARNING. Raises `ValueError` where
    the variable holds no level.
    """
    logger = logging.getLogger(name or sys._getframe(1).f_globals.get("__name__"))
    logger.setLevel(os.environ.get("LOGLEVEL", get_log_level()))
    return logger
