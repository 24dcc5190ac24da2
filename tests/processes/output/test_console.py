"""The agent's stdout and stderr, on real pipes, terminals, sockets and files.

Every test runs on the small loop of a one-node job and on asyncio's.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import resource
import socket
import subprocess
import sys
import tty
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import cast

import pytest

from holdfast.processes.output.console import CLEAR_BYTES, CONGESTED_BYTES, Console
from holdfast.runtime.loop import EventLoop, Loop

from .output_stage import turn_until

DEADLINE_S = 60.0


class Stage:
    """A loop that can be let turn until something is so."""

    def __init__(self, loop: Loop, run_until: Callable[[Callable[[], bool]], None]) -> None:
        self.loop = loop
        self._run_until = run_until

    @contextmanager
    def console(self, stdout: int, stderr: int | None = None) -> Iterator[Console]:
        """A console on one descriptor, or on two."""
        console = Console(self.loop, (stdout, stdout if stderr is None else stderr))
        try:
            yield console
        finally:
            console.close()

    def until(self, condition: Callable[[], bool]) -> None:
        turn_until(self.loop, self._run_until, condition)

    def turn(self, times: int) -> None:
        turns = iter(range(times))
        self.until(lambda: next(turns, None) is None)

    def read(self, descriptor: int, count: int) -> bytes:
        """Read so much, while the loop turns."""
        received = bytearray()
        os.set_blocking(descriptor, False)
        self.loop.add_reader(descriptor, lambda: received.extend(os.read(descriptor, 65536)))
        self.until(lambda: len(received) >= count)
        self.loop.remove_reader(descriptor)
        return bytes(received)


@pytest.fixture(params=["own", "asyncio"])
def stage(request: pytest.FixtureRequest) -> Iterator[Stage]:
    if request.param == "own":
        own = EventLoop()
        yield Stage(own, own.run_until)
        own.close()
        return
    loop = asyncio.new_event_loop()

    def run_until(condition: Callable[[], bool]) -> None:
        while not condition():
            loop.call_soon(loop.stop)
            loop.run_forever()

    yield Stage(cast(Loop, loop), run_until)
    loop.close()


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    reading, writing = os.pipe()
    yield reading, writing
    close_quietly(reading, writing)


def close_quietly(*descriptors: int) -> None:
    for descriptor in descriptors:
        try:
            os.close(descriptor)
        except OSError:
            pass  # the test has closed it already


@contextmanager
def file_size_limit(size: int) -> Iterator[None]:
    """Let no file of this process grow beyond `size`: the nearest thing to a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def numbered(count: int) -> bytes:
    return b"".join(b"%09d\n" % number for number in range(count))


def test_what_is_written_to_a_pipe_arrives_in_order(stage: Stage, pipe: tuple[int, int]) -> None:
    reading, writing = pipe
    text = numbered(500_000)
    with stage.console(writing) as console:
        for start in range(0, len(text), 70_001):
            console.write(1, text[start : start + 70_001])
        assert stage.read(reading, len(text)) == text


def test_a_pipe_that_nobody_reads_does_not_block_the_loop_and_clears_later(
    stage: Stage, pipe: tuple[int, int]
) -> None:
    reading, writing = pipe
    text = numbered(1_000_000)
    cleared: list[bool] = []
    assert CLEAR_BYTES < CONGESTED_BYTES < len(text)
    with stage.console(writing) as console:
        console.write(1, text)
        assert console.outlet(1).congested
        console.outlet(1).when_clear(lambda: cleared.append(console.outlet(1).congested))
        stage.turn(100)
        assert cleared == []
        assert stage.read(reading, len(text)) == text
        stage.until(lambda: not console.pending())
    assert cleared == [False]


def test_when_nothing_is_queued_when_clear_calls_back_from_the_loop(
    stage: Stage, pipe: tuple[int, int]
) -> None:
    called: list[int] = []
    with stage.console(pipe[1]) as console:
        console.outlet(1).when_clear(lambda: called.append(1))
        assert called == []
        stage.until(lambda: called == [1])


def test_the_flags_of_the_inherited_description_stay_as_they_are(
    stage: Stage, pipe: tuple[int, int]
) -> None:
    reading, writing = pipe
    before = fcntl.fcntl(writing, fcntl.F_GETFL)
    with stage.console(writing) as console:
        console.write(1, bytes(200_000))
        assert fcntl.fcntl(writing, fcntl.F_GETFL) == before
        stage.read(reading, 200_000)
    assert fcntl.fcntl(writing, fcntl.F_GETFL) == before


def test_stdout_and_stderr_to_the_same_pipe_keep_their_order(
    stage: Stage, pipe: tuple[int, int]
) -> None:
    reading, writing = pipe
    other = os.dup(writing)
    lines = [b"%d %05d\n" % (1 + number % 2, number) for number in range(50_000)]
    with stage.console(writing, other) as console:
        for number, line in enumerate(lines):
            console.write(1 + number % 2, line)
        expected = b"".join(lines)
        assert stage.read(reading, len(expected)) == expected
    os.close(other)


