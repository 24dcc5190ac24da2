"""What py-spy sees of a worker, where it is installed and the kernel permits it.

It adds to what workers say of themselves (`monitoring.stacks`): each dump has a time limit, and so
have all of one snapshot together. A worker that gave no stack (a plain command that runs Python,
`python -I`) is read without being stopped. Frames of C need the worker to be held for some
milliseconds: they are taken only of workers that are suspected of a hang anyway, of one at each
place. It dies with the agent, and its text is foreign: what is not understood counts as none.

Workers permit it (`stdlib_only.linux.permit_agent`). Everything here is for a lane of its own.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import msgspec
from msgspec import Struct

from holdfast.core.protocol.bounds import clean, clean_lines, cut

EACH_S, ALL_S = 10.0, 20.0
OUTPUT_MOST = 4 << 20
FRAMES_MOST = 100
NAME_MOST = 120
"""Names of C++ may have thousands of characters, of which the first tell enough."""
_WITH_AGENT = """
import ctypes, os, sys
ctypes.CDLL(None).prctl(1, 9)
if os.getppid() == int(sys.argv[1]):
    os.execv(sys.argv[2], sys.argv[2:])
"""
"""Rule 4. By an interpreter of its own: between fork and exec a process with threads runs nothing
of Python safely."""


class SpiedFrame(Struct, frozen=True):
    name: str
    filename: str = ""
    module: str | None = None
    """The library that it is of, for a frame of C."""
    line: int = 0


class SpiedThread(Struct, frozen=True):
    thread_id: int = 0
    thread_name: str | None = None
    os_thread_id: int | None = None
    frames: tuple[SpiedFrame, ...] = ()


Spied = tuple[SpiedThread, ...]
_spied = msgspec.json.Decoder(Spied)
"""Made here, in one thread: msgspec crashes if two threads first meet a type at the same time."""
"""The threads of a process, the main one last."""


class Debugger:
    """Looks for one snapshot. In a lane."""

    def __init__(self) -> None:
        self._program = installed()
        self._until = time.monotonic() + ALL_S

    def stack_of(self, pid: int) -> str:
        """Frames of Python as `faulthandler` would write them; empty where there are none."""
        return as_faulthandler(self._dump(pid, "--nonblocking"))

    def native_stack_of(self, pid: int) -> str:
        """With frames of C, for a person to read; empty where they cannot be had."""
        return for_reading(self._dump(pid, "--native"))

    def _dump(self, pid: int, how: str) -> Spied:
        left_s = min(EACH_S, self._until - time.monotonic())
        if not self._program or left_s <= 0:
            return ()
        return read(_output(self._program, pid, how, left_s), pid)


def installed() -> str:
    """The program's path: beside our own interpreter, else on PATH; empty where there is none."""
    import shutil

    beside = Path(sys.executable).parent / "py-spy"
    return str(beside) if os.access(beside, os.X_OK) else shutil.which("py-spy") or ""


def _output(program: str, pid: int, how: str, limit_s: float) -> bytes:
    import subprocess

    command = [sys.executable, "-I", "-S", "-c", _WITH_AGENT, str(os.getpid()), program]
    try:
        done = subprocess.run(
            [*command, "dump", "--json", how, "--pid", str(pid)],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=limit_s,
            check=False,
        )
    except (OSError, subprocess.SubprocessError):
        return b""
    return done.stdout if done.returncode == 0 and len(done.stdout) <= OUTPUT_MOST else b""


def read(output: bytes, pid: int) -> Spied:
    """What it printed."""
    try:
        threads = _spied.decode(output)
    except (msgspec.DecodeError, RecursionError):
        return ()
    return tuple(sorted(threads, key=lambda thread: thread.os_thread_id == pid))


def as_faulthandler(threads: Spied) -> str:
    parts = []
    for thread in threads:
        parts.append(f"Thread 0x{abs(thread.thread_id):016x} (most recent call first):")
        parts += [
            f'  File "{clean(frame.filename)}", line {max(0, frame.line)} in {_function(frame)}'
            for frame in thread.frames[:FRAMES_MOST]
            if not frame.module
        ]
    return clean_lines("\n".join(parts))


def for_reading(threads: Spied) -> str:
    parts = []
    for thread in threads:
        parts.append(f"{clean(thread.thread_name or 'a thread')}:")
        for frame in thread.frames[:FRAMES_MOST]:
            place = clean(frame.filename).rpartition("/")[2] if frame.module else frame.filename
            at = f"{place}:{frame.line}" if frame.line > 0 else place
            parts.append(f"  {cut(clean(frame.name), NAME_MOST)} ({clean(at)})")
    return clean_lines("\n".join(parts))


def _function(frame: SpiedFrame) -> str:
    """As Python's own handler has it: without the class."""
    return clean(frame.name).rpartition(".")[2] or "?"
