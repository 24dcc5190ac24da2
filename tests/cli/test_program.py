"""What cannot run is refused before anything starts."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.cli.program import check_program
from holdfast.core.policy.config import Program, ProgramKind
from holdfast.core.protocol.errors import UsageError

FILES = {
    "train.py": "",
    "empty/notes.txt": "",
    "runnable/__main__.py": "",
    "package/__init__.py": "",
    "package/train.py": "",
    "package/sub/__init__.py": "",
    "package/sub/__main__.py": "",
    "growing/__init__.py": "__path__ = ['elsewhere']",
    "spread/train.py": "",
    "data.txt": "",
}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name, text in FILES.items():
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True, parents=True)
        path.write_text(text)
    (tmp_path / "tool").write_text("#!/bin/sh\n")
    (tmp_path / "tool").chmod(0o755)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("kind", "target", "message", "hint"),
    [
        ("script", "nosuch.py", "there is no file nosuch.py", "looked in"),
        ("script", "package.train", "there is no file package.train", "write -m package.train"),
        ("script", "true", "there is no file true", "write --no-python true"),
        ("script", "empty", "empty is a directory without a __main__.py", "name a file"),
        ("run_path", "nosuch.py", "there is no file nosuch.py", "looked in"),
        ("module", "nosuchmodule", "there is no module nosuchmodule", "installed packages"),
        ("module", "package.trian", "there is no module package.trian", "installed packages"),
        ("module", "train.py", "there is no module train.py", "leave -m out, or write -m train"),
        ("module", "package", "package is a package without a __main__ module", "a module in it"),
        ("command", "no-such-command", "there is no command no-such-command", "PATH"),
        ("command", "tool", "there is no command tool", "write ./tool"),
        ("command", "./data.txt", "./data.txt is not executable", "chmod u+x"),
        ("command", "./package", "./package is a directory", "name a file"),
        ("command", "./nosuch", "there is no command ./nosuch", "looked in"),
    ],
)
def test_what_is_not_there_is_refused(
    kind: ProgramKind, target: str, message: str, hint: str
) -> None:
    with pytest.raises(UsageError) as caught:
        check_program(Program(kind, target, interpreter=sys.executable))
    assert message in caught.value.message
    assert hint in caught.value.hint


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
    assert "/etc/shadow cannot be read by this user" in ended.stderr


@pytest.mark.parametrize(
    "words", [("nosuch.py",), ("-m", "nosuchmodule"), ("empty",), ("--no-python", "nosuch")]
)
def test_the_command_ends_with_status_2_and_starts_no_round(run_holdfast, words) -> None:
    job = run_holdfast("run", *words)
    assert job.returncode == 2
    first, second = job.stderr.splitlines()
    assert first.startswith("holdfast: ")
    assert second.startswith("hint: ")
