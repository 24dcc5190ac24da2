"""What a job answers is foreign: nothing in it reaches a terminal as anything but words."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator

import msgspec
import pytest

from holdfast.admin.sessions import AdminSessions
from holdfast.core.protocol.messages import CloseRequest, RequestMade
from holdfast.core.protocol.requests import (
    Answer,
    NotKnown,
    StacksAsked,
    StacksTold,
    pack,
    read_request,
)
from holdfast.engine.requests import Asker
from holdfast.processes import channel_server
from holdfast.processes.channel_server import ChannelServer
from holdfast.runtime.local_peer import LocalPeer
from holdfast.runtime.loop import EventLoop

from .conftest import Run

EVIL = "\x1b]0;owned\x07\x1b[31mevil\r\nholdfast: the job succeeded"


class HostileAgent:
    """Serves a job by itself, in a thread; all of its answers are for terminals."""

    def __init__(self, job: str) -> None:
        self._job, self._loop, self._is_over = job, EventLoop(), False
        self.refuses = False
        self._sessions = AdminSessions(self._loop, self)  # type: ignore[arg-type]
        self._channel = ChannelServer(self._loop, self._hear)
        self._ours, self._theirs = socket.socketpair()
        self._loop.add_reader(self._theirs.fileno(), self._end)
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def ask(self, asker: Asker, request: RequestMade) -> None:
        asked = read_request(request.request)
        answer: Answer = NotKnown(EVIL)
        if isinstance(asked, StacksAsked):
            answer = StacksTold((), EVIL)
        if not self.refuses:
            asker.on_answer(request.number, "node", pack(answer))
        asker.on_settled(CloseRequest(request.number, EVIL if self.refuses else ""))

    def drop(self, asker: Asker) -> None:
        pass

    def _hear(self, peer: LocalPeer, message: dict[str, object]) -> bytes | channel_server.Answer:
        is_open = message["visit"] == self._job
        packet = msgspec.json.encode({"run_id": self._job, "node": "node", "is_open": is_open})
        if not is_open:
            return packet
        return channel_server.Answer(packet, self._sessions.admit_here("me"), is_handed_over=True)

    def _end(self) -> None:
        self._is_over = True

    def _run(self) -> None:
        self._loop.run_until(lambda: self._is_over)
        self._loop.remove_reader(self._theirs.fileno())
        self._channel.close()
        self._sessions.close()
        self._loop.close()

    def close(self) -> None:
        self._ours.send(b"!")
        self._thread.join()
        self._ours.close()
        self._theirs.close()


@pytest.fixture
def job(request: pytest.FixtureRequest) -> str:
    return f"hostile-{os.getpid()}-{request.node.name.replace(' ', '-')}"


@pytest.fixture
def agent(job: str) -> Iterator[HostileAgent]:
    agent = HostileAgent(job)
    yield agent
    agent.close()


@pytest.mark.parametrize("refuses", [False, True], ids=["answers", "refuses"])
@pytest.mark.parametrize(
    "verb", ["status", "events", "stacks", "drain node", "restart", "scale 2", "save", "stop"]
)
def test_no_answer_writes_lines_or_commands_to_the_terminal(
    agent: HostileAgent, job: str, run_holdfast: Run,
    verb: str, refuses: bool,
) -> None:  # fmt: skip
    agent.refuses = refuses
    name, *more = verb.split()
    done = run_holdfast(name, job, *more)
    shown = done.stdout + done.stderr
    assert "evil" in shown, "it was asked"
    assert "\x1b" not in shown
    assert "\r" not in shown
    assert not any(line.startswith("holdfast: the job succeeded") for line in shown.splitlines())
