"""What py-spy prints is read, what it is not is not, and it never outlives who asked."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as some

from holdfast.core.policy.stacks import read_stack
from holdfast.processes.monitoring import debugger

DEADLINE_S = 60
PROGRAM = "import os\ndef load_batch():\n    os.read(0, 1)\nload_batch()\n"
PRINTED = [
    {"thread_id": 7, "os_thread_id": 100, "thread_name": "MainThread", "frames": [
        {"name": "read", "filename": "/lib/libc.so.6", "module": "/lib/libc.so.6", "line": 0},
        {"name": "Loader.load", "filename": "/x/data.py", "module": None, "line": 6},
        {"name": "<module>", "filename": "/x/train.py", "module": None, "line": 2}]},
    {"thread_id": 8, "os_thread_id": 101, "thread_name": None, "frames": []},
]  # fmt: skip


def test_the_main_thread_is_read_as_that_of_faulthandler_is() -> None:
    spied = debugger.read(json.dumps(PRINTED).encode(), 100)
    frames = read_stack(debugger.as_faulthandler(spied))
    assert [(one.file, one.line, one.function) for one in frames] == [
        ("/x/data.py", 6, "load"),
        ("/x/train.py", 2, "<module>"),
    ]


def test_frames_of_c_are_for_reading() -> None:
    spied = debugger.read(json.dumps(PRINTED).encode(), 100)
    text = debugger.for_reading(spied)
    assert "MainThread:\n  read (libc.so.6)\n  Loader.load (/x/data.py:6)" in text


@given(some.binary(max_size=200))
def test_what_is_no_answer_is_none(output: bytes) -> None:
    assert debugger.read(output, 1) == ()


def in_place_of_py_spy(folder: Path, script: str, monkeypatch: pytest.MonkeyPatch) -> None:
    program = folder / "py-spy"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    monkeypatch.setattr(debugger, "installed", lambda: str(program))


def test_one_that_takes_too_long_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    in_place_of_py_spy(tmp_path, f"echo $$ > {tmp_path}/pid; exec sleep 1000", monkeypatch)
    monkeypatch.setattr(debugger, "EACH_S", 2.0)
    assert debugger.Debugger().stack_of(os.getpid()) == ""
    assert not is_there(int((tmp_path / "pid").read_text()))


def test_one_that_fails_or_is_not_there_gives_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_place_of_py_spy(tmp_path, "echo '[]'; exit 1", monkeypatch)
    assert debugger.Debugger().native_stack_of(os.getpid()) == ""
    monkeypatch.setattr(debugger, "installed", lambda: "")
    assert debugger.Debugger().stack_of(os.getpid()) == ""


def test_it_dies_with_the_agent(tmp_path: Path) -> None:
    program = tmp_path / "py-spy"
    program.write_text(f"#!/bin/sh\necho $$ > {tmp_path}/pid\nexec sleep 1000\n")
    program.chmod(0o755)
    code = (
        "from holdfast.processes.monitoring import debugger\n"
        f"debugger.installed = lambda: {str(program)!r}\n"
        "debugger.Debugger().stack_of(1)\n"
    )
    agent = subprocess.Popen([sys.executable, "-c", code])
    deadline = time.monotonic() + DEADLINE_S
    while not (tmp_path / "pid").exists() or not (tmp_path / "pid").read_text().strip():
        assert time.monotonic() < deadline
        time.sleep(0.01)
    agent.kill()
    agent.wait()
    pid = int((tmp_path / "pid").read_text())
    while is_there(pid):
        assert time.monotonic() < deadline, "it was left behind"
        time.sleep(0.01)


def is_there(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.skipif(not debugger.installed(), reason="needs py-spy")
def test_a_real_one_sees_a_real_process() -> None:
    worker = subprocess.Popen([sys.executable, "-c", PROGRAM], stdin=subprocess.PIPE)
    try:
        looks = debugger.Debugger()
        deadline = time.monotonic() + DEADLINE_S
        while "load_batch" not in (text := looks.stack_of(worker.pid)):
            assert time.monotonic() < deadline
            looks = debugger.Debugger()
        assert read_stack(text)[0].function == "load_batch"
        if shutil.which("gdb") and os.geteuid() == 0:
            assert "read (libc" in looks.native_stack_of(worker.pid)
    finally:
        assert worker.stdin is not None
        worker.stdin.close()
        worker.wait(DEADLINE_S)
