"""Event handlers of other packages, registered by name.

    [project.entry-points."holdfast.event_handlers"]
    mine = "my_package.events:MyHandler"

An entry point names a `logging.Handler`, or something that makes one when it is called without
arguments. It gets one record for each event, whose message is JSON in one line: under
`holdfast run` the lines of the journal, as `--event-log-handler console` prints them; of
`holdfast.elastic` its events.

Rules of an `EventLog`
1. The job never waits for the handler: it works in a thread of its own, in order.
2. An exception of a handler is reported once, and the next event is sent all the same.
3. At the end it is flushed and closed, and waited for as long as the console is.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
from collections.abc import Iterable
from queue import SimpleQueue
from typing import Any

from holdfast.core.protocol.errors import UsageError
from holdfast.observe import sentences

ENTRY_POINTS = "holdfast.event_handlers"
PATIENCE_S = 10.0


def installed_handler(name: str, known: Iterable[str] = ()) -> logging.Handler:
    """The handler that a package registered under this name; a new one where it makes them.

    Raises `KeyError` if there is none, naming those that there are and are `known`;
    `TypeError` if it is something else; and anything that loading or making it raises.
    """
    from importlib.metadata import entry_points

    found = entry_points(group=ENTRY_POINTS)
    if name not in found.names:
        raise KeyError(sentences.no_handler(name, sorted({*known, *found.names})))
    loaded: Any = found[name].load()
    handler = loaded if isinstance(loaded, logging.Handler) else loaded()
    if not isinstance(handler, logging.Handler):
        raise TypeError(sentences.not_a_handler(name))
    return handler


def events_logger(name: str, handler: logging.Handler) -> logging.Logger:
    """The logger of a handler; its records go nowhere else."""
    logger = logging.getLogger(f"torchelastic-events-{name}")
    logger.setLevel(os.environ.get("LOGLEVEL", "INFO"))
    logger.propagate = False
    logger.addHandler(handler)
    return logger


def open_event_log(name: str) -> EventLog:
    """Send events to the installed handler of that name. Raises `UsageError` without one."""
    try:
        handler = installed_handler(name)
        return EventLog(name, handler, events_logger(name, handler))
    except (Exception, SystemExit) as error:
        raise UsageError(sentences.handler_not_made(name, error)) from error


class EventLog:
    """Sends events to a handler, one line each."""

    def __init__(self, name: str, handler: logging.Handler, logger: logging.Logger) -> None:
        self._name = name
        self._handler = handler
        self._logger = logger
        self._lines: SimpleQueue[bytes | None] = SimpleQueue()
        self._has_complained = False
        self._thread = threading.Thread(target=self._run, name="holdfast-events", daemon=True)
        self._thread.start()

    def take(self, line: bytes) -> None:
        """Send an event. Returns at once."""
        self._lines.put(line)

    def close(self) -> None:
        """Wait until it has handled all events, or is stuck."""
        self._lines.put(None)
        self._thread.join(PATIENCE_S)
        if self._thread.is_alive():
            self._complain(sentences.handler_left(self._name))

    def _run(self) -> None:
        while (line := self._lines.get()) is not None:
            self._tell(line)
        try:
            self._handler.flush()
            self._handler.close()
        except Exception as error:  # noqa: BLE001 - a handler is anybody's code
            self._complain(sentences.handler_failed(self._name, error))

    def _tell(self, line: bytes) -> None:
        try:
            self._logger.info(line.rstrip(b"\n").decode("utf-8", "replace"))
        except Exception as error:  # noqa: BLE001 - as above
            self._complain(sentences.handler_failed(self._name, error))

    def _complain(self, problem: str) -> None:
        if not self._has_complained:
            self._has_complained = True
            print(f"holdfast: {problem}", file=sys.stderr)
