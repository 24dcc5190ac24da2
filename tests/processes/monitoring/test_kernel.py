"""What the kernel says of real processes."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable

import pytest

from holdfast.processes.monitoring.kernel import KernelView, view_of, view_with_children

DEADLINE_S = 60


def until(pid: int, condition: Callable[[KernelView], bool]) -> KernelView:
    deadline = time.monotonic() + DEADLINE_S
    while time.monotonic() < deadline:
        view = view_of(pid)
        assert view is not None
        if condition(view):
            return view
        time.sleep(0.002)
    pytest.fail(f"never so: {view}")


def test_who_reads_a_pipe_waits_for_it() -> None:
    reader, writer = os.pipe()
    code = f"import os; os.read({reader}, 1)"
    child = subprocess.Popen([sys.executable, "-c", code], pass_fds=[reader])
    try:
        view = until(child.pid, lambda view: bool(view.waits_for))
        assert view.in_words() == "waiting for a pipe"
        assert view.state == "S"
    finally:
        os.close(writer)
        os.close(reader)
        child.kill()
        child.wait()


def test_work_takes_processor_time() -> None:
    child = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        until(child.pid, lambda view: view.cpu_s >= 0.1)
    finally:
        child.kill()
        child.wait()


def test_a_stopped_process_is_stopped() -> None:
    child = subprocess.Popen(["sleep", "100"])
    try:
        os.kill(child.pid, signal.SIGSTOP)
        view = until(child.pid, lambda view: view.state == "T")
        assert view.in_words() == "stopped by a signal"
    finally:
        child.kill()
        child.wait()


def test_who_catches_a_signal_is_known_to() -> None:
    code = "import signal, time; signal.signal(61, lambda *_: None); time.sleep(100)"
    child = subprocess.Popen([sys.executable, "-c", code])
    try:
        view = until(child.pid, lambda view: view.catches_signal(61))
        assert not view.catches_signal(60)
    finally:
        child.kill()
        child.wait()


def test_of_a_process_that_is_gone_there_is_nothing() -> None:
    child = subprocess.Popen(["true"])
    child.wait()
    assert view_of(child.pid) is None


@pytest.mark.parametrize(
    ("view", "words"),
    [
        (KernelView("R"), ""),
        (KernelView("S", channel="futex_wait_queue"), ""),
        (KernelView("S", waits_for="/data/a.bin"), "waiting for /data/a.bin"),
        (
            KernelView("D", channel="nfs_wait", waits_for="/data/a.bin"),
            "waiting for /data/a.bin in the kernel, in nfs_wait, where no signal reaches it",
        ),
        (KernelView("D"), "waiting in the kernel, where no signal reaches it"),
        (KernelView("t", tracer=77), "held by a debugger (pid 77)"),
        (KernelView("S", tracer=77), "held by a debugger (pid 77)"),
    ],
)
def test_in_words(view: KernelView, words: str) -> None:
    assert view.in_words() == words


def test_what_a_store_of_pytorch_serves_is_no_work_of_its_process() -> None:
    reader, writer = os.pipe()
    written, go = threading.Event(), threading.Event()

    def serve() -> None:
        name = ctypes.create_string_buffer(b"pt_tcpstore_uv")
        ctypes.CDLL(None).prctl(15, name)
        os.write(writer, bytes(4000))
        os.read(reader, 4000)
        written.set()
        go.wait()

    before = view_with_children(os.getpid())
    thread = threading.Thread(target=serve)
    thread.start()
    try:
        assert written.wait(60)
        after = view_with_children(os.getpid())
    finally:
        go.set()
        thread.join()
        os.close(reader)
        os.close(writer)
    assert before is not None
    assert after is not None
    assert after.written_bytes == before.written_bytes
