"""`multiprocessing.errors`: what PyTorch's does with the same files, and where ours is kinder.

A test that takes `errors` runs against both; the others are about ours alone.
"""

from __future__ import annotations

import dataclasses
import functools
import io
import json
import os
import pickle
import re
import signal
import subprocess
import sys
import time
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from holdfast.elastic.multiprocessing import errors as ours
from holdfast.elastic.multiprocessing.errors.error_handler import ErrorHandler

from .... import torch_versions

VARIABLE = "TORCHELASTIC_ERROR_FILE"
Module = Any


@pytest.fixture(
    params=["holdfast.elastic", pytest.param("torch.distributed.elastic", marks=pytest.mark.torch)]
)
def errors(request: pytest.FixtureRequest) -> Module:
    return import_module(f"{request.param}.multiprocessing.errors")


@pytest.fixture
def own_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "own.json"
    monkeypatch.setenv(VARIABLE, str(path))
    return path


def left(directory: Path, timestamp: object, text: str = "A: b", **extra: object) -> Path:
    info = {"py_callstack": f"stack of {text}", "timestamp": timestamp, **extra}
    return written(directory, {"message": {"message": text, "extraInfo": info}})


def written(directory: Path, document: object) -> Path:
    path = directory / f"error_{len(list(directory.iterdir()))}.json"
    path.write_text(document if isinstance(document, str) else json.dumps(document))
    return path


def document_in(path: Path) -> Any:
    return json.loads(path.read_text())


# --- a failed process ---------------------------------------------------------------------


def test_a_failure_says_what_its_process_left(errors: Module, tmp_path: Path) -> None:
    path = left(tmp_path, "12", "ValueError: x")
    failure = errors.ProcessFailure(local_rank=1, pid=99, exitcode=1, error_file=str(path))
    assert failure.error_file == str(path)
    assert failure.error_file_data == document_in(path)
    assert failure.message == document_in(path)["message"]
    assert failure.timestamp == 12
    assert failure.signal_name() == "<N/A>"


def test_a_message_may_be_plain_text(errors: Module, tmp_path: Path) -> None:
    path = written(tmp_path, {"message": "plain", "timestamp": "5"})
    failure = errors.ProcessFailure(0, 1, 1, str(path))
    assert (failure.message, failure.timestamp) == ("plain", 5)


def test_a_process_that_a_signal_ended_needs_no_file(errors: Module, tmp_path: Path) -> None:
    before = int(time.time())
    failure = errors.ProcessFailure(0, 997, -9, str(tmp_path / "none.json"))
    assert failure.error_file == "<N/A>"
    assert failure.error_file_data["message"] == "<NONE>"
    assert failure.message.startswith("Signal 9 (SIGKILL)")
    assert "997" in failure.message
    assert failure.signal_name() == "SIGKILL"
    assert before <= failure.timestamp <= time.time()


def test_a_process_that_left_nothing_has_a_message_all_the_same(
    errors: Module, tmp_path: Path
) -> None:
    failure = errors.ProcessFailure(0, 997, 7, str(tmp_path / "none.json"))
    assert failure.message
    assert failure.error_file_data == {
        "message": "<NONE>",
        "errorTraits": {"category": "system_terminated_error", "retryability": "False"},
    }


def test_a_signal_without_a_name_is_not_available(errors: Module) -> None:
    assert errors.ProcessFailure(0, 1, -63, "none").signal_name() == "<N/A>"


def test_the_time_of_a_failure_is_readable(errors: Module, tmp_path: Path) -> None:
    failure = errors.ProcessFailure(0, 1, 1, str(left(tmp_path, "1000000000")))
    day, clock = failure.timestamp_isoformat().split("_")
    assert day in ("2001-09-08", "2001-09-09")
    assert clock.endswith(":40")


