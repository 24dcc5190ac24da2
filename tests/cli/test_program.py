"""What cannot run is refused before anything starts."""

from __future__ import annotations

import subprocess
import sys

import pytest

from holdfast.cli.program import check_program
from holdfast.core.policy.config import Program, ProgramKind
from holdfast.core.protocol.errors import UsageError

from .conftest import Run

pytestmark = pytest.mark.usefixtures("programs")


@pytest.mark.parametrize(
    ("kind", "target", "instead"),
    [
        ("script", "nosuch.py", ""),
        ("script", "package.train", "-m package.train"),
        ("script", "true", "--no-python true"),
        ("script", "empty", ""),
        ("run_path", "nosuch.py", ""),
        ("module", "nosuchmodule", ""),
        ("module", "package.trian", ""),
        ("module", "train.py", "-m train"),
        ("module", "package", "-m package."),
        ("command", "no-such-command", ""),
        ("command", "tool", "./tool"),
        ("command", "./data.txt", "chmod u+x"),
        ("command", "./package", ""),
        ("command", "./nosuch", ""),
    ],
)
def test_what_is_not_there_is_refused(kind: ProgramKind, target: str, instead: str) -> None:
    with pytest.raises(UsageError) as refused:
        check_program(Program(kind, target, interpreter=sys.executable))
    assert target in refused.value.message
    assert instead in refused.value.hint


@pytest.mark.parametrize(
    ("kind", "target"),
    [
        ("script", "train.py"),
        ("script", "runnable"),
        ("script", "-"),
        ("script", "/dev/stdin"),
        ("run_path", "train.py"),
        ("module", "package.train"),
        ("module", "package.sub"),
        ("module", "growing.anything"),
        ("module", "spread.train"),
        ("module", "http.server"),
        ("module", "pytest"),
        ("command", "sh"),
        ("command", "./tool"),
    ],
)
def test_what_can_run_is_let_pass(kind: ProgramKind, target: str) -> None:
    check_program(Program(kind, target, interpreter=sys.executable))


def test_what_another_interpreter_has_is_its_own_business() -> None:
    check_program(Program("module", "nosuchmodule", interpreter="/opt/other/python"))


def test_an_unreadable_file_is_refused() -> None:
    """In a process that is not root's, who can read everything."""
    check = (
        "import os\n"
        "from holdfast.cli.program import check_program\n"
        "from holdfast.core.policy.config import Program\n"
        "if os.geteuid() == 0: os.setuid(65534)\n"
        "check_program(Program('script', '/etc/shadow'))"
    )
    ended = subprocess.run(
        [sys.executable, "-c", check], check=False, capture_output=True, text=True
    )
    assert "UsageError: /etc/shadow" in ended.stderr


@pytest.mark.parametrize(
    "words", [("nosuch.py",), ("-m", "nosuchmodule"), ("empty",), ("--no-python", "nosuch")]
)
def test_the_command_ends_with_status_2_and_starts_no_round(
    run_holdfast: Run, words: tuple[str, ...]
) -> None:
    job = run_holdfast("run", *words)
    assert job.returncode == 2
    first, second = job.stderr.splitlines()
    assert first.startswith("holdfast: ")
    assert second.startswith("hint: ")
