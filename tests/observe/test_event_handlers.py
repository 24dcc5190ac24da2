"""Handlers of other packages: found, told in order, and never waited for without end."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from importlib.metadata import EntryPoint, EntryPoints
from typing import Any

import pytest

from holdfast.core.protocol.errors import UsageError
from holdfast.observe import event_handlers, sentences
from holdfast.observe.event_handlers import EventLog, open_event_log

Open = Callable[[Any], EventLog]


class Kept(logging.Handler):
    """Keeps the lines that it is given, and whether it was closed."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []
        self.ends: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())

    def flush(self) -> None:
        self.ends.append("flushed")

    def close(self) -> None:
        self.ends.append("closed")
        super().close()


@pytest.fixture
def open_log(monkeypatch: pytest.MonkeyPatch) -> Iterator[Open]:
    """Make something the entry point `mine`, and open it."""

    def put(loaded: Any) -> EventLog:
        point = EntryPoint("mine", "not_loaded_from_disk", event_handlers.ENTRY_POINTS)
        monkeypatch.setattr(EntryPoint, "load", lambda self: loaded)
        monkeypatch.setattr("importlib.metadata.entry_points", lambda **_: EntryPoints([point]))
        return open_event_log("mine")

    yield put
    logging.getLogger("torchelastic-events-mine").handlers.clear()


@pytest.mark.parametrize("is_made", [True, False])
def test_a_handler_gets_each_line_as_it_is(open_log: Open, is_made: bool) -> None:
    handler = Kept()
    log = open_log(handler if is_made else lambda: handler)
    lines = [b'{"a": "%s %d"}\n', "{'ü': 1}\n".encode(), b"\xff\n", b"no end"]
    for line in lines:
        log.take(line)
    log.close()
    assert handler.lines == ['{"a": "%s %d"}', "{'ü': 1}", "�", "no end"]
    assert handler.ends == ["flushed", "closed"]


def test_the_level_silences_it(open_log: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOGLEVEL", "ERROR")
    handler = Kept()
    log = open_log(handler)
    log.take(b"{}\n")
    log.close()
    assert handler.lines == []


def test_one_that_raises_is_said_so_once(
    open_log: Open, capsys: pytest.CaptureFixture[str]
) -> None:
    class Failing(Kept):
        def emit(self, record: logging.LogRecord) -> None:
            super().emit(record)
            raise ValueError(record.getMessage())

        def close(self) -> None:
            raise OSError("too late")

    handler = Failing()
    log = open_log(handler)
    for line in (b"one", b"two"):
        log.take(line)
    log.close()
    assert handler.lines == ["one", "two"]
    said = capsys.readouterr().err
    assert said == f"holdfast: {sentences.handler_failed('mine', ValueError('one'))}\n"


def test_one_that_never_returns_is_left(
    open_log: Open, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_handlers, "PATIENCE_S", 0.0)
    free = threading.Event()

    class Stuck(Kept):
        def emit(self, record: logging.LogRecord) -> None:
            free.wait()

    log = open_log(Stuck())
    log.take(b"{}")
    log.close()
    free.set()
    assert sentences.handler_left("mine") in capsys.readouterr().err
    log._thread.join()


@pytest.mark.parametrize(
    ("loaded", "message"),
    [
        (dict, "TypeError: the event handler mine is not a logging.Handler"),
        (5, "TypeError: 'int' object is not callable"),
        (logging.FileHandler, "TypeError: FileHandler.__init__() missing 1 required"),
    ],
)
def test_what_cannot_be_made_is_refused(open_log: Open, loaded: Any, message: str) -> None:
    with pytest.raises(UsageError) as refusal:
        open_log(loaded)
    said = refusal.value.message
    assert said.startswith(f"the event handler mine cannot be made: {message}")
