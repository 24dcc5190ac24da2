"""The level of our loggers where `LOGLEVEL` does not say."""

from __future__ import annotations


def get_log_level() -> str:
    """The name of the default level."""
    return "WARNING"
