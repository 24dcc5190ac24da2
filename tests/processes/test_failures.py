"""Reading what a dead worker left, and passing it up."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from holdfast.core.policy.config import Program, ProgramKind
from holdfast.core.protocol.model import ErrorDetail, ExitStatus, Failure
from holdfast.processes import failures
from holdfast.processes.failures import pass_up, read_error, traceback_from_stderr
from holdfast.worker import error_file
from holdfast.worker.non_retryable import NonRetryable


def raised(error: Exception) -> Exception:
    """The exception, having been raised, with its traceback."""
    try:
        raise error
    except type(error) as caught:
        return caught


def failure(**changes: object) -> Failure:
    fields = {
        "node": "n",
        "host": "machine",
        "local_rank": 1,
        "rank": 3,
        "role": "default",
        "pid": 77,
        "status": ExitStatus(signal=9),
        "observed_at": 5.0,
    }
    return Failure(**{**fields, **changes})  # type: ignore[arg-type]


# --- read_error ---------------------------------------------------------------------------


def test_what_was_written_is_read(tmp_path: Path) -> None:
    path = tmp_path / "error.json"
    error_file.write(str(path), raised(NonRetryable("no data\nat all")))
    detail = read_error(path)
    assert detail.message == "NonRetryable: no data\nat all"
    assert detail.traceback.startswith("Traceback (most recent call last):\n")
    assert detail.traceback.endswith("NonRetryable: no data\nat all\n")
    assert detail.non_retryable
    written_ns = json.loads(path.read_text())["message"]["extraInfo"]["timestamp_ns"]
    assert detail.timestamp == int(written_ns) / 1e9


@pytest.mark.torch
@pytest.mark.timeout(300)
@pytest.mark.thorough
def test_what_pytorchs_record_wrote_is_read(tmp_path: Path) -> None:
    path = tmp_path / "error.json"
    code = (
        "from torch.distributed.elastic.multiprocessing.errors import record\n"
        "record(lambda: 1 / 0)()\n"
    )
    environ = {**os.environ, error_file.VARIABLE: str(path)}
    done = subprocess.run([sys.executable, "-c", code], env=environ, stderr=-1, check=False)
    detail = read_error(path)
    assert done.returncode == 1
    assert detail.message == "ZeroDivisionError: division by zero"
    assert detail.traceback.endswith("ZeroDivisionError: division by zero\n")
    assert detail.timestamp is not None
    assert not detail.non_retryable


@pytest.mark.parametrize(
    ("contents", "expected"),
    [
        ("", ErrorDetail()),
        ("not json", ErrorDetail()),
        ('{"message": {"message": "A: b", "extraIn', ErrorDetail()),
        ("[]", ErrorDetail()),
        ("null", ErrorDetail()),
        ("{}", ErrorDetail()),
        ('{"message": null}', ErrorDetail()),
        ('{"message": 7}', ErrorDetail()),
        ('{"message": "plain text"}', ErrorDetail(message="plain text")),
        ('{"message": "a", "timestamp": 4}', ErrorDetail(message="a", timestamp=4.0)),
        ('{"message": {"message": "A: b"}}', ErrorDetail(message="A: b")),
        ('{"message": {"message": "A: b", "extraInfo": "x"}}', ErrorDetail(message="A: b")),
        ('{"message": {"message": ["A"], "extraInfo": {"py_callstack": 1}}}', ErrorDetail()),
        ('{"message": {"extraInfo": {"timestamp": "12"}}}', ErrorDetail(timestamp=12.0)),
        ('{"message": {"extraInfo": {"timestamp": "soon"}}}', ErrorDetail()),
        ('{"message": {"extraInfo": {"timestamp": NaN}}}', ErrorDetail()),
        ('{"message": {"extraInfo": {"timestamp": 1e999}}}', ErrorDetail()),
        ('{"message": {"extraInfo": {"timestamp": true}}}', ErrorDetail()),
        ('{"message": {"extraInfo": {"timestamp": 1' + "0" * 400 + "}}}", ErrorDetail()),
        ('{"message": {"extraInfo": {"non_retryable": "yes"}}}', ErrorDetail()),
        ('{"message": "\\udc80 \\ud83d\\ude00"}', ErrorDetail(message="\\udc80 \U0001f600")),
        ("[" * 200_000, ErrorDetail()),
    ],
    ids=lambda value: repr(value)[:50],
)
def test_any_other_file_gives_what_can_be_understood(
    tmp_path: Path, contents: str, expected: ErrorDetail
) -> None:
    path = tmp_path / "error.json"
    path.write_text(contents)
    assert read_error(path) == expected


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=200)
@given(contents=st.binary() | st.integers(0, 200).map(lambda n: SAMPLE[:n] + SAMPLE[n + 3 :]))
def test_no_contents_whatever_raise_or_cannot_be_written_again(
    tmp_path: Path, contents: bytes
) -> None:
    path = tmp_path / "error.json"
    path.write_bytes(contents)
    detail = read_error(path)
    assert (detail.message + detail.traceback).encode("utf-8") is not None


SAMPLE: bytes = json.dumps(error_file.describe(ValueError("é" * 20))).encode()


def test_what_is_not_a_file_is_nothing_and_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    os.mkfifo(tmp_path / "held")
    writer = os.open(tmp_path / "held", os.O_RDWR)
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    try:
        for name in ("pipe", "held", "loop", "missing", ".", "missing/error.json"):
            assert read_error(tmp_path / name) == ErrorDetail()
    finally:
        os.close(writer)


def test_a_file_of_absurd_size_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "error.json"
    text = '{"message": "x"}'
    path.write_text(text.ljust(error_file.READ_LIMIT))
    assert read_error(path).message == "x"
    path.write_text(text.ljust(error_file.READ_LIMIT + 1))
    assert read_error(path) == ErrorDetail()


# --- pass_up ------------------------------------------------------------------------------


def test_the_cause_goes_up_as_it_was_written_with_its_exit_code(tmp_path: Path) -> None:
    left, own = tmp_path / "left.json", tmp_path / "new" / "own.json"
    error_file.write(str(left), raised(ValueError("x")))
    cause = failure(error_file=str(left), status=ExitStatus(code=4))
    assert pass_up(cause, str(own)) == ""
    expected = json.loads(left.read_text())
    expected["message"]["errorCode"] = 4
    assert json.loads(own.read_text()) == expected


def test_a_plain_message_goes_up_as_it_is(tmp_path: Path) -> None:
    left, own = tmp_path / "left.json", tmp_path / "own.json"
    left.write_text('{"message": "plain", "timestamp": 3}')
    pass_up(failure(error_file=str(left)), str(own))
    assert json.loads(own.read_text()) == {"message": "plain", "timestamp": 3}


@pytest.mark.parametrize("contents", [None, "", "{", '{"message": {"message": "A: b"}}'])
def test_a_worker_that_left_nothing_of_use_is_described(
    tmp_path: Path, contents: str | None
) -> None:
    left, own = tmp_path / "left.json", tmp_path / "own.json"
    if contents is not None:
        left.write_text(contents)
    pass_up(failure(error_file=str(left), out_of_memory="the kernel did it"), str(own))
    message = json.loads(own.read_text())["message"]
    assert message["message"] == (
        "rank 3 (pid 77) on machine ended with signal 9 (SIGKILL): the kernel did it"
    )
    assert message["errorCode"] == -9
    assert message["extraInfo"]["py_callstack"] == message["message"]
    assert message["extraInfo"]["timestamp"].isdecimal()


def test_what_is_known_of_a_worker_elsewhere_goes_up(tmp_path: Path) -> None:
    own = tmp_path / "own.json"
    error = ErrorDetail("A: b", "stack\n", timestamp=12.5, non_retryable=True)
    pass_up(failure(error=error, status=ExitStatus(code=1)), str(own))
    assert read_error(own) == ErrorDetail("A: b", "stack\n", timestamp=12.0, non_retryable=True)


def test_a_traceback_on_stderr_goes_up_for_want_of_another(tmp_path: Path) -> None:
    own = tmp_path / "own.json"
    stack = 'Traceback (most recent call last):\n  File "x", line 1, in y\nKeyError: 3\n'
    pass_up(failure(stderr_tail=f"loading\n{stack}bye\n", status=ExitStatus(code=1)), str(own))
    assert read_error(own).traceback == stack


def test_nobody_above_is_no_error() -> None:
    assert pass_up(failure(), None) == ""
    assert pass_up(failure(), "") == ""


def test_a_place_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    own = str(tmp_path / "file" / "own.json")
    assert pass_up(failure(), own) == (f"the cause could not be passed up to {own}: File exists")


@pytest.mark.torch
@pytest.mark.timeout(300)
@pytest.mark.thorough
def test_pytorchs_reader_understands_what_went_up(tmp_path: Path) -> None:
    own = tmp_path / "own.json"
    pass_up(failure(), str(own))
    code = (
        "import sys\n"
        "from torch.distributed.elastic.multiprocessing.errors import *\n"
        "print(ChildFailedError('job', {3: ProcessFailure(1, 77, -9, sys.argv[1])}))\n"
    )
    done = subprocess.run([sys.executable, "-c", code, own], capture_output=True, check=True)
    assert b"rank 3 (pid 77) on machine ended with signal 9 (SIGKILL)" in done.stdout


# --- traceback_from_stderr ----------------------------------------------------------------


def printed_by(code: str) -> str:
    """What a real interpreter prints for a program."""
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, check=False
    )
    return done.stderr


PLAIN = printed_by("def f():\n    raise ValueError('no')\nf()\n")
CHAINED = printed_by(
    """
    try:
        try:
            1 / 0
        except Exception as error:
            raise KeyError("several\\nlines") from error
    except Exception:
        raise OSError("at last")
    """
)
INDENTED = printed_by("raise RuntimeError('missing:\\n\\tone\\n\\ttwo')")
IN_THREAD = printed_by("import threading\nthreading.Thread(target=lambda: 1 / 0).start()")
IGNORED = printed_by("class A:\n    def __del__(self): 1 / 0\nA()\n")
BARE = printed_by("raise KeyboardInterrupt")
NESTED_CLASS = printed_by("def f():\n    class E(Exception): pass\n    raise E('x')\nf()")


@pytest.mark.parametrize(
    "printed", [PLAIN, INDENTED, BARE, NESTED_CLASS], ids=lambda text: text[-30:]
)
def test_a_printed_traceback_is_found_among_other_lines(printed: str) -> None:
    assert printed
    for before in ("", "some words\n", " 50%|#####     | 5/10 [00:00<00:00]", PLAIN):
        for after in ("", "more words\n", "\n  indented\n", "Traceback (most recent call last):\n"):
            assert traceback_from_stderr(before + printed + after) == printed


@pytest.mark.parametrize("prefix", ["[rank0]: ", "[default0]:", "2024-01-01 ERROR "])
def test_a_prefix_of_all_lines_is_taken_away(prefix: str) -> None:
    printed = PLAIN
    for blank in (prefix, "", prefix.rstrip()):
        lines = [prefix + line if line else blank for line in printed.splitlines()]
        text = "\n".join(["before", *lines, "after"])
        found = traceback_from_stderr(text)
        assert [
            line for line in found.splitlines() if line.strip() not in ("", prefix.strip())
        ] == [line for line in printed.splitlines() if line]


def test_of_a_chain_the_last_is_taken() -> None:
    found = traceback_from_stderr(CHAINED)
    assert found.endswith("OSError: at last\n")
    assert CHAINED.endswith(found)
    assert "KeyError" not in found


def test_the_last_of_several_is_taken() -> None:
    assert traceback_from_stderr(f"{CHAINED}and\n{PLAIN}") == PLAIN


@pytest.mark.parametrize("harmless", [IN_THREAD, IGNORED], ids=["thread", "finaliser"])
def test_one_that_ends_no_process_is_taken_only_for_want_of_another(harmless: str) -> None:
    alone = traceback_from_stderr(harmless)
    assert alone.splitlines()[1].startswith("Traceback"), "whose it is stands before it"
    assert harmless.endswith(alone)
    assert traceback_from_stderr(PLAIN + harmless) == PLAIN


@pytest.mark.parametrize(
    "text",
    [
        "",
        "no traceback at all\n",
        "Traceback (most recent call last):\n",
        'Traceback (most recent call last):\n  File "x", line 1, in y\n',
        'Traceback (most recent call last):\n  File "x", line 1, in y\n    code()',
        'Traceback (most recent call last):\n  File "x", line 1, in y\n!? noise\n',
        "Traceback (most recent call last):\nValueError: x\n",
        '  File "x", line 1, in y\nValueError: its head is missing\n',
    ],
)
def test_one_that_is_not_whole_is_not_there(text: str) -> None:
    assert traceback_from_stderr(text) == ""


def test_carriage_returns_do_not_hide_it() -> None:
    assert traceback_from_stderr(PLAIN.replace("\n", "\r\n")) == PLAIN


@given(st.lists(st.sampled_from([*PLAIN.splitlines(), *CHAINED.splitlines(), "", "x"])))
def test_no_text_whatever_raises(lines: list[str]) -> None:
    assert isinstance(traceback_from_stderr("\n".join(lines)), str)


def test_a_printed_traceback_completes_what_the_worker_left() -> None:
    tail = textwrap.dedent("""\
        noise
        Traceback (most recent call last):
          File "train.py", line 3, in <module>
            load()
        ValueError: first line
        second line
    """)
    left = ErrorDetail(non_retryable=True)

    completed = failures.completed_from_stderr(left, tail)

    assert completed.message == "ValueError: first line"
    assert completed.traceback.startswith("Traceback")
    assert completed.non_retryable


def test_stderr_without_a_traceback_changes_nothing() -> None:
    left = ErrorDetail(message="said by the worker")

    assert failures.completed_from_stderr(left, "just text\n") is left


def test_a_missing_module_of_the_programs_own_package_is_not_to_be_installed(
    tmp_path: Path,
) -> None:
    missing = ErrorDetail("ModuleNotFoundError: No module named 'mine.models.new'")
    program = Program("script", str(tmp_path / "train.py"))
    assert failures.with_place_of_module(missing, program) == missing
    (tmp_path / "mine").mkdir()
    told = failures.with_place_of_module(missing, program).message
    assert told == f"{missing.message} (mine is the program's own)"


@pytest.mark.parametrize(
    ("kind", "target", "found"),
    [
        ("script", "scripts/train.py", "it is in the working directory"),
        ("module", "mine.train", "it is beside the program"),
    ],
)
def test_of_a_missing_module_it_is_said_where_it_is(
    kind: ProgramKind, target: str, found: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    missing = ErrorDetail("ModuleNotFoundError: No module named 'lib'\nmore")
    program = Program(kind, target)
    assert failures.with_place_of_module(missing, program) == missing
    place = tmp_path / ("" if kind == "script" else "mine") / "lib"
    place.mkdir(parents=True)
    first, *rest = failures.with_place_of_module(missing, program).message.splitlines()
    assert first.startswith("ModuleNotFoundError: No module named 'lib' (")
    assert found in first
    assert rest == ["more"]
    for words in (
        "ValueError: No module named 'lib'",
        "ModuleNotFoundError: No module named 'lib.a'",
    ):
        other = ErrorDetail(words)
        assert failures.with_place_of_module(other, program) == other
