"""`record` and the error file, beside what PyTorch's decorator does with the same program."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from holdfast.worker import error_file
from holdfast.worker.non_retryable import NonRetryable
from holdfast.worker.record import record

PROGRAM = """
import sys
from {module} import record

class Odd(Exception):
    pass

class Failure:
    def __init__(self, error_file, exitcode):
        self.error_file, self.exitcode = error_file, exitcode
        self.timestamp = 0

@record
def main(how, *rest):
    if how == "plain":
        raise ValueError("bad \\u00e9 value")
    if how == "chained":
        try:
            1 / 0
        except ZeroDivisionError as error:
            raise Odd("two\\nlines") from error
    if how == "exit":
        sys.exit(eval(rest[0]))
    if how == "interrupt":
        raise KeyboardInterrupt
    if how == "child":
        raise child_failed(rest[0], int(rest[1]))
    return how

{child_failed}

print("returned", main(*sys.argv[1:]))
"""

OUR_CHILD_FAILED = """
class ChildFailed(Exception):
    def get_first_failure(self):
        return 3, self.args[0]

def child_failed(error_file, exitcode):
    return ChildFailed(Failure(error_file, exitcode))
"""

PYTORCH_CHILD_FAILED = """
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure

def child_failed(error_file, exitcode):
    return ChildFailedError("x", {3: ProcessFailure(3, 1, exitcode, error_file)})
"""

OURS = PROGRAM.format(module="holdfast.worker.record", child_failed=OUR_CHILD_FAILED)
PYTORCHS = PROGRAM.format(
    module="torch.distributed.elastic.multiprocessing.errors", child_failed=PYTORCH_CHILD_FAILED
)


class Ended:
    """How a program ended and what it left."""

    def __init__(self, done: subprocess.CompletedProcess[str], left: Path) -> None:
        self.status, self.stdout, self.stderr = done.returncode, done.stdout, done.stderr
        self.document = json.loads(left.read_text()) if left.exists() else None

    @property
    def message(self) -> dict[str, Any]:
        assert self.document is not None
        message: dict[str, Any] = self.document["message"]
        return message


def run(directory: Path, program: str, *arguments: str, with_file: bool = True) -> Ended:
    script, left = directory / "program.py", directory / "deep" / "error.json"
    script.write_text(program)
    left.unlink(missing_ok=True)
    left.parent.mkdir(exist_ok=True)  # PyTorch does not make it
    environ = {k: v for k, v in os.environ.items() if k != error_file.VARIABLE}
    if with_file:
        environ[error_file.VARIABLE] = str(left)
    environ["PYTHONPATH"] = os.pathsep.join(p for p in sys.path if p)
    done = subprocess.run(
        [sys.executable, script, *arguments],
        capture_output=True,
        text=True,
        env=environ,
        cwd=directory,
        timeout=100,
        check=False,
    )
    return Ended(done, left)


def test_an_exception_is_written_down_and_goes_on(tmp_path: Path) -> None:
    ended = run(tmp_path, OURS, "plain")
    assert ended.status == 1
    assert ended.message["message"] == "ValueError: bad é value"
    assert ended.stderr.endswith("ValueError: bad é value\n")
    assert ended.stderr == ended.message["extraInfo"]["py_callstack"].replace(
        "(most recent call last):\n", "(most recent call last):\n" + called_from(ended), 1
    )


def called_from(ended: Ended) -> str:
    """The outermost frame, which the decorated function does not see."""
    lines = ended.stderr.splitlines(keepends=True)
    return "".join(lines[1 : next(i for i, line in enumerate(lines) if "record.py" in line)])


def test_the_causes_of_an_exception_are_written_too(tmp_path: Path) -> None:
    callstack = run(tmp_path, OURS, "chained").message["extraInfo"]["py_callstack"]
    assert "ZeroDivisionError: division by zero" in callstack
    assert "direct cause" in callstack
    assert callstack.endswith("Odd: two\nlines\n")


def test_a_good_end_returns_the_value_and_leaves_nothing(tmp_path: Path) -> None:
    ended = run(tmp_path, OURS, "well")
    assert (ended.status, ended.stdout, ended.stderr) == (0, "returned well\n", "")
    assert ended.document is None


@pytest.mark.parametrize(
    ("code", "status", "stdout"),
    [("0", 0, "returned None\n"), ("None", 0, ""), ("3", 3, ""), ("'words'", 1, "")],
)
def test_an_exit_is_a_decision_and_leaves_nothing(
    tmp_path: Path, code: str, status: int, stdout: str
) -> None:
    ended = run(tmp_path, OURS, "exit", code)
    assert (ended.status, ended.stdout, ended.document) == (status, stdout, None)


def test_without_the_variable_nothing_is_written_or_said(tmp_path: Path) -> None:
    ended = run(tmp_path, OURS, "plain", with_file=False)
    assert (ended.status, ended.document) == (1, None)
    assert ended.stderr.startswith("Traceback")
    assert ended.stderr.endswith("ValueError: bad é value\n")


def test_a_failed_childs_error_is_passed_up_with_its_exit_code(tmp_path: Path) -> None:
    extra = {"py_callstack": "stack", "timestamp": "12", "own": [1]}
    child = write_json(tmp_path, {"message": {"message": "A: b", "extraInfo": extra}})
    ended = run(tmp_path, OURS, "child", child, "-9")
    assert ended.status == 1
    assert ended.document == {"message": {"message": "A: b", "extraInfo": extra, "errorCode": -9}}


def test_a_plain_message_of_a_child_is_passed_up_as_it_is(tmp_path: Path) -> None:
    child = write_json(tmp_path, {"message": "plain", "timestamp": "5"})
    ended = run(tmp_path, OURS, "child", child, "1")
    assert ended.document == {"message": "plain", "timestamp": "5"}


@pytest.mark.parametrize("contents", [None, "", '{"message": {"mess', "[1]", "{}"])
def test_a_child_that_left_nothing_of_use_is_reported_by_its_parent(
    tmp_path: Path, contents: str | None
) -> None:
    child = tmp_path / "child.json"
    if contents is not None:
        child.write_text(contents)
    ended = run(tmp_path, OURS, "child", str(child), "7")
    assert ended.message["message"].startswith("ChildFailed: ")
    assert ended.message["errorCode"] == 7
    assert ended.stderr.count("Traceback") == 1


def write_json(directory: Path, document: object) -> str:
    path = directory / "child.json"
    path.write_text(json.dumps(document))
    return str(path)


CASES = (
    ("plain",),
    ("chained",),
    ("well",),
    ("exit", "0"),
    ("exit", "None"),
    ("exit", "3"),
    ("exit", "'words'"),
    ("interrupt",),
    ("child", "shaped.json", "-9"),
    ("child", "shaped.json", "0"),
    ("child", "plain.json", "-9"),
)

# PyTorch takes seconds to import: one process does it, and forks for each case.
FORK_FOR_EACH_CASE = """
import json, os, runpy, sys
import torch.distributed.elastic.multiprocessing.errors
program, cases = sys.argv[1], json.loads(sys.argv[2])
for number, case in enumerate(cases):
    child = os.fork()
    if not child:
        break
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    open(f"{number}.status", "w").write(str(code))
else:
    sys.exit()
