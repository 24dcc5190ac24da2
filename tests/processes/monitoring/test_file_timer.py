"""PyTorch's file timer, as the agent serves it: real pipes, and the client of the API."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from holdfast.elastic.timer import FileTimerClient
from holdfast.processes.monitoring.file_timer import FileTimer, chosen_path, worker_above
from holdfast.processes.output.log_files import AT_ONCE
from holdfast.runtime.loop import EventLoop

from ...waiting import loop_until


class Scene:
    def __init__(self, path: Path) -> None:
        self.path = path
        self.loop = EventLoop()
        self.over: list[tuple[int, str]] = []
        self.timer = FileTimer(str(path), self.loop, AT_ONCE, lambda *one: self.over.append(one))

    def until(self, condition: Callable[[], bool]) -> None:
        loop_until(self.loop, condition)


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    scene = Scene(tmp_path / "timer")
    yield scene
    scene.timer.close()
    scene.loop.close()
    assert not scene.path.exists(), "the pipe is left"


def test_a_timer_that_is_not_given_back_runs_out(scene: Scene) -> None:
    client = FileTimerClient(str(scene.path))
    client.acquire("kept", time.time() + 0.1)
    client.acquire("given back", time.time() + 0.1)
    client.release("given back")
    scene.until(lambda: bool(scene.over))
    assert scene.over == [(os.getpid(), "kept")]


def test_the_first_that_is_over_comes_first(scene: Scene) -> None:
    client = FileTimerClient(str(scene.path))
    client.acquire("later", time.time() - 1)
    client.acquire("sooner", time.time() - 2)
    scene.until(lambda: len(scene.over) == 2)
    assert [scope for _, scope in scene.over] == ["sooner", "later"]


def test_what_is_no_request_or_asks_for_no_signal_ends_nobody(scene: Scene) -> None:
    quiet = FileTimerClient(str(scene.path), signal=0)
    quiet.acquire("no signal", time.time() - 1)
    with open(scene.path, "wb", buffering=0) as pipe:
        pipe.write(b"nonsense\n" + b'{"pid": "x"}\n' + b"\xff\xfe\n")
    FileTimerClient(str(scene.path)).acquire("real", time.time() - 1)
    scene.until(lambda: bool(scene.over))
    assert [scope for _, scope in scene.over] == ["real"]


def test_the_timers_of_a_process_that_has_ended_are_forgotten(scene: Scene) -> None:
    FileTimerClient(str(scene.path)).acquire("long", time.time() + 3600)
    scene.until(lambda: bool(scene.timer._timers))
    scene.timer.forget({os.getpid()})
    assert not scene.timer._timers


def test_a_pipe_that_cannot_be_made_is_done_without(tmp_path: Path) -> None:
    loop = EventLoop()
    timer = FileTimer(str(tmp_path / "no" / "folder"), loop, AT_ONCE, lambda *one: None)
    timer.close()
    loop.close()


def test_a_timer_is_of_the_worker_that_its_process_is_below() -> None:
    child = subprocess.Popen(
        [sys.executable, "-c", "import time; time.sleep(600)"], stdout=subprocess.DEVNULL
    )
    try:
        me = os.getpid()
        assert worker_above(child.pid, {child.pid}) == child.pid
        assert worker_above(child.pid, {me}) == me
        assert worker_above(me, {child.pid}) is None
        assert worker_above(1, {me}) is None
        assert worker_above(-5, {me}) is None
    finally:
        child.kill()
        child.wait()


def test_the_path_is_the_users_or_one_of_our_own() -> None:
    assert chosen_path("/somewhere") == "/somewhere"
    assert chosen_path(None) != chosen_path(None)
