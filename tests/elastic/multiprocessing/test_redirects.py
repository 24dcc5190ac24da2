"""Streams of this process that are sent to a file: all that is written, and nothing else."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture(
    params=["holdfast.elastic", pytest.param("torch.distributed.elastic", marks=pytest.mark.torch)]
)
def package(request: pytest.FixtureRequest) -> str:
    return str(request.param)


WRITES = """
import ctypes, os, sys
from {package}.multiprocessing.redirects import redirect, redirect_stderr, redirect_stdout
libc = ctypes.CDLL(None)
sys.stdout = open(1, "w", buffering=4096, closefd=False)
print("python before"); libc.puts(b"c before")
for number in (1, 2):
    with redirect_stdout(f"out{{number}}"), redirect("stderr", "err"):
        print("python inside"); libc.puts(b"c inside"); os.system("echo child inside")
        print("error inside", file=sys.stderr); os.system("echo child error >&2")
print("python after"); libc.puts(b"c after"); print("error after", file=sys.stderr)
with redirect_stdout("left"):
    try:
        with redirect_stdout("inner"):
            print("innermost"); raise KeyError
    except KeyError:
        print("after an error")
sys.stdout.flush(); libc.fflush(None)
"""


def test_all_that_is_written_goes_to_the_file_and_then_back(package: str, tmp_path: Path) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", WRITES.format(package=package)],
        cwd=tmp_path,
        env={name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert sorted(ended.stdout.splitlines()) == sorted(
        f"{who} {when}" for who in ("c", "python") for when in ("before", "after")
    )
    assert ended.stderr == "error after\n"
    for number in (1, 2):
        lines = sorted((tmp_path / f"out{number}").read_text().splitlines())
        assert lines == ["c inside", "child inside", "python inside"]
    assert (tmp_path / "err").read_text() == "error inside\nchild error\n"
    assert (tmp_path / "inner").read_text() == "innermost\n"
    assert (tmp_path / "left").read_text() == "after an error\n"


def test_another_name_than_those_of_the_streams_is_refused(package: str, tmp_path: Path) -> None:
    redirects: Any = import_module(f"{package}.multiprocessing.redirects")
    with pytest.raises(ValueError, match="std"), redirects.redirect("stdin", str(tmp_path / "x")):
        pass
    assert not list(tmp_path.iterdir())


FAILS = """
import os, sys
from holdfast.elastic.multiprocessing.redirects import redirect_stdout
descriptors = len(os.listdir("/proc/self/fd"))
for path, error in (("missing/file", FileNotFoundError), ("/dev/full", OSError)):
    try:
        with redirect_stdout(path):
            print("lost")
    except error:
        print("here", len(os.listdir("/proc/self/fd")) - descriptors)
print(os.get_inheritable(1))
"""


def test_a_file_that_cannot_be_had_or_is_full_leaves_the_stream_where_it_was(
    tmp_path: Path,
) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", FAILS],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert ended.stdout.splitlines()[-1] == "True"
    assert ended.stdout.count("here 0\n") == 2
