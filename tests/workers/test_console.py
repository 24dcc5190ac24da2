"""The agent's stdout and stderr, on real pipes, terminals, sockets and files."""

from __future__ import annotations

import asyncio
import fcntl
import os
import resource
import socket
import subprocess
import sys
import tty
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from holdfast.workers.console import CLEAR_BYTES, CONGESTED_BYTES, Console

DEADLINE_S = 30.0

Body = Callable[[Console], Coroutine[Any, Any, None]]


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


def run(stdout: int, stderr: int, body: Body) -> None:
    """Run `body` with a console on the two descriptors, inside a loop."""

    async def main() -> None:
        console = Console(asyncio.get_running_loop(), (stdout, stderr))
        try:
            await asyncio.wait_for(body(console), DEADLINE_S)
        finally:
            console.close()

    asyncio.run(main())


def numbered(count: int) -> bytes:
    return b"".join(b"%09d\n" % number for number in range(count))


async def read_exactly(descriptor: int, count: int) -> bytes:
    """Read in a thread, as the program at the other end of a pipe would."""

    def read() -> bytes:
        parts: list[bytes] = []
        left = count
        while left > 0 and (part := os.read(descriptor, min(left, 65536))):
            parts.append(part)
            left -= len(part)
        return b"".join(parts)

    return await asyncio.to_thread(read)


def test_what_is_written_to_a_pipe_arrives_in_order(pipe: tuple[int, int]) -> None:
    reading, writing = pipe
    text = numbered(500_000)

    async def body(console: Console) -> None:
        for start in range(0, len(text), 70_001):
            console.write(1, text[start : start + 70_001])
        received = await read_exactly(reading, len(text))
        assert received == text

    run(writing, writing, body)


def test_a_pipe_that_nobody_reads_does_not_block_the_loop_and_clears_later(
    pipe: tuple[int, int],
) -> None:
    reading, writing = pipe
    text = numbered(1_000_000)
    cleared: list[int] = []

    async def body(console: Console) -> None:
        queue_at_clear = asyncio.get_running_loop().create_future()
        console.write(1, text)
        assert console.congested(1)
        console.when_clear(1, lambda: cleared.append(1))
        console.when_clear(1, lambda: queue_at_clear.set_result(console.congested(1)))
        for _ in range(100):
            await asyncio.sleep(0)
        assert cleared == []
        received = await read_exactly(reading, len(text))
        assert received == text
        assert await queue_at_clear is False
        assert cleared == [1]
        await console.drain(DEADLINE_S)

    assert CLEAR_BYTES < CONGESTED_BYTES < len(text)
    run(writing, writing, body)


def test_when_nothing_is_queued_when_clear_calls_back_at_once(pipe: tuple[int, int]) -> None:
    async def body(console: Console) -> None:
        called = asyncio.Event()
        console.when_clear(1, called.set)
        assert not called.is_set()
        await called.wait()

    run(pipe[1], pipe[1], body)


def test_the_flags_of_the_inherited_description_stay_as_they_are(pipe: tuple[int, int]) -> None:
    reading, writing = pipe
    before = fcntl.fcntl(writing, fcntl.F_GETFL)

    async def body(console: Console) -> None:
        console.write(1, bytes(200_000))
        assert fcntl.fcntl(writing, fcntl.F_GETFL) == before
        await read_exactly(reading, 200_000)

    run(writing, writing, body)
    assert fcntl.fcntl(writing, fcntl.F_GETFL) == before


def test_stdout_and_stderr_to_the_same_pipe_keep_their_order(pipe: tuple[int, int]) -> None:
    reading, writing = pipe
    other = os.dup(writing)
    expected = b"".join(b"%d %05d\n" % (1 + number % 2, number) for number in range(50_000))

    async def body(console: Console) -> None:
        for number in range(50_000):
            console.write(1 + number % 2, b"%d %05d\n" % (1 + number % 2, number))
        assert await read_exactly(reading, len(expected)) == expected

    run(writing, other, body)
    os.close(other)


def test_a_file_is_written_through_the_inherited_offset(tmp_path: Path) -> None:
    path = tmp_path / "both"
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT)
    os.write(descriptor, b"before\n")

    async def body(console: Console) -> None:
        console.write(1, b"one\n")
        console.write(2, b"two\n")

    run(descriptor, descriptor, body)
    os.write(descriptor, b"after\n")
    os.close(descriptor)
    assert path.read_bytes() == b"before\none\ntwo\nafter\n"


def test_a_reader_that_goes_away_releases_everybody_and_is_counted(
    pipe: tuple[int, int],
) -> None:
    reading, writing = pipe
    capacity = fcntl.fcntl(writing, fcntl.F_GETPIPE_SZ)

    async def body(console: Console) -> None:
        cleared = asyncio.Event()
        console.write(1, bytes(8_000_000))
        console.when_clear(1, cleared.set)
        os.close(reading)
        await cleared.wait()
        await console.drain(DEADLINE_S)
        console.write(1, b"more")
        assert console.dropped_bytes(1) >= 8_000_000 - capacity
        assert not console.congested(1)

    run(writing, writing, body)