def test_a_failure_is_a_dataclass_of_the_known_fields(errors: Module, tmp_path: Path) -> None:
    fields = [(f.name, f.init) for f in dataclasses.fields(errors.ProcessFailure)]
    given, read = ("local_rank", "pid", "exitcode", "error_file"), ("error_file_data", "message")
    assert fields == [
        *((n, True) for n in given),
        *((n, False) for n in read),
        ("timestamp", False),
    ]
    path = str(left(tmp_path, "12"))
    one, same = errors.ProcessFailure(0, 1, 1, path), errors.ProcessFailure(0, 1, 1, path)
    assert one == same
    assert dataclasses.replace(one, local_rank=2).local_rank == 2
    assert one != dataclasses.replace(one, local_rank=2)


@pytest.mark.parametrize(
    "contents", ["", '{"message": {"mess', "[1]", "{}", '{"message": null}', '{"message": [1]}']
)
def test_a_file_that_cannot_be_understood_never_raises(tmp_path: Path, contents: str) -> None:
    failure = ours.ProcessFailure(0, 1, -11, str(written(tmp_path, contents)))
    assert failure.error_file == "<N/A>"
    assert failure.message.startswith("Signal 11 (SIGSEGV)")


def test_a_pipe_in_the_place_of_the_file_does_not_block(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    assert ours.ProcessFailure(0, 1, 1, str(tmp_path / "pipe")).error_file == "<N/A>"


@pytest.mark.parametrize(
    "document",
    [
        {"message": "no time"},
        {"message": {"message": "no time"}},
        {"message": {"message": "no time", "extraInfo": {"timestamp": "soon"}}},
        {"message": {"message": "no time", "extraInfo": {"timestamp": float("inf")}}},
        {"message": {"message": "no time", "extraInfo": [1]}},
    ],
)
def test_without_a_time_in_it_the_file_was_written_when_it_was(
    tmp_path: Path, document: object
) -> None:
    path = written(tmp_path, document)
    os.utime(path, (777, 777))
    failure = ours.ProcessFailure(0, 1, 1, str(path))
    assert failure.timestamp == 777
    assert failure.message == document_in(path)["message"]


def test_one_failure_without_a_file_does_not_change_the_next(tmp_path: Path) -> None:
    ours.ProcessFailure(0, 1, 1, "none")
    assert ours.ProcessFailure(0, 1, -9, "none").error_file_data == {"message": "<NONE>"}


# --- several of them ----------------------------------------------------------------------


def test_the_earliest_failure_is_the_first(errors: Module, tmp_path: Path) -> None:
    times = {0: "30", 1: "10", 2: "20"}
    failures = {
        rank: errors.ProcessFailure(rank, 1, 1, str(left(tmp_path, at)))
        for rank, at in times.items()
    }
    error = errors.ChildFailedError("trainer", failures)
    assert error.get_first_failure() == (1, failures[1])
    assert (error.name, error.failures) == ("trainer", failures)


def test_a_timestamp_that_others_set_decides(errors: Module) -> None:
    failures = {rank: errors.ProcessFailure(rank, 1, 1, "none") for rank in range(3)}
    failures[2].timestamp = 1
    assert errors.ChildFailedError("trainer", failures).get_first_failure()[0] == 2


def test_within_a_second_the_finer_time_decides(tmp_path: Path) -> None:
    finer = {0: "12_900_000_000", 1: "12_100_000_000", 2: "12_500_000_000"}
    failures = {
        rank: ours.ProcessFailure(
            rank, 1, 1, str(left(tmp_path, "12", timestamp_ns=at.replace("_", "")))
        )
        for rank, at in finer.items()
    }
    error = ours.ChildFailedError("trainer", failures)
    assert error.get_first_failure() == (1, failures[1])
    assert {failure.timestamp for failure in failures.values()} == {12}


def test_the_summary_tells_who_failed_first_and_why(errors: Module, tmp_path: Path) -> None:
    first = left(tmp_path, "10", "ValueError: no such file")
    failures = {
        4: errors.ProcessFailure(0, 111, -15, "none"),
        5: errors.ProcessFailure(1, 222, 1, str(first)),
    }
    text = str(errors.ChildFailedError("trainer", failures))
    for part in ("trainer FAILED", "222", "stack of ValueError: no such file", str(first)):
        assert part in text
    for part in ("SIGTERM", "rank"):
        assert part in text


def test_a_reader_of_logs_finds_exit_codes_and_signals_in_the_summary(errors: Module) -> None:
    torch_versions.needs((2, 11), errors)  # Which names the signal.
    codes = {0: -9, 1: 3, 2: -15, 3: -64, 4: 130}
    failures = {
        rank: errors.ProcessFailure(rank, 100 + rank, code, "none") for rank, code in codes.items()
    }
    text = str(errors.ChildFailedError("trainer", failures))
    found = re.findall(r"exitcode\s*: (-?\d+) \(pid: (\d+)\)(?: +\((SIG\w+)\))?", text)
    names = {0: "SIGKILL", 2: "SIGTERM", 3: "SIGRTMAX"}
    assert sorted(found) == sorted(
        (str(code), str(100 + rank), names.get(rank, "")) for rank, code in codes.items()
    )


def test_the_summary_is_bounded(tmp_path: Path) -> None:
    long = "\n".join(f"line {n}" for n in range(1000))
    path = str(left(tmp_path, "10", long))
    failures = {rank: ours.ProcessFailure(rank, 1, 1, path) for rank in range(200)}
    assert len(str(ours.ChildFailedError("trainer", failures)).splitlines()) < 100


def test_the_summary_can_be_written_whatever_was_left(tmp_path: Path) -> None:
    path = str(left(tmp_path, "10", "ValueError: \udc80"))
    error = ours.ChildFailedError("trainer", {0: ours.ProcessFailure(0, 1, 1, path)})
    assert b"ValueError: \\udc80" in str(error).encode("utf-8")


def test_an_error_for_no_failure_at_all_is_refused(errors: Module) -> None:
    with pytest.raises(AssertionError):
        errors.ChildFailedError("trainer", {})


def test_the_error_can_be_sent_to_another_process(tmp_path: Path) -> None:
    failure = ours.ProcessFailure(0, 1, 1, str(left(tmp_path, "12")))
    sent = pickle.loads(pickle.dumps(ours.ChildFailedError("trainer", {3: failure})))
    assert sent.get_first_failure() == (3, failure)
    assert sent.name == "trainer"


# --- record and its handler ---------------------------------------------------------------


def handler_of(errors: Module) -> Any:
    class Own(errors.ErrorHandler):  # type: ignore[misc]
        def __init__(self) -> None:
            self.calls: list[Any] = []

        def initialize(self) -> None:
            self.calls.append("initialize")

        def record_exception(self, e: BaseException) -> None:
            self.calls.append(e)

        def dump_error_file(self, rootcause_error_file: str, error_code: int = 0) -> None:
            self.calls.append((rootcause_error_file, error_code))

    return Own()


def raise_it(error: BaseException) -> None:
    raise error


def test_record_hands_an_exception_to_the_handler(errors: Module) -> None:
    handler, error = handler_of(errors), ValueError("x")
    with pytest.raises(ValueError, match="x"):
        errors.record(raise_it, handler)(error)
    assert handler.calls == ["initialize", error]


def test_record_hands_over_what_a_failed_child_left(errors: Module, tmp_path: Path) -> None:
    handler, path = handler_of(errors), str(left(tmp_path, "12"))
    failed = errors.ChildFailedError("x", {3: errors.ProcessFailure(3, 1, -9, path)})
    with pytest.raises(errors.ChildFailedError):
        errors.record(raise_it, error_handler=handler)(failed)
    assert handler.calls == ["initialize", (path, -9)]


CRASHES = """
import faulthandler, os, sys
from {package}.multiprocessing.errors import record
faulthandler.enable(open(os.devnull, "w"))
record(os.abort)()
"""


def test_the_stacks_of_a_crash_are_on_stderr(errors: Module) -> None:
    program = CRASHES.format(package=errors.__name__.removesuffix(".multiprocessing.errors"))
    ended = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False
    )
    assert ended.returncode == -signal.SIGABRT
    assert "Fatal Python error: Aborted" in ended.stderr