def test_a_file_is_written_through_the_inherited_offset(stage: Stage, tmp_path: Path) -> None:
    path = tmp_path / "both"
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT)
    os.write(descriptor, b"before\n")
    with stage.console(descriptor) as console:
        console.write(1, b"one\n")
        console.write(2, b"two\n")
    os.write(descriptor, b"after\n")
    os.close(descriptor)
    assert path.read_bytes() == b"before\none\ntwo\nafter\n"


def test_a_reader_that_goes_away_releases_everybody(stage: Stage, pipe: tuple[int, int]) -> None:
    reading, writing = pipe
    cleared: list[int] = []
    with stage.console(writing) as console:
        console.write(1, bytes(8_000_000))
        console.outlet(1).when_clear(lambda: cleared.append(1))
        os.close(reading)
        stage.until(lambda: cleared == [1])
        assert not console.pending()
        console.write(1, b"more")
        assert not console.pending()
        assert not console.outlet(1).congested


def test_a_closed_descriptor_swallows_what_is_written(stage: Stage) -> None:
    never_open = 1000
    with stage.console(never_open) as console:
        console.write(1, b"nobody\n")
        assert not console.pending()


def test_a_full_file_drops_what_does_not_fit_and_goes_on_when_there_is_room(
    stage: Stage, tmp_path: Path
) -> None:
    path = tmp_path / "out"
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT)
    with stage.console(descriptor) as console:
        with file_size_limit(8):
            console.write(1, b"kept\nlost\n")
            console.write(1, b"lost too\n")
        console.write(1, b"kept too\n")
    os.close(descriptor)
    assert path.read_bytes() == b"kept\nloskept too\n"


def test_a_socket_is_written_without_blocking(stage: Stage) -> None:
    text = numbered(300_000)
    ours, theirs = socket.socketpair()
    with ours, theirs, stage.console(ours.fileno()) as console:
        console.write(1, text)
        assert ours.getblocking()
        assert stage.read(theirs.fileno(), len(text)) == text


def test_a_terminal_that_is_not_read_does_not_block_the_loop(stage: Stage) -> None:
    master, slave = os.openpty()
    tty.setraw(slave)
    text = numbered(20_000)
    with stage.console(slave) as console:
        assert console.outlet(1).is_terminal
        console.write(1, text)
        assert console.pending()
        assert stage.read(master, len(text)) == text
    close_quietly(master, slave)


def test_a_console_closed_with_output_queued_leaves_nothing_in_the_loop(
    stage: Stage, pipe: tuple[int, int]
) -> None:
    reading, writing = pipe
    with stage.console(writing) as console:
        console.write(1, bytes(1_000_000))
        console.close()
        os.read(reading, 1_000_000)
        # The second one gets the number of the descriptor that the first one has closed.
        with stage.console(writing) as second:
            second.write(1, numbered(100_000))
            assert stage.read(reading, 1_000_000) == numbered(100_000)


def test_a_source_never_continues_the_line_of_another(stage: Stage, pipe: tuple[int, int]) -> None:
    reading, writing = pipe
    first, second = object(), object()
    with stage.console(writing) as console:
        console.write(1, b"50%", first)
        assert console.outlet(1).continues(first)
        console.write(1, b" done", first)
        console.write(2, b"hello\n", second)
        assert not console.outlet(1).continues(first)
        console.write(1, b"100%", first)
        console.write(2, b"the agent\n")
    assert os.read(reading, 4096) == b"50% done\nhello\n100%\nthe agent\n"


UNPRIVILEGED = """
import os, sys; sys.path[:0] = sys.argv[1:]
from holdfast.processes.output.console import Console
from holdfast.runtime.loop import EventLoop
os.setuid(65534)
try: os.open('/proc/self/fd/1', os.O_WRONLY)
except PermissionError: pass
else: sys.exit('it can be opened')
loop = EventLoop()
console = Console(loop)
console.write(1, b'0123456789abcde\\n' * 100_000)
os.write(2, b'not blocked')
loop.run_until(lambda: not console.pending())
"""


@pytest.mark.root
def test_a_pipe_that_may_not_be_opened_again_is_written_when_it_has_room(
    pipe: tuple[int, int],
) -> None:
    reading, writing = pipe
    child = subprocess.Popen(
        [sys.executable, "-c", UNPRIVILEGED, *sys.path], stdout=writing, stderr=subprocess.PIPE
    )
    os.close(writing)
    assert child.stderr is not None
    try:
        # Nothing is read from the pipe until the child has got past its write.
        assert child.stderr.read(len(b"not blocked")) == b"not blocked"
        with open(reading, "rb", closefd=False) as stdout:
            assert stdout.read() == b"0123456789abcde\n" * 100_000
        assert child.stderr.read() == b""
        assert child.wait(DEADLINE_S) == 0
    finally:
        child.kill()
        child.wait()
        child.stderr.close()