os.environ["TORCHELASTIC_ERROR_FILE"] = f"{number}.json"
for stream, name in ((1, "stdout"), (2, "stderr")):
    os.dup2(os.open(f"{number}.{name}", os.O_CREAT | os.O_WRONLY), stream)
sys.argv[:] = [program, *case]
runpy.run_path(program, run_name="__main__")
"""


@pytest.fixture(scope="module")
def under_pytorch(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, ...], Ended]:
    """How each case ends under PyTorch's own decorator."""
    directory = tmp_path_factory.mktemp("pytorch")
    write_children(directory)
    (directory / "program.py").write_text(PYTORCHS)
    driver = [sys.executable, "-c", FORK_FOR_EACH_CASE, "program.py", json.dumps(CASES)]
    subprocess.run(driver, cwd=directory, timeout=280, check=True)
    found = {}
    for number, case in enumerate(CASES):
        status = int((directory / f"{number}.status").read_text())
        stdout, stderr = ((directory / f"{number}.{n}").read_text() for n in ("stdout", "stderr"))
        done = subprocess.CompletedProcess(case, status, stdout, stderr)
        found[case] = Ended(done, directory / f"{number}.json")
    return found


def write_children(directory: Path) -> None:
    shaped = {"message": {"message": "A: b", "extraInfo": {"timestamp": "1"}}}
    (directory / "shaped.json").write_text(json.dumps(shaped))
    (directory / "plain.json").write_text(json.dumps({"message": "plain", "timestamp": "5"}))


@pytest.mark.torch
@pytest.mark.thorough
@pytest.mark.timeout(400)
@pytest.mark.parametrize("case", CASES, ids=" ".join)
def test_the_same_program_ends_as_under_pytorchs_record(
    tmp_path: Path, case: tuple[str, ...], under_pytorch: dict[tuple[str, ...], Ended]
) -> None:
    write_children(tmp_path)
    ours, theirs = run(tmp_path, OURS, *case), under_pytorch[case]
    assert (ours.status, ours.stdout) == (theirs.status, theirs.stdout)
    if theirs.document is None or case[0] == "child":
        assert ours.document == theirs.document
        return
    assert ours.message["message"] == theirs.message["message"]
    assert ours.message.keys() == theirs.message.keys()
    extra, their_extra = ours.message["extraInfo"], theirs.message["extraInfo"]
    assert extra.keys() - their_extra.keys() == {"timestamp_ns"}
    assert their_extra.keys() <= extra.keys()
    assert {k: type(extra[k]) for k in their_extra} == {k: type(v) for k, v in their_extra.items()}
    assert extra["timestamp"].isdecimal()
    assert own_frames(extra["py_callstack"]) == own_frames(their_extra["py_callstack"])


