"""The agent's end of the channel, with real workers and unfriendly neighbours."""

from __future__ import annotations

import asyncio
import json
import os
import resource
import socket
import subprocess
import sys
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from typing import Any, cast

import pytest

from holdfast.processes.channel_server import ChannelServer
from holdfast.processes.stdlib_only.wire import ADMIN_SESSION
from holdfast.runtime.local_peer import LocalPeer
from holdfast.runtime.loop import EventLoop, Loop
from holdfast.worker.channel import PACKET_LIMIT, VARIABLE, address_of

DEADLINE_S = 60
Test = Callable[["Heard"], Awaitable[None]]


class Heard:
    """A server and what it was told."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.messages: list[tuple[int, dict[str, Any]]] = []
        self.news = asyncio.Event()
        self.server = ChannelServer(cast(Loop, loop), self.hear)

    def hear(self, peer: LocalPeer, message: dict[str, Any]) -> None:
        if ADMIN_SESSION in message:
            return  # Of another test, which looks for jobs on this machine.
        self.messages.append((peer.pid, message))
        self.news.set()

    async def until(self, count: int) -> list[tuple[int, dict[str, Any]]]:
        async with asyncio.timeout(DEADLINE_S):
            while len(self.messages) < count:
                self.news.clear()
                await self.news.wait()
        return self.messages

    def connect(self) -> socket.socket:
        return connect(self.server)

    def start(self, code: str, local_rank: int = 0) -> subprocess.Popen[bytes]:
        path = os.pathsep.join(entry for entry in sys.path if entry)
        own = {VARIABLE: self.server.name, "LOCAL_RANK": str(local_rank)}
        return subprocess.Popen([sys.executable, "-c", code], env={"PYTHONPATH": path, **own})

    def start_as(self, user: int) -> subprocess.Popen[bytes]:
        """A process of another user that has said one thing and waits for the end."""
        command = [sys.executable, "-c", SPEAK_AS, str(user)]
        process = subprocess.Popen(
            command, env={VARIABLE: self.server.name}, stdout=subprocess.PIPE
        )
        assert process.stdout is not None
        with process.stdout as said:
            assert said.readline() == b"sent\n"
        return process


def connect(server: ChannelServer) -> socket.socket:
    client = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    client.settimeout(DEADLINE_S)
    try:
        client.connect(address_of(server.name))
    except OSError:
        client.close()
        raise
    return client


def serve(test: Test) -> None:
    """Run a test on a loop with a server, and close it."""

    async def main() -> None:
        heard = Heard(asyncio.get_running_loop())
        try:
            await test(heard)
        finally:
            heard.server.close()
            heard.server.close()  # closing twice is allowed

    asyncio.run(main())


async def send(client: socket.socket, message: object) -> None:
    """Send a message, or bytes as they are, without holding up the loop that is to read it."""
    packet = message if isinstance(message, bytes) else json.dumps(message).encode()
    await asyncio.to_thread(client.send, packet)


SAY = "from holdfast.worker.channel import Channel\nsay = Channel().send\n"


def test_several_workers_are_heard_and_told_apart() -> None:
    async def test(heard: Heard) -> None:
        code = f"{SAY}for n in range(20): say({{'progress': n}})\n"
        workers = [heard.start(code, rank) for rank in range(4)]
        messages = await heard.until(80)
        for rank, worker in enumerate(workers):
            assert worker.wait() == 0
            own = [message for pid, message in messages if pid == worker.pid]
            assert own == [{"progress": n, "local_rank": rank} for n in range(20)]

    serve(test)


def test_each_server_has_a_name_of_its_own_that_leaves_no_file() -> None:
    async def test(heard: Heard) -> None:
        other = ChannelServer(cast(Loop, asyncio.get_running_loop()), heard.hear)
        assert heard.server.name.startswith("@")
        assert heard.server.name != other.name
        other.close()

    serve(test)


@pytest.mark.parametrize(
    "packet",
    [
        b"garbage",
        b"[1, 2]",
        b"7",
        b"null",
        b'{"progress": ',
        b'{"a": 1} trailing',
        b"\xff\xfe\x00",
        b'{"a": "\xff"}',
        b'{"a": ' * 10_000 + b"1" + b"}" * 10_000,
        b'{"a": "' + b"x" * PACKET_LIMIT + b'"}',
        b'{"a": 1}' + b" " * PACKET_LIMIT,
        b'{"a": 1' + b"0" * 5_000 + b"}",
    ],
    ids=lambda packet: repr(packet[:20]),
)
def test_what_is_no_message_is_dropped_and_the_next_one_heard(packet: bytes) -> None:
    async def test(heard: Heard) -> None:
        with heard.connect() as client:
            await send(client, packet)
            await send(client, {"after": True})
            messages = await heard.until(1)
            assert messages[-1] == (os.getpid(), {"after": True})
            assert len(messages) == 1

    serve(test)


def test_a_message_at_the_limit_is_heard() -> None:
    async def test(heard: Heard) -> None:
        with heard.connect() as client:
            text = "x" * (PACKET_LIMIT - len('{"a": ""}'))
            await send(client, {"a": text})
            assert await heard.until(1) == [(os.getpid(), {"a": text})]

    serve(test)


def test_what_a_worker_said_before_it_was_killed_is_heard() -> None:
    async def test(heard: Heard) -> None:
        code = (
            f"import os, signal\n{SAY}"
            "for n in range(50): say({'progress': n})\nos.kill(os.getpid(), signal.SIGKILL)\n"
        )
        worker = heard.start(code)
        assert await asyncio.to_thread(worker.wait) == -9
        assert len(await heard.until(50)) == 50

    serve(test)


def test_one_that_never_stops_does_not_hold_up_the_others() -> None:
    loop, heard = EventLoop(), []

    def hear(_peer: LocalPeer, message: dict[str, Any]) -> None:
        heard.append(message)
        if message == {"again": True}:
            chatterer.send(b'{"again": true}')

    server = ChannelServer(loop, hear)
    with connect(server) as chatterer, connect(server) as quiet:
        chatterer.send(b'{"again": true}')
        quiet.send(b'{"again": false}')
        loop.run_until(lambda: {"again": False} in heard)
    server.close()
    loop.close()


def test_a_callback_that_raises_costs_one_message() -> None:
    async def test(heard: Heard) -> None:
        loop, told = asyncio.get_running_loop(), []
        loop.set_exception_handler(lambda _loop, context: told.append(context["exception"]))
        hear = heard.hear

        def raise_once(_peer: LocalPeer, message: dict[str, Any]) -> None:
            heard.server._on_message = hear
            raise ValueError("no")

        heard.server._on_message = raise_once
        with heard.connect() as client:
            await send(client, {"n": 1})
            await send(client, {"n": 2})
            assert await heard.until(1) == [(os.getpid(), {"n": 2})]
        assert [type(error) for error in told] == [ValueError]

    serve(test)


def test_a_message_may_make_the_agent_close_the_channel() -> None:
    loop, heard = EventLoop(), []

    def hear(_peer: LocalPeer, message: dict[str, Any]) -> None:
        heard.append(message)
        server.close()

    server = ChannelServer(loop, hear)
    clients = [connect(server) for _ in range(3)]
    loop.run_until(lambda: len(server._clients) == 3)
    turns: list[int] = []
    loop.call_soon(turns.append, 1)
    loop.run_until(lambda: bool(turns))  # so that the kernel tells of those below in order
    for client in clients:
        client.send(b'{"n": 1}')
        client.send(b'{"n": 2}')
    late = connect(server)  # it knocks in the same turn, and after them
    loop.run_until(lambda: bool(heard))
    assert heard == [{"n": 1}]
    for client in (*clients, late):
        client.close()
    loop.close()


def test_closing_disconnects_everyone() -> None:
    async def test(heard: Heard) -> None:
        with heard.connect() as client:
            await send(client, {"n": 1})
            await heard.until(1)
            heard.server.close()
            assert client.recv(1) == b""
        with pytest.raises(ConnectionRefusedError):
            heard.connect()

    serve(test)


SPEAK_AS = """
import os, socket, sys
os.setuid(int(sys.argv[1]))
client = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
client.connect("\\0" + os.environ["HOLDFAST_CHANNEL"][1:])
client.send(b'{"from": %d}' % os.getuid())
print("sent", flush=True)
try:
    client.recv(1)
