"""What a worker's program says of its steps: what it may say, and what goes over the channel."""

from __future__ import annotations

import os
import secrets
import socket
import subprocess
import sys
from collections.abc import Iterator

import pytest

import holdfast
from holdfast.worker.channel import address_of
from holdfast.worker.page import Page
from holdfast.worker.progress import Signs

DEADLINE_S = 60


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listener.settimeout(DEADLINE_S)
    listener.bind(address_of(f"@holdfast-test-{secrets.token_hex(8)}"))
    listener.listen()
    yield listener
    listener.close()


def packets(listener: socket.socket, code: str, **variables: str) -> list[bytes]:
    """Run this as a worker; returns all that came over its channel, of one connection."""
    path = os.pathsep.join(entry for entry in sys.path if entry)
    name = "@" + listener.getsockname()[1:].decode()
    environ = {"PATH": os.environ["PATH"], "PYTHONPATH": path, "HOLDFAST_CHANNEL": name}
    worker = subprocess.Popen([sys.executable, "-c", code], env=environ | variables)
    client, _ = listener.accept()
    client.settimeout(DEADLINE_S)
    with client:
        heard = list(iter(lambda: client.recv(4096), b""))
    assert worker.wait(DEADLINE_S) == 0
    return heard


def test_only_the_first_step_is_a_message(listener: socket.socket) -> None:
    memory = os.memfd_create("page")
    os.ftruncate(memory, 4096)
    try:
        code = "import holdfast\nfor step in range(7, 1000): holdfast.progress(step)"
        page = f"/proc/{os.getpid()}/fd/{memory}@0"
        assert packets(listener, code, HOLDFAST_PAGE=page) == [b'{"progress": 7}']
    finally:
        os.close(memory)


def test_without_a_page_steps_are_messages_and_few(listener: socket.socket) -> None:
    code = """
import time, holdfast
holdfast.progress(0)
began, step = time.monotonic(), 0
while time.monotonic() < began + 1.2:
    step += 1
    holdfast.progress(step)
"""
    heard = packets(listener, code)
    assert heard[0] == b'{"progress": 0}'
    assert 2 <= len(heard) <= 20  # The machine may be slow, and each second has one.


@pytest.mark.parametrize("step", [1.5, "7", None, object()])
def test_what_is_not_a_whole_number_is_refused_agent_or_not(step: object) -> None:
    signs = Signs()
    with pytest.raises(TypeError):
        signs.progress(step)  # type: ignore[arg-type]
    signs.progress(1)
    signs.progress(2)
    with pytest.raises(TypeError):
        signs.progress(step)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", [None, 5, b"bytes", ["list"]])
def test_what_is_no_text_names_no_phase(name: object) -> None:
    with pytest.raises(TypeError):
        holdfast.phase(name)  # type: ignore[arg-type]


def test_whatever_counts_as_a_whole_number_is_a_step() -> None:
    class Five:
        def __index__(self) -> int:
            return 5

    signs = Signs()
    for _ in range(3):
        signs.progress(Five())


def test_a_name_that_is_cut_is_found_again() -> None:
    page = Page(None)
    assert page.row_of("x" * 100) == page.row_of("x" * 100) == 1
    assert page.row_of("y") == 2
