"""Events of agents and workers, through Python's logging.

`record(event, "console")` hands an event to the handler of that name (see `handlers`), through
a logger `torchelastic-events-<name>` of its own that passes nothing on to the root logger, so
that an event is told once.
"""

from __future__ import annotations

import logging
import os
import socket
import sys
import traceback

from holdfast.elastic.events.api import (
    Event,
    EventMetadataValue,
    EventSource,
    NodeState,
    RdzvEvent,
)
from holdfast.elastic.events.handlers import get_logging_handler
from holdfast.observe.event_handlers import events_logger

__all__ = [
    "Event",
    "EventMetadataValue",
    "EventSource",
    "NodeState",
    "RdzvEvent",
    "construct_and_record_rdzv_event",
    "get_logging_handler",
    "record",
    "record_rdzv_event",
]

RENDEZVOUS = "dynamic_rendezvous"

_events_loggers: dict[str, logging.Logger] = {}


def record(event: Event, destination: str = "null") -> None:
    """Hand an event to the handler of that name. Raises `KeyError` where there is none."""
    _get_or_create_logger(destination).info(event.serialize())


def record_rdzv_event(event: RdzvEvent) -> None:
    """Hand an event of a rendezvous to the handler for those."""
    _get_or_create_logger(RENDEZVOUS).info(event.serialize())


def construct_and_record_rdzv_event(
    run_id: str,
    message: str,
    node_state: NodeState,
    name: str = "",
    hostname: str = "",
    pid: int | None = None,
    master_endpoint: str = "",
    local_id: int | None = None,
    rank: int | None = None,
) -> None:
    """Make an event of a rendezvous and record it, unless nobody listens.

    It is named `<the caller's file>:<name>`, where `name` is the calling function if none is
    given; host and process are our own. With `NodeState.FAILED` it carries the traceback of the
    exception that is being handled.
    """
    if isinstance(get_logging_handler(RENDEZVOUS), logging.NullHandler):
        return
    code = sys._getframe(1).f_code
    event = RdzvEvent(
        name=f"{os.path.basename(code.co_filename)}:{name or code.co_name}",
        run_id=run_id,
        message=message,
        hostname=hostname or socket.getfqdn(),
        pid=pid or os.getpid(),
        node_state=node_state,
        master_endpoint=master_endpoint,
        rank=rank,
        local_id=local_id,
        error_trace=traceback.format_exc() if node_state == NodeState.FAILED else "",
    )
    record_rdzv_event(event)


def _get_or_create_logger(destination: str = "null") -> logging.Logger:
    logger = _events_loggers.get(destination)
    if logger is None:
        logger = events_logger(destination, get_logging_handler(destination))
        _events_loggers[destination] = logger
    return logger