except ConnectionResetError:
    pass  # it was closed before what was said had been read
"""


@pytest.mark.root
def test_only_the_same_user_and_root_are_heard() -> None:
    async def test(heard: Heard) -> None:
        same, other, root = (heard.start_as(user) for user in (1, 2, 0))
        os.seteuid(1)  # whom the kernel named was settled when they connected
        try:
            messages = await heard.until(2)
            assert await asyncio.to_thread(other.wait, DEADLINE_S) == 0, "it is disconnected"
        finally:
            os.seteuid(0)
        assert sorted(message["from"] for _, message in messages) == [0, 1]
        heard.server.close()
        assert (same.wait(DEADLINE_S), root.wait(DEADLINE_S)) == (0, 0)

    serve(test)


def test_running_out_of_descriptors_is_survived(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.processes.channel_server.PAUSE_S", 0.01)

    async def test(heard: Heard) -> None:
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        with heard.connect() as client:
            client.send(b'{"n": 1}')
            resource.setrlimit(resource.RLIMIT_NOFILE, (lowest_free_descriptor(), hard))
            try:
                for _ in range(100):
                    await asyncio.sleep(0)
                assert heard.messages == []
            finally:
                resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
            assert await heard.until(1) == [(os.getpid(), {"n": 1})]

    serve(test)


def test_one_process_gets_its_share_of_the_room_and_others_are_heard(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("holdfast.runtime.descriptors.most", lambda kind: 8)

    async def test(heard: Heard) -> None:
        with ExitStack() as stack:
            own = [stack.enter_context(heard.connect()) for _ in range(3)]
            assert await asyncio.to_thread(own[2].recv, 1) == b"", "a share is two of eight"
            workers = [heard.start(f"{SAY}say({{}})\ninput()", rank) for rank in range(7)]
            await heard.until(6)
            await send(own[0], {"n": 1})
            assert (await heard.until(7))[-1] == (os.getpid(), {"n": 1})
            for worker in workers:
                worker.kill()
                worker.wait()

    serve(test)


def lowest_free_descriptor() -> int:
    descriptor = os.dup(0)
    os.close(descriptor)
    return descriptor