def own_frames(callstack: str) -> list[str]:
    """Where in the program itself the exception passed, without the decorators' frames."""
    return re.findall(r'program\.py", (line \d+, in \w+)', callstack)


def test_a_crash_of_the_interpreter_shows_its_stacks(tmp_path: Path) -> None:
    crash = "from holdfast.worker.record import record\nimport os\nrecord(os.abort)()\n"
    ended = run(tmp_path, crash)
    assert ended.status == -6
    assert "Fatal Python error: Aborted" in ended.stderr


def test_the_users_own_place_for_the_stacks_of_a_crash_stands(tmp_path: Path) -> None:
    crash = (
        "from holdfast.worker.record import record\nimport faulthandler, os\n"
        "faulthandler.enable(open('stacks', 'w'))\nrecord(os.abort)()\n"
    )
    ended = run(tmp_path, crash)
    assert ended.stderr == ""
    assert "Fatal Python error: Aborted" in (tmp_path / "stacks").read_text()


def test_the_decorated_function_keeps_its_name_arguments_and_value() -> None:
    @record
    def add(left: int, right: int = 1) -> int:
        """Adds."""
        return left + right

    assert (add.__name__, add.__doc__) == ("add", "Adds.")
    assert (add(1), add(1, right=5), add(left=2)) == (2, 6, 3)


# --- the file itself ----------------------------------------------------------------------


def describe(exception: BaseException) -> dict[str, Any]:
    message: dict[str, Any] = error_file.describe(exception)["message"]
    return message


def test_what_will_not_get_better_is_marked() -> None:
    class Foreign(Exception):
        non_retryable = True

    class Undecided(Exception):
        non_retryable = "no"

    assert describe(NonRetryable("stop"))["extraInfo"]["non_retryable"] is True
    assert describe(Foreign())["extraInfo"]["non_retryable"] is True
    assert "non_retryable" not in describe(Undecided())["extraInfo"]
    assert "non_retryable" not in describe(ValueError())["extraInfo"]


def test_a_huge_text_is_cut_in_the_middle_with_a_note() -> None:
    message = describe(ValueError("a" * 10_000_000 + "the end"))
    for text in (message["message"], message["extraInfo"]["py_callstack"]):
        assert len(text) < error_file.TEXT_LIMIT + 100
        assert "characters left out" in text
        assert "the end" in text[-20:]
    assert message["message"].startswith("ValueError: aaa")


def test_a_text_at_the_limit_is_whole() -> None:
    assert error_file.cut("x" * error_file.TEXT_LIMIT) == "x" * error_file.TEXT_LIMIT


def test_an_exception_without_a_text_of_its_own_is_still_described() -> None:
    class Mute(Exception):
        def __str__(self) -> str:
            raise RuntimeError("no words")

    assert describe(Mute())["message"].startswith("Mute: ")


def test_any_text_makes_a_file_of_plain_ascii(tmp_path: Path) -> None:
    path = tmp_path / "error.json"
    error_file.write(str(path), ValueError("é \udc80 \U0001f600 \0"))
    assert path.read_bytes().isascii()
    assert (
        json.loads(path.read_text())["message"]["message"] == "ValueError: é \udc80 \U0001f600 \0"
    )


def test_missing_directories_are_made_and_nothing_else_is_left(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b" / "error.json"
    error_file.write(str(path), ValueError("x"))
    assert [p.name for p in path.parent.iterdir()] == ["error.json"]


def test_what_is_there_stays_only_when_asked_to(tmp_path: Path) -> None:
    path = tmp_path / "error.json"
    path.write_text("{}")
    error_file.write(str(path), ValueError("x"), only_if_absent=True)
    assert path.read_text() == "{}"
    error_file.write(str(path), ValueError("x"))
    assert json.loads(path.read_text())["message"]["message"] == "ValueError: x"


def test_an_empty_file_counts_as_absent(tmp_path: Path) -> None:
    path = tmp_path / "error.json"
    path.touch()
    error_file.write(str(path), ValueError("x"), only_if_absent=True)
    assert path.stat().st_size > 0


@pytest.mark.parametrize("where", ["file/error.json", "directory"])
def test_a_place_that_cannot_be_written_costs_one_line(
    tmp_path: Path, where: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "directory").mkdir()
    error_file.write(str(tmp_path / where), ValueError("x"))
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith("holdfast: cannot write the error file")
    assert said.err.count("\n") == 1
    assert sorted(p.name for p in tmp_path.iterdir()) == ["directory", "file"]


def test_a_closed_stderr_does_no_harm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setattr(sys, "stderr", None)
    for where in ("file/error.json", "error.json"):
        error_file.write(str(tmp_path / where), ValueError("x"))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["error.json", "file"]
    assert "ValueError: x" in (tmp_path / "error.json").read_text()


def test_an_unset_or_empty_variable_names_no_file() -> None:
    assert error_file.path_from_environment({}) is None
    assert error_file.path_from_environment({error_file.VARIABLE: ""}) is None
    assert error_file.path_from_environment({error_file.VARIABLE: "/x"}) == "/x"
