"""What becomes of whatever a registered logs specs is, raises or answers."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from enum import IntFlag
from importlib.metadata import EntryPoint, EntryPoints
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from holdfast.core.policy.config import JobConfig, Output, Program
from holdfast.core.protocol.errors import UsageError
from holdfast.elastic.multiprocessing import DefaultLogsSpecs, LogsSpecs, Std
from holdfast.processes.output import registered_logs
from holdfast.processes.output.registered_logs import RegisteredLayout, registered_layout
from holdfast.processes.output.run_folders import JobLogs
from holdfast.processes.output.stream_plans import LogsRefused, RoundLogs, StreamDestination

Register = Callable[[Any], None]


@pytest.fixture
def register(monkeypatch: pytest.MonkeyPatch) -> Register:
    """Make something the entry point `mine`."""

    def put(maker: Any) -> None:
        point = EntryPoint("mine", "not_loaded_from_disk", registered_logs.GROUP)
        monkeypatch.setattr(EntryPoint, "load", lambda self: maker)
        monkeypatch.setattr("importlib.metadata.entry_points", lambda **_: EntryPoints([point]))

    return put


def job(**output: Any) -> JobConfig:
    program = Program("script", "train.py")
    return JobConfig("run", program, slots=2, output=Output(**output), logs_specs="mine")


def answer(**changes: Any) -> SimpleNamespace:
    """A full answer for two workers, with changes."""
    full: dict[str, Any] = {
        "stdouts": {0: "o0", 1: "o1"},
        "stderrs": {0: "", 1: os.devnull},
        "tee_stdouts": {0: "o0"},
        "tee_stderrs": {1: os.devnull},
        "error_files": {0: "why0"},
        "filtered_stdout": "",
        "filtered_stderr": "",
    }
    return SimpleNamespace(**{**full, **changes})


def ask(reify: Callable[..., Any], environments: Any = None) -> RoundLogs:
    layout = RegisteredLayout("mine", SimpleNamespace(reify=reify), job())
    variables = environments or {0: {"RANK": "0"}, 1: {"RANK": "1"}}
    return layout.begin(JobLogs(Path("/logs")), 3, variables)


def test_every_kind_of_path_has_its_place() -> None:
    logs = ask(lambda _: answer())
    assert logs.places[0][1] == StreamDestination(Path("o0"), prefixed=True)
    assert logs.places[1][1] == StreamDestination(Path("o1"), direct=True)
    assert logs.places[0][2] == StreamDestination()
    assert logs.places[1][2] == StreamDestination(Path(os.devnull), direct=True, shown=False)


def test_an_error_file_that_is_not_named_is_ours() -> None:
    logs = ask(lambda _: answer())
    assert logs.error_files[0] == Path("why0")
    assert logs.error_files[1] == Path("/logs/attempt_3/1/error.json")


@pytest.mark.parametrize("nowhere", ["", os.devnull])
def test_an_error_file_may_be_nowhere(nowhere: str) -> None:
    logs = ask(lambda _: answer(error_files={0: nowhere}))
    assert logs.error_files[0] is None


def test_an_error_file_may_be_named_in_the_variables_only() -> None:
    def reify(given: dict[int, dict[str, str]]) -> SimpleNamespace:
        given[1]["TORCHELASTIC_ERROR_FILE"] = "why1"
        return answer()

    assert ask(reify).error_files[1] == Path("why1")


def test_variables_are_told_changed_and_taken_away() -> None:
    def reify(given: dict[int, dict[str, str]]) -> SimpleNamespace:
        assert given[0] == {"RANK": "0", "TORCHELASTIC_RUN_ID": "run"}
        given[0]["RANK"] = "7"
        given[0]["MINE"] = "new"
        del given[0]["TORCHELASTIC_RUN_ID"]
        return answer()

    own = {"PATH": "/bin", "RANK": "0", "TORCHELASTIC_RUN_ID": "run"}
    environments = {0: own, 1: {"PATH": "/bin"}}
    ask(reify, environments)
    assert environments == {0: {"PATH": "/bin", "RANK": "7", "MINE": "new"}, 1: {"PATH": "/bin"}}


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (None, "'NoneType' object has no attribute 'stdouts'"),
        (answer(stdouts={0: ""}), "stdouts has the local ranks [0], and must have 0 to 1"),
        (answer(stderrs={0: "", 1: "", 2: ""}), "stderrs has the local ranks [0, 1, 2]"),
        (answer(stdouts={0: None, 1: ""}), "not NoneType"),
        (answer(error_files={1: 5}), "not int"),
        (answer(filtered_stderr=None), "not NoneType"),
        (SimpleNamespace(stdouts={0: "", 1: ""}), "has no attribute 'stderrs'"),
    ],
)
def test_an_answer_that_is_not_full_is_refused_for_good(wrong: Any, message: str) -> None:
    with pytest.raises(LogsRefused) as refusal:
        ask(lambda _: wrong)
    assert refusal.value.message.startswith("the logs specs mine gave no full answer: ")
    assert message in refusal.value.message
    assert refusal.value.is_permanent


def test_a_variable_that_is_no_text_is_refused() -> None:
    def reify(given: dict[int, Any]) -> SimpleNamespace:
        given[1]["COUNT"] = 1
        return answer()

    with pytest.raises(LogsRefused, match="COUNT of local rank 1 is 1, and no text"):
        ask(reify)


@pytest.mark.parametrize("error", [OSError(28, "the disk is full"), SystemExit(3)])
def test_what_it_raises_is_told_with_its_own_frames_and_may_be_asked_again(
    error: BaseException,
) -> None:
    def reify(_: Any) -> None:
        raise error

    with pytest.raises(LogsRefused, match="the logs specs mine failed: ") as refusal:
        ask(reify)
    assert not refusal.value.is_permanent
    assert refusal.value.traceback.count("  File ") == 1
    assert "in reify" in refusal.value.traceback


def test_only_a_plain_file_is_made_empty_and_only_once(tmp_path: Path) -> None:
    plain, other = tmp_path / "plain", tmp_path / "other"
    link = tmp_path / "link"
    link.symlink_to(other)
    for path in (plain, other):
        path.write_text("of another job")
    streams = {0: str(plain), 1: str(link)}
    layout = RegisteredLayout(
        "mine", SimpleNamespace(reify=lambda _: answer(stdouts=streams)), job()
    )
    for attempt in range(2):
        layout.begin(JobLogs(None), attempt, {0: {}, 1: {}})
        assert plain.read_text() == "of this one" * attempt
        plain.write_text("of this one")
    assert other.read_text() == "of another job"


# --- making one ---------------------------------------------------------------------------


def made_with(register: Register, maker: Any, **output: Any) -> Any:
    """What the maker was given."""
    register(maker)
    return registered_layout(job(**output))._specs


def test_streams_of_our_family_are_our_std(register: Register, tmp_path: Path) -> None:
    output = {"redirects_default": 1, "tee": {1: 3}, "local_ranks_filter": (1,)}
    specs = made_with(register, DefaultLogsSpecs, log_dir=str(tmp_path), **output)
    assert specs == DefaultLogsSpecs(str(tmp_path), Std.OUT, {1: Std.ALL}, {1})
    assert type(specs._redirects) is Std


def test_streams_of_another_family_are_its_own(register: Register) -> None:
    """The one beside the oldest ancestor counts, whatever the class's own module has."""

    class TheirStd(IntFlag):
        ALL = 3

    family = SimpleNamespace(Std=TheirStd)
    oldest = type("LogsSpecs", (), {"__module__": "their.family", "__init__": keep})
    theirs = type("Theirs", (oldest,), {"reify": lambda self, envs: None})
    sys.modules["their.family"] = family  # type: ignore[assignment]
    try:
        specs = made_with(register, theirs, tee_default=3)
    finally:
        del sys.modules["their.family"]
    assert type(specs.tee) is TheirStd


def keep(self: Any, **wishes: Any) -> None:
    vars(self).update(wishes)


def test_no_filter_is_none(register: Register) -> None:
    maker = type("Mine", (), {"__init__": keep, "reify": lambda self, envs: None})
    assert made_with(register, maker).local_ranks_filter is None


@pytest.mark.parametrize(
    ("maker", "message"),
    [
        (LogsSpecs, "cannot be made: TypeError: Can't instantiate abstract class"),
        (lambda: None, "cannot be made: TypeError: "),
        (lambda **_: sys.exit("not today"), "cannot be made: SystemExit: not today"),
        (lambda **_: None, "is a NoneType, which has no `reify`"),
    ],
)
def test_what_cannot_be_made_is_refused(register: Register, maker: Any, message: str) -> None:
    register(maker)
    with pytest.raises(UsageError) as refusal:
        registered_layout(job())
    assert refusal.value.message.startswith(f"the logs specs mine {message}")
