"""`events`: the same calls as PyTorch's, and the same lines at the end of them.

A test that takes `events` runs against both; the others are about ours alone.
"""

from __future__ import annotations

import dataclasses
import json
import logging
import os
import threading
from collections.abc import Iterator
from importlib import import_module
from importlib.metadata import EntryPoint, EntryPoints
from typing import Any

import pytest

from holdfast.elastic import events as ours
from holdfast.elastic.events import handlers

Module = Any


@pytest.fixture(
    params=["holdfast.elastic", pytest.param("torch.distributed.elastic", marks=pytest.mark.torch)]
)
def events(request: pytest.FixtureRequest) -> Module:
    return import_module(f"{request.param}.events")


class Kept(logging.Handler):
    """Keeps the lines that it is given."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


@pytest.fixture
def kept(events: Module, monkeypatch: pytest.MonkeyPatch) -> Iterator[Kept]:
    """A handler under the names `kept` and `dynamic_rendezvous`, and no logger from before."""
    handler = Kept()
    for name in ("kept", "dynamic_rendezvous"):
        monkeypatch.setitem(events.handlers._log_handlers, name, handler)
    monkeypatch.setattr(events, "_events_loggers", {})
    yield handler
    for name in ("kept", "dynamic_rendezvous"):
        logging.getLogger(f"torchelastic-events-{name}").removeHandler(handler)


def test_an_event_becomes_one_line_of_json(events: Module, kept: Kept) -> None:
    event = events.Event("n", events.EventSource.AGENT, 12, {"rank": 1, "ok": None})
    events.record(event, "kept")
    assert kept.lines == [
        '{"name": "n", "source": "AGENT", "timestamp": 12, "metadata": {"rank": 1, "ok": null}}'
    ]
    assert str(event) == event.serialize() == kept.lines[0]


def test_an_event_comes_back_from_its_json(events: Module) -> None:
    event = events.Event(name="n", source=events.EventSource.WORKER, metadata={"a": 1.5, "b": True})
    assert events.Event.deserialize(event.serialize()) == event
    assert events.Event.deserialize(event) is event
    with pytest.raises(KeyError):
        events.Event.deserialize('{"name": "n", "source": "NOBODY"}')


def test_events_are_dataclasses_with_the_known_fields(events: Module) -> None:
    for kind in ("Event", "RdzvEvent"):
        theirs = dataclasses.fields(getattr(events, kind))
        own = dataclasses.fields(getattr(ours, kind))
        assert [(f.name, f.default) for f in theirs] == [(f.name, f.default) for f in own]
    one = events.Event("n", events.EventSource.AGENT)
    assert (one.timestamp, one.metadata) == (0, {})
    assert dataclasses.replace(one, name="other").metadata is one.metadata
    assert events.Event("n", events.EventSource.AGENT).metadata is not one.metadata


def test_sources_and_states_are_texts(events: Module) -> None:
    assert {s.name: s.value for s in events.EventSource} == {"AGENT": "AGENT", "WORKER": "WORKER"}
    assert [s.value for s in events.NodeState] == ["INIT", "RUNNING", "SUCCEEDED", "FAILED"]
    assert events.NodeState.INIT == "INIT"
    assert str(events.EventSource.AGENT) == "EventSource.AGENT"


def test_nothing_reaches_the_root_logger(
    events: Module, kept: Kept, monkeypatch: pytest.MonkeyPatch
) -> None:
    of_root = Kept()
    # Threads that earlier tests of this process have left may have something to say.
    of_root.addFilter(lambda record: record.thread == threading.get_ident())
    monkeypatch.setattr(logging.getLogger(), "handlers", [of_root])
    events.record(events.Event("n", events.EventSource.AGENT), "kept")
    events.record(events.Event("n", events.EventSource.AGENT))
    logging.getLogger("another").error("it does hear others")
    assert len(kept.lines) == 1
    assert of_root.lines == ["it does hear others"]


def test_a_handler_is_added_once(events: Module, kept: Kept) -> None:
    for _ in range(3):
        events.record(events.Event("n", events.EventSource.AGENT), "kept")
    assert len(kept.lines) == 3


def test_a_level_that_the_user_set_later_stays(events: Module, kept: Kept) -> None:
    event = events.Event("n", events.EventSource.AGENT)
    events.record(event, "kept")
    logging.getLogger("torchelastic-events-kept").setLevel(logging.ERROR)
    events.record(event, "kept")
    assert len(kept.lines) == 1


def test_the_level_silences_events(
    events: Module, kept: Kept, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOGLEVEL", "ERROR")
    events.record(events.Event("n", events.EventSource.AGENT), "kept")
    assert kept.lines == []


def test_handlers_have_names(events: Module) -> None:
    assert isinstance(events.get_logging_handler(), logging.NullHandler)
    assert isinstance(events.get_logging_handler("null"), logging.NullHandler)
    assert isinstance(events.get_logging_handler("console"), logging.StreamHandler)
    assert events.get_logging_handler("console") is events.get_logging_handler("console")
    with pytest.raises(KeyError, match="nobody"):
        events.get_logging_handler("nobody")


def test_a_refused_name_comes_with_those_that_are_known() -> None:
    with pytest.raises(KeyError, match="console, dynamic_rendezvous, null"):
        ours.get_logging_handler("nobody")


def test_the_console_is_what_stderr_is_now(capsys: pytest.CaptureFixture[str]) -> None:
    ours.record(ours.Event("n", ours.EventSource.AGENT), "console")
    said = capsys.readouterr()
    assert json.loads(said.err)["name"] == "n"
    assert said.out == ""


@pytest.mark.parametrize("target", ["Kept", "made"])
def test_a_handler_of_another_package_is_found_by_its_entry_point(
    target: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    point = EntryPoint("theirs", "not_loaded_from_disk", handlers.ENTRY_POINTS)
    made = Kept() if target == "made" else Kept
    monkeypatch.setattr(EntryPoint, "load", lambda self: made)
    monkeypatch.setattr("importlib.metadata.entry_points", lambda **_: EntryPoints([point]))
    monkeypatch.setattr(handlers, "_log_handlers", dict(handlers._log_handlers))
    handler = ours.get_logging_handler("theirs")
    assert isinstance(handler, Kept)
    assert ours.get_logging_handler("theirs") is handler


def test_an_entry_point_to_something_else_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    point = EntryPoint("theirs", "builtins:dict", handlers.ENTRY_POINTS)
    monkeypatch.setattr("importlib.metadata.entry_points", lambda **_: EntryPoints([point]))
    with pytest.raises(TypeError, match="theirs is no"):
        ours.get_logging_handler("theirs")


# --- of rendezvous ------------------------------------------------------------------------


def test_an_event_of_a_rendezvous_is_completed_and_recorded(events: Module, kept: Kept) -> None:
    events.construct_and_record_rdzv_event("run", "words", events.NodeState.RUNNING)
    event = events.RdzvEvent.deserialize(kept.lines[0])
    function = "test_an_event_of_a_rendezvous_is_completed_and_recorded"
    assert event.name == f"test_events.py:{function}"
    assert (event.run_id, event.message) == ("run", "words")
    assert event.node_state is events.NodeState.RUNNING
    assert event.pid == os.getpid()
    assert event.hostname
    assert (event.master_endpoint, event.rank, event.local_id) == ("", None, None)
    assert event.error_trace == ""


def test_what_is_given_is_recorded_as_given(events: Module, kept: Kept) -> None:
    events.construct_and_record_rdzv_event(
        run_id="run",
        message="words",
        node_state=events.NodeState.INIT,
        name="Class.method",
        hostname="host",
        pid=7,
        master_endpoint="host:1",
        local_id=3,
        rank=0,
    )
    line = (
        '{"name": "test_events.py:Class.method", "run_id": "run", "message": "words", '
        '"hostname": "host", "pid": 7, "node_state": "INIT", "master_endpoint": "host:1", '
        '"rank": 0, "local_id": 3, "error_trace": ""}'
    )
    assert kept.lines == [line]
    event = events.RdzvEvent.deserialize(kept.lines[0])
    assert events.RdzvEvent.deserialize(event) is event
    assert str(event) == kept.lines[0]


def test_a_failure_carries_the_traceback_that_is_being_handled(events: Module, kept: Kept) -> None:
    try:
        raise ValueError("the reason")
    except ValueError:
        events.construct_and_record_rdzv_event("run", "words", events.NodeState.FAILED)
    trace = events.RdzvEvent.deserialize(kept.lines[0]).error_trace
    assert trace.startswith("Traceback")
    assert trace.endswith("ValueError: the reason\n")


def test_where_nobody_listens_nothing_is_made(
    events: Module, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(events, "record_rdzv_event", pytest.fail)
    events.construct_and_record_rdzv_event("run", "words", events.NodeState.FAILED)


def test_a_handler_that_is_put_in_place_of_ours_takes_effect(
    events: Module, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorded: list[Any] = []
    monkeypatch.setattr(events, "get_logging_handler", lambda destination: Kept())
    monkeypatch.setattr(events, "record_rdzv_event", recorded.append)
    events.construct_and_record_rdzv_event("run", "words", events.NodeState.INIT, pid=5)
    assert [event.pid for event in recorded] == [5]


def test_every_public_name_of_pytorchs_is_there(events: Module) -> None:
    for name in ours.__all__:
        assert hasattr(events, name)
    assert set(events.api.__all__) <= set(ours.api.__all__)