def test_a_closed_descriptor_swallows_what_is_written() -> None:
    never_open = 1000

    async def body(console: Console) -> None:
        console.write(1, b"nobody\n")
        await console.drain(DEADLINE_S)
        assert console.dropped_bytes(1) == len(b"nobody\n")

    run(never_open, never_open, body)


def test_a_full_file_drops_what_does_not_fit_and_goes_on_when_there_is_room(
    tmp_path: Path,
) -> None:
    path = tmp_path / "out"
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT)

    async def body(console: Console) -> None:
        with file_size_limit(8):
            console.write(1, b"kept\nlost\n")
            console.write(1, b"lost too\n")
        console.write(1, b"kept too\n")
        assert console.dropped_bytes(1) == len(b"t\nlost too\n")

    run(descriptor, descriptor, body)
    os.close(descriptor)
    assert path.read_bytes() == b"kept\nloskept too\n"


def test_a_socket_is_written_without_blocking() -> None:
    ours, theirs = socket.socketpair()
    text = numbered(300_000)

    async def body(console: Console) -> None:
        console.write(1, text)
        assert ours.getblocking()
        assert await read_exactly(theirs.fileno(), len(text)) == text

    with ours, theirs:
        run(ours.fileno(), ours.fileno(), body)


def test_a_terminal_that_is_not_read_does_not_block_the_loop() -> None:
    master, slave = os.openpty()
    tty.setraw(slave)
    text = numbered(20_000)

    async def body(console: Console) -> None:
        assert console.terminal(1) == slave
        console.write(1, text)
        assert await read_exactly(master, len(text)) == text

    run(slave, slave, body)
    close_quietly(master, slave)


def test_draining_gives_up_at_its_deadline(pipe: tuple[int, int]) -> None:
    async def body(console: Console) -> None:
        console.write(1, bytes(1_000_000))
        await console.drain(0.01)

    run(pipe[1], pipe[1], body)


def test_a_console_closed_with_output_queued_leaves_nothing_in_the_loop(
    pipe: tuple[int, int],
) -> None:
    reading, writing = pipe

    async def body(console: Console) -> None:
        console.write(1, bytes(1_000_000))
        console.close()
        os.read(reading, 1_000_000)
        # The second one gets the number of the descriptor that the first one has closed.
        second = Console(asyncio.get_running_loop(), (writing, writing))
        second.write(1, numbered(100_000))
        assert await read_exactly(reading, 1_000_000) == numbered(100_000)
        second.close()

    run(writing, writing, body)


def test_a_source_never_continues_the_line_of_another(pipe: tuple[int, int]) -> None:
    reading, writing = pipe
    first, second = object(), object()

    async def body(console: Console) -> None:
        console.write(1, b"50%", first)
        assert console.continues(1, first)
        console.write(1, b" done", first)
        console.write(2, b"hello\n", second)
        assert not console.continues(1, first)
        console.write(1, b"100%", first)
        console.write(2, b"the agent\n")

    run(writing, writing, body)
    assert os.read(reading, 4096) == b"50% done\nhello\n100%\nthe agent\n"


@pytest.mark.root
def test_a_pipe_that_may_not_be_opened_again_is_written_when_it_has_room(
    pipe: tuple[int, int],
) -> None:
    reading, writing = pipe
    script = (
        "import asyncio, os, sys; sys.path[:0] = sys.argv[1:]\n"
        "from holdfast.workers.console import Console\n"
        "os.setuid(65534)\n"
        "async def main():\n"
        "    try: os.open('/proc/self/fd/1', os.O_WRONLY)\n"
        "    except PermissionError: pass\n"
        "    else: sys.exit('it can be opened')\n"
        "    console = Console(asyncio.get_running_loop())\n"
        "    console.write(1, b'0123456789abcde\\n' * 100_000)\n"
        "    os.write(2, b'not blocked')\n"
        "    await console.drain(30)\n"
        "asyncio.run(main())\n"
    )
    child = subprocess.Popen(
        [sys.executable, "-c", script, *sys.path],
        stdout=writing,
        stderr=subprocess.PIPE,
    )
    assert child.stderr is not None
    os.close(writing)
    # Nothing is read from the pipe until the child has got past its write.
    assert child.stderr.read(len(b"not blocked")) == b"not blocked"
    text = asyncio.run(read_exactly(reading, 2_000_000))
    assert child.stderr.read() == b""
    child.stderr.close()
    assert child.wait(DEADLINE_S) == 0
    assert text == b"0123456789abcde\n" * 100_000
