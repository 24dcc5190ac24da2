"""Whoever gets as far as the coordinator's port, and further, costs a job little.

The attackers know the token, or the job has none: they are let in, and then do what no node does.
"""

from __future__ import annotations

import contextlib
import os
import resource
import socket
import struct
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from holdfast.engine.sentences import LEADS
from holdfast.store.messages import WaitForKeys
from holdfast.transport.auth import OPEN, ConnectionSecurity
from holdfast.transport.frames import FRAME_LIMIT, FrameReader, ProtocolError, encode
from holdfast.transport.handshake import ClientSide, Kind, Proof

from ..free_ports import free_port
from ..waiting import DEADLINE_S
from .conftest import Job, StartJob

RUN_ID = "job"
USUAL_DESCRIPTORS = 1024
MB = 1 << 20
# Says that it runs, and ends when it is told to.
PROGRAM = """
import os, sys, time
place = os.environ["WORLD_SIZE"] + os.environ["RANK"]
open(os.path.join(sys.argv[1], "began." + place), "w").close()
while not os.path.exists(os.path.join(sys.argv[1], "finish")):
    time.sleep(0.02)
"""


@pytest.fixture
def descriptors() -> Iterator[None]:
    """The agents have as many as is usual, and this process as many as it may have."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < 2 * USUAL_DESCRIPTORS:
        pytest.skip(f"needs {2 * USUAL_DESCRIPTORS} descriptors, and {hard} are allowed here")
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


class Attacked:
    """A job whose host is attacked, and which another node joins all the same."""

    def __init__(self, start_job: StartJob, folder: Path) -> None:
        self._start_job, self._folder = start_job, folder
        self.port = free_port()
        self._held: list[socket.socket] = []
        self.host = self.start()
        self.host.until(lambda: LEADS in self.host.stderr, "the coordinator")
        self.host.until(lambda: self.has_begun(1), "a round")

    def start(self) -> Job:
        meet = (f"--rdzv-endpoint=127.0.0.1:{self.port}", f"--rdzv-id={RUN_ID}", "--nnodes=1:2")
        more = (f"--snapshot-dir={self._folder}", "--rdzv-conf=last_call_timeout=0.2", "--no-warm")
        job = self._start_job(*meet, *more, script=PROGRAM, args=(str(self._folder),))
        # Before it looks, for which it has to be loaded first.
        _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.prlimit(job.process.pid, resource.RLIMIT_NOFILE, (USUAL_DESCRIPTORS, hard))
        return job

    def has_begun(self, world: int) -> bool:
        return all((self._folder / f"began.{world}{rank}").exists() for rank in range(world))

    def connect(self) -> socket.socket:
        sock = socket.create_connection(("127.0.0.1", self.port), timeout=DEADLINE_S)
        self._held.append(sock)
        return sock

    def admitted(self, node: str, kind: Kind = "control", timeout_s: float = 60) -> socket.socket:
        """Go through the handshake as a node does."""
        sock, side = self.connect(), ClientSide(RUN_ID, node, kind, OPEN)
        sock.settimeout(timeout_s)
        reader = FrameReader(FRAME_LIMIT)
        sock.sendall(side.opening(1))
        side.read_challenge(_answer(sock, reader))
        sock.sendall(side.prove())
        side.read_welcome(_answer(sock, reader))
        return sock

    def resident_bytes(self) -> int:
        """What the host's agent holds in memory."""
        pages = Path(f"/proc/{self.host.process.pid}/statm").read_text().split()[1]
        return int(pages) * os.sysconf("SC_PAGESIZE")

    def goes_on(self) -> None:
        """Another node joins, and all workers end well."""
        other = self.start()
        self.host.until(lambda: self.has_begun(2), "a round with the newcomer")
        (self._folder / "finish").touch()
        assert other.wait() == 0, other.stderr
        assert self.host.wait() == 0, self.host.stderr

    def close(self) -> None:
        for sock in self._held:
            sock.close()


def _answer(sock: socket.socket, reader: FrameReader) -> bytes | bytearray:
    while (payload := reader.take()) is None:
        received = sock.recv(1 << 16)
        assert received, "it was refused"
        reader.feed(received)
    return payload


@pytest.fixture
def attacked(start_job: StartJob, tmp_path: Path, descriptors: None) -> Iterator[Attacked]:
    attacked = Attacked(start_job, tmp_path)
    yield attacked
    attacked.close()


def send_while_taken(sock: socket.socket, data: bytes) -> None:
    sock.settimeout(0.5)
    try:
        sock.sendall(data)
    except OSError:
        pass  # It is read no further, or was cut off.


def test_a_node_joins_among_those_who_say_nothing(attacked: Attacked) -> None:
    with contextlib.suppress(OSError, ProtocolError):
        for number in range(USUAL_DESCRIPTORS):
            attacked.admitted(f"mute{number}", timeout_s=1)
    attacked.goes_on()


def test_unfinished_messages_cost_a_bounded_room(attacked: Attacked) -> None:
    before = attacked.resident_bytes()
    for number in range(200):
        sock = attacked.admitted(f"slow{number}")
        send_while_taken(sock, struct.pack("!I", FRAME_LIMIT) + bytes(FRAME_LIMIT - 1))
        assert attacked.resident_bytes() < before + 100 * MB
    attacked.goes_on()


@pytest.mark.parametrize(("waits", "keys"), [(60, 100_000), (200, 16_000)])
@pytest.mark.thorough
def test_waits_in_the_store_cost_a_bounded_room(attacked: Attacked, waits: int, keys: int) -> None:
    before = attacked.resident_bytes()
    for number in range(waits):
        sock = attacked.admitted(f"waiter{number}", "store")
        wait = WaitForKeys(tuple(f"{number}/{key}" for key in range(keys)))
        send_while_taken(sock, encode(wait))
        assert attacked.resident_bytes() < before + 250 * MB
    attacked.goes_on()


def test_wrong_tokens_are_slowed_down(
    start_job: StartJob, tmp_path: Path, descriptors: None
) -> None:
    """How many are answered while a timer runs is not counted here: only that others come in."""
    port, token = free_port(), "a-token-that-is-long"
    meet = (f"--rdzv-endpoint=127.0.0.1:{port}", f"--rdzv-id={RUN_ID}", "--nnodes=2", "--no-warm")
    start: Callable[[], Job] = lambda: start_job(  # noqa: E731
        *meet, f"--snapshot-dir={tmp_path}", script="pass", env={"HOLDFAST_TOKEN": token}
    )
    host = start()
    host.until(lambda: LEADS in host.stderr, "the coordinator")
    for _ in range(10):
        with socket.create_connection(("127.0.0.1", port), timeout=DEADLINE_S) as sock:
            sock.sendall(ClientSide(RUN_ID, "x", "control", ConnectionSecurity(b"wrong")).opening())
            reader = FrameReader(FRAME_LIMIT)
            _answer(sock, reader)
            sock.sendall(encode(Proof(bytes(32))))
            assert b"wrong token" in bytes(_answer(sock, reader))
    other = start()
    assert other.wait() == 0, other.stderr
    assert host.wait() == 0, host.stderr