@pytest.mark.parametrize("stderr", [None, io.StringIO()])
def test_record_works_where_stderr_has_no_descriptor(
    stderr: io.StringIO | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stderr", stderr)
    assert ours.record(list)() == []


def test_record_leaves_exits_alone(errors: Module) -> None:
    handler = handler_of(errors)
    assert errors.record(raise_it, handler)(SystemExit(0)) is None
    with pytest.raises(SystemExit):
        errors.record(raise_it, handler)(SystemExit(3))
    with pytest.raises(KeyboardInterrupt):
        errors.record(raise_it, handler)(KeyboardInterrupt())
    assert handler.calls == ["initialize"] * 3


def test_record_keeps_the_functions_name_arguments_and_value(errors: Module) -> None:
    @errors.record  # type: ignore[untyped-decorator]
    def add(left: int, right: int = 1) -> int:
        """Adds."""
        return left + right

    assert (add.__name__, add.__doc__) == ("add", "Adds.")
    assert (add(1), add(1, right=5)) == (2, 6)


def test_without_a_handler_the_error_goes_to_the_file(errors: Module, own_file: Path) -> None:
    with pytest.raises(ValueError, match="words"):
        errors.record(raise_it)(ValueError("words"))
    message = document_in(own_file)["message"]
    assert message["message"] == "ValueError: words"
    assert message["extraInfo"]["py_callstack"].endswith("ValueError: words\n")
    assert message["extraInfo"]["timestamp"].isdecimal()
    failure = errors.ProcessFailure(0, 1, 1, str(own_file))
    assert failure.timestamp == int(message["extraInfo"]["timestamp"])


def test_a_cause_goes_up_through_two_launchers(
    errors: Module, tmp_path: Path, own_file: Path
) -> None:
    child = left(tmp_path, "12")
    failed = errors.ChildFailedError("x", {3: errors.ProcessFailure(3, 1, 7, str(child))})
    with pytest.raises(errors.ChildFailedError):
        errors.record(raise_it)(failed)
    expected = document_in(child)
    expected["message"]["errorCode"] = 7
    assert document_in(own_file) == expected
    assert errors.ProcessFailure(0, 1, 1, str(own_file)).message == expected["message"]


@pytest.mark.torch
def test_what_one_side_writes_the_other_reads(tmp_path: Path, own_file: Path) -> None:
    theirs = import_module("torch.distributed.elastic.multiprocessing.errors")
    for writer, reader in ((ours, theirs), (theirs, ours)):
        with pytest.raises(ValueError, match="x"):
            writer.record(raise_it)(ValueError("x"))
        failure = reader.ProcessFailure(0, 1, 1, str(own_file))
        assert failure.message == document_in(own_file)["message"]
        with pytest.raises(reader.ChildFailedError):
            writer.record(raise_it)(reader.ChildFailedError("x", {0: failure}))


def test_a_child_that_left_nothing_is_described_by_its_parent(own_file: Path) -> None:
    failed = ours.ChildFailedError("x", {3: ours.ProcessFailure(3, 1, -9, "none")})
    with pytest.raises(ours.ChildFailedError):
        ours.record(raise_it)(failed)
    message = document_in(own_file)["message"]
    assert message["errorCode"] == -9
    assert "SIGKILL" in message["message"]


def test_a_file_that_cannot_be_written_does_not_hide_the_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(VARIABLE, str(tmp_path))  # a directory
    with pytest.raises(ValueError, match="x"):
        ours.record(raise_it)(ValueError("x"))
    assert capsys.readouterr().err.startswith("holdfast: cannot write the error file")


def test_the_handler_passes_on_a_file_with_its_exit_code(
    errors: Module, tmp_path: Path, own_file: Path
) -> None:
    own_file.write_text("an earlier one")
    handler = errors.get_error_handler()
    child = left(tmp_path, "12")
    handler.dump_error_file(str(child), 5)
    assert document_in(own_file)["message"]["errorCode"] == 5
    handler.dump_error_file(str(child))
    assert document_in(own_file) == document_in(child)
    handler.dump_error_file(str(written(tmp_path, {"message": "plain"})), 5)
    assert document_in(own_file) == {"message": "plain"}


def test_the_handler_says_that_a_childs_file_cannot_be_read(
    errors: Module, tmp_path: Path, own_file: Path
) -> None:
    handler = errors.get_error_handler()
    with pytest.raises(FileNotFoundError):
        handler.dump_error_file(str(tmp_path / "none"))
    with pytest.raises(ValueError, match="column"):
        handler.dump_error_file(str(written(tmp_path, "{")))
    assert not own_file.exists()


def test_without_the_variable_nothing_is_written(
    errors: Module, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    child = left(tmp_path, "12")
    handler = errors.get_error_handler()
    handler.record_exception(ValueError("x"))
    handler.dump_error_file(str(child))
    assert list(tmp_path.iterdir()) == [child]


def test_a_handler_may_choose_its_own_file(errors: Module, tmp_path: Path) -> None:
    class Elsewhere(errors.ErrorHandler):  # type: ignore[misc]
        def _get_error_file_path(self) -> str:
            return str(tmp_path / "elsewhere.json")

    with pytest.raises(ValueError, match="x"):
        errors.record(raise_it, Elsewhere())(ValueError("x"))
    assert document_in(tmp_path / "elsewhere.json")["message"]["message"] == "ValueError: x"


def test_the_modules_hold_the_names_that_callers_know(errors: Module) -> None:
    assert set(ours.__all__) == set(errors.__all__)
    assert ours.get_error_handler().__class__ is ErrorHandler
    assert errors.handlers.get_error_handler is errors.get_error_handler
    assert errors.error_handler.ErrorHandler is errors.ErrorHandler


# --- what a handler is told besides -------------------------------------------------------


def telling_handler(errors: Module) -> Any:
    """A handler that notes what it is asked to do, in order."""

    class Handler(errors.ErrorHandler):  # type: ignore[misc]
        def __init__(self) -> None:
            self.told: list[Any] = []

        def initialize(self) -> None:
            self.told.append(("initialize", self._fn_name))

        def record_exception(self, e: BaseException) -> None:
            self.told.append(("exception", type(e).__name__))

        def record_success(self) -> None:
            self.told.append("success")

    return Handler()


def test_a_handler_knows_the_function_and_that_it_succeeded(errors: Module) -> None:
    torch_versions.needs((2, 15), errors)
    handler = telling_handler(errors)
    assert errors.record(raise_it, handler).__name__ == "raise_it"
    assert errors.record(dict, handler)(a=1) == {"a": 1}
    with pytest.raises(ValueError, match="words"):
        errors.record(raise_it, handler)(ValueError("words"))
    assert errors.record(raise_it, handler)(SystemExit(0)) is None
    partial: Any = functools.partial(dict, a=1)
    assert errors.record(functools.wraps(dict)(partial), handler)() == {"a": 1}
    begins = [("initialize", name) for name in ("dict", "raise_it", "raise_it", "dict")]
    assert handler.told == [
        begins[0], "success", begins[1], ("exception", "ValueError"), begins[2], begins[3],
        "success",
    ]  # fmt: skip


def test_what_goes_wrong_after_a_success_is_no_error_of_the_function(errors: Module) -> None:
    torch_versions.needs((2, 15), errors)
    handler = telling_handler(errors)
    handler.record_success = lambda: raise_it(OSError("telemetry"))
    with pytest.raises(OSError, match="telemetry"):
        errors.record(list, handler)()
    assert handler.told == [("initialize", "list")]


def test_a_handler_may_add_to_the_message_about_a_signal(
    errors: Module, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    torch_versions.needs((2, 15), errors)

    class Handler(errors.ErrorHandler):  # type: ignore[misc]
        def maybe_enrich_signal_failure_message(self, message: str, error_file: str) -> str:
            return f"{message}; the device has a fault ({error_file})"

    monkeypatch.setattr(errors, "get_error_handler", Handler)
    killed = errors.ProcessFailure(0, 99, -9, str(tmp_path / "none"))
    assert "the device has a fault (<N/A>)" in str(errors.ChildFailedError("it", {0: killed}))
    failed = errors.ProcessFailure(0, 99, 1, str(left(tmp_path, "12")))
    assert "fault" not in str(errors.ChildFailedError("it", {0: failed}))
    monkeypatch.setattr(Handler, "maybe_enrich_signal_failure_message", lambda self: None)
    assert "99" in str(errors.ChildFailedError("it", {0: killed}))
