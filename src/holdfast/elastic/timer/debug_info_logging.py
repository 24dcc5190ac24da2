"""A place to learn more about timers that ran out, before their workers are ended."""

from __future__ import annotations

import logging

__all__ = ["log_debug_info_for_expired_timers"]

logger = logging.getLogger(__name__)


def log_debug_info_for_expired_timers(run_id: str, expired_timers: dict[int, list[str]]) -> None:
    """Log the timers of a run that ran out, by process, each as JSON."""
    if expired_timers:
        logger.info("Timers of run %s that ran out, by process: %s", run_id, expired_timers)
