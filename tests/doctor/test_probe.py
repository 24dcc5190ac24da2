"""What the nodes of `holdfast doctor --nnodes` say to each other, and strangers who come there."""

from __future__ import annotations

import os
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

from holdfast.doctor import lines, probe, reading
from holdfast.doctor.facts import Wanted
from holdfast.doctor.group import Examined
from holdfast.doctor.page import DoctorPage
from holdfast.transport.auth import ConnectionSecurity
from holdfast.transport.frames import ProtocolError, encode
from holdfast.transport.handshake import ClientSide

from ..free_ports import free_port
from ..waiting import until

JOB = "examined-doctor"
KEY = lines.key_of(b"a token that is long enough", JOB)
DEADLINE_S = 100


class Probe:
    """One node's probe, as its agent would start it."""

    def __init__(self, folder: Path, port: int, rank: int, key: bytes = KEY) -> None:
        self.answer = folder / f"page{rank}"
        task = probe.Task(str(self.answer), Wanted(several_nodes=True), {}, job=JOB, key=key)
        (folder / f"task{rank}").write_bytes(msgspec.json.encode(task))
        places = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        self.process = subprocess.Popen(
            [sys.executable, "-P", probe.__file__, folder / f"task{rank}"],
            env={**os.environ, **places, "RANK": str(rank), "WORLD_SIZE": "2"},
            cwd=folder,
            stderr=subprocess.PIPE,
            text=True,
        )

    def page(self) -> DoctorPage:
        complaints = self.process.communicate(timeout=DEADLINE_S)[1]
        assert self.process.returncode == 0, complaints
        return msgspec.json.decode(self.answer.read_bytes(), type=DoctorPage)


Start = Callable[..., Probe]


@pytest.fixture
def port() -> int:
    return free_port()


@pytest.fixture
def start(tmp_path: Path, port: int) -> Iterator[Start]:
    started: list[Probe] = []

    def run(rank: int, key: bytes = KEY) -> Probe:
        started.append(Probe(tmp_path, port, rank, key))
        return started[-1]

    yield run
    for one in started:
        one.process.kill()
        one.process.communicate()


def reached(port: int) -> socket.socket:
    """A connection to the first node, once that listens."""
    found: list[socket.socket] = []

    def is_there() -> bool:
        try:
            found.append(socket.create_connection(("127.0.0.1", port), timeout=DEADLINE_S))
        except OSError:
            return False
        return True

    until(is_there)
    return found[0]


def framed(payload: bytes) -> bytes:
    return struct.pack("!I", len(payload)) + payload


STRANGERS = {
    "mute": b"",
    "bad UTF-8": ClientSide("zz", "n", "admin", ConnectionSecurity())
    .opening()
    .replace(b"zz", b"\xff\xfe"),
    "half a frame": struct.pack("!I", 2000) + b"x",
    "a huge frame": struct.pack("!I", 0xFFFFFFFF),
    "another job": ClientSide("other", "n", "admin", ConnectionSecurity()).opening(),
    "deeply nested": framed(b"\x91" * 4000),
}


@pytest.mark.parametrize("said", STRANGERS.values(), ids=STRANGERS)
def test_a_stranger_keeps_nobody_from_meeting(start: Start, port: int, said: bytes) -> None:
    first = start(0)
    with reached(port) as stranger:
        stranger.sendall(said)
        second = start(1)
        assert [len(one.page().nodes) for one in (first, second)] == [2, 2]


def test_who_does_not_know_the_token_takes_no_part(start: Start, port: int) -> None:
    first = start(0)
    without, wrong = start(1, b"").page(), start(1, b"wrong").page()
    assert "requires a token" in without.findings[0].what
    assert "wrong token" in wrong.findings[0].what
    start(1)
    assert len(first.page().nodes) == 2


def test_a_first_node_that_does_not_know_the_token_is_told_nothing(start: Start, port: int) -> None:
    start(0, b"")
    found = start(1).page()
    assert len(found.nodes) == 1
    assert "the node has a token, but the coordinator has none" in found.findings[0].what


def test_a_node_that_says_nothing_more_is_left_out(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, port: int
) -> None:
    """In this process, so that the time it has can be made short."""
    monkeypatch.setattr(probe, "MEETING_S", 2.0)
    side = lines.side_of_first(JOB, KEY)
    gathering = lines.Gathering(port, side, probe.Introduced)
    peer = probe.Peer(1, "other", ("127.0.0.1",), 1)
    introduced = probe.Introduced(peer, Examined(1, reading.read({})))
    with reached(port) as mute:
        line = lines.Line(mute)
        line.greet(lines.side_of_other(JOB, "other-1", KEY))
        line.send(introduced, DEADLINE_S)
        came = gathering.next(time.monotonic() + DEADLINE_S)
        gathering.close()
        assert came is not None
        known = probe.Introductions((peer,))
        assert probe._hear({1: came}, known) == []
        came[0].close()


def test_a_key_is_not_the_token_and_is_of_one_job() -> None:
    token = b"a token that is long enough"
    assert token not in lines.key_of(token, "one")
    assert lines.key_of(token, "one") != lines.key_of(token, "two")
    assert lines.key_of(None, "one") == b""


def test_a_frame_that_drips_in_has_a_time_to_be_whole_by() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.sendall(framed(b"x" * 100)[:50])
        with pytest.raises(TimeoutError):
            lines.Line(ours).receive(Examined, 1000, 0.05)
        theirs.sendall(framed(b"x" * 2000))
        with pytest.raises(ProtocolError):
            lines.Line(ours).receive(Examined, 1000, DEADLINE_S)


def test_frames_of_the_handshake_are_those_of_agents() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.sendall(encode("said"))
        assert lines.Line(ours).receive(str, 100, DEADLINE_S) == "said"
