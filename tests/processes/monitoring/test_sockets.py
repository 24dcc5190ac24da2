"""What the kernel counts of real connections."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator

import pytest

from holdfast.processes.monitoring.kernel import view_with_children
from holdfast.processes.monitoring.sockets import bytes_moved, moved_by

SENT = 12345


@pytest.fixture(params=["127.0.0.1", "::1"])
def listener(request: pytest.FixtureRequest) -> Iterator[socket.socket]:
    family = socket.AF_INET6 if ":" in request.param else socket.AF_INET
    try:
        listening = socket.create_server((request.param, 0), family=family)
    except OSError:
        pytest.skip("no IPv6 here")
    with listening:
        yield listening


def test_what_a_process_sends_and_receives_is_counted(listener: socket.socket) -> None:
    with socket.create_connection(listener.getsockname()[:2]) as ours:
        before = moved_by(os.getpid(), bytes_moved())
        theirs, _ = listener.accept()
        with theirs:
            ours.sendall(bytes(SENT))
            left = SENT
            while left:
                left -= len(theirs.recv(left))
            after = moved_by(os.getpid(), bytes_moved())
    assert after - before >= SENT


def test_what_the_store_is_asked_is_not_counted(listener: socket.socket) -> None:
    port = listener.getsockname()[1]
    with socket.create_connection(listener.getsockname()[:2]) as ours:
        inode = os.fstat(ours.fileno()).st_ino
        assert inode in bytes_moved()
        assert inode not in bytes_moved(store_port=port)


def test_it_is_movement_of_the_process() -> None:
    """Given what the kernel counts, it is added to what was read and written."""
    first, second = socket.socketpair()
    with first, second:
        moved = {os.fstat(first.fileno()).st_ino: 10**12}
        view = view_with_children(os.getpid(), moved)
    assert view is not None
    assert view.io_bytes >= 10**12
    assert view.written_bytes < 10**12


def test_of_a_process_that_is_gone_there_is_nothing() -> None:
    assert moved_by(2**22 + 1, {1: 1}) == 0
