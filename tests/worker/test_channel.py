"""What a worker's own code says to its agent, heard on a plain socket."""

from __future__ import annotations

import json
import os
import secrets
import select
import socket
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.worker.channel import PACKET_LIMIT, VARIABLE, Channel, address_of, connect_to_agent

from ..another_user import HOLDS_NAMES, another_user

DEADLINE_S = 60


class Agent:
    """A listener that takes packets and does nothing else."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.listener.settimeout(DEADLINE_S)
        self.listener.bind(address_of(name))
        self.listener.listen()
        self.clients: list[socket.socket] = []

    def accept(self) -> socket.socket:
        client, _ = self.listener.accept()
        client.settimeout(DEADLINE_S)
        self.clients.append(client)
        return client

    def close(self) -> None:
        for each in (self.listener, *self.clients):
            each.close()


@pytest.fixture
def agent(monkeypatch: pytest.MonkeyPatch) -> Iterator[Agent]:
    agent = Agent(f"@holdfast-test-{secrets.token_hex(8)}")
    monkeypatch.setenv(VARIABLE, agent.name)
    monkeypatch.setenv("LOCAL_RANK", "3")
    yield agent
    agent.close()


@pytest.fixture
def channel() -> Iterator[Channel]:
    channel = Channel()
    yield channel
    channel.close()


def heard(client: socket.socket) -> dict[str, Any]:
    message: dict[str, Any] = json.loads(client.recv(PACKET_LIMIT))
    return message


def run(code: str, **environ: str) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join(entry for entry in sys.path if entry)
    return subprocess.run(
        [sys.executable, "-c", code],
        env={"PATH": os.environ["PATH"], "PYTHONPATH": path, **environ},
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )


SAY = "from holdfast.worker.channel import Channel\nsay = Channel().send\n"


def test_messages_reach_the_agent_one_packet_each(agent: Agent) -> None:
    code = f"{SAY}for n in range(3): say({{'progress': n}})\n"
    done = run(code, HOLDFAST_CHANNEL=agent.name, LOCAL_RANK="3")
    client = agent.accept()
    assert [heard(client) for _ in range(3)] == [
        {"progress": step, "local_rank": 3} for step in range(3)
    ]
    assert client.recv(1) == b""
    assert (done.returncode, done.stderr) == (0, "")


def test_a_socket_in_the_file_system_is_reached_too(tmp_path: Path) -> None:
    agent = Agent(str(tmp_path / "socket"))
    try:
        run(f"{SAY}say({{'progress': 5}})", HOLDFAST_CHANNEL=agent.name)
        assert heard(agent.accept()) == {"progress": 5}
    finally:
        agent.close()


def test_without_the_variable_nothing_happens() -> None:
    code = """
        import os
        from holdfast.worker.channel import Channel
        before = os.listdir("/proc/self/fd")
        print(Channel().send({"progress": 1}), os.listdir("/proc/self/fd") == before)
    """
    done = run(textwrap.dedent(code))
    assert (done.returncode, done.stdout, done.stderr) == (0, "False True\n", "")


def test_without_an_agent_nothing_happens(
    channel: Channel, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("@holdfast-test-nobody", "/no/such/socket", "x" * 300):
        monkeypatch.setenv(VARIABLE, name)
        assert not channel.send({"progress": 1})


def test_an_agent_that_does_not_read_delays_nobody(agent: Agent, channel: Channel) -> None:
    sent = 0
    while channel.send({"progress": sent}):
        sent += 1
    assert sent > 10
    client = agent.accept()
    assert heard(client) == {"progress": 0, "local_rank": 3}
    while select.select([client], [], [], 0)[0]:
        heard(client)
    assert channel.send({"progress": -1}), "the connection outlives a full buffer"
    assert heard(client)["progress"] == -1


def test_a_line_with_a_timeout_waits_until_the_agent_has_room(agent: Agent) -> None:
    agent.listener.listen(0)
    connected: list[socket.socket] = []

    def connect() -> None:
        line = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        line.settimeout(DEADLINE_S)
        connect_to_agent(line, agent.name)
        connected.append(line)

    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as first:
        first.connect(address_of(agent.name))
        others = [threading.Thread(target=connect) for _ in range(3)]
        for other in others:
            other.start()
        for _ in range(4):
            agent.accept()
        for other in others:
            other.join()
    assert [line.gettimeout() for line in connected] == [DEADLINE_S] * 3
    for line in connected:
        line.close()


def test_an_agent_that_does_not_accept_delays_nobody(agent: Agent) -> None:
    agent.listener.listen(0)
    channels = [Channel() for _ in range(4)]
    sent = [channel.send({"progress": 0}) for channel in channels]
    assert sent == [True, False, False, False]
    agent.accept()
    assert channels[-1].send({"progress": 1}), "it is tried again with the next message"
    for channel in channels:
        channel.close()


def test_a_new_agent_under_the_same_name_is_found(agent: Agent, channel: Channel) -> None:
    assert channel.send({"progress": 1})
    agent.close()
    assert not channel.send({"progress": 2})
    successor = Agent(agent.name)
    try:
        assert channel.send({"progress": 3})
        assert heard(successor.accept())["progress"] == 3
    finally:
        successor.close()


def test_a_forked_child_speaks_for_itself(agent: Agent) -> None:
    code = (
        f"import os\n{SAY}say({{'progress': 1}})\n"
        "child = os.fork()\nsay({'progress': 2 if child else 3})\n"
        "if child:\n    os.waitpid(child, 0)\n    say({'progress': 4})\n"
        "    print(os.getpid(), child)\n"
    )
    done = run(code, HOLDFAST_CHANNEL=agent.name)
    parent, child = map(int, done.stdout.split())
    first, second = agent.accept(), agent.accept()
    assert [heard(first)["progress"] for _ in range(3)] == [1, 2, 4]
    assert heard(second)["progress"] == 3
    assert [peer_of(first), peer_of(second)] == [parent, child]


def peer_of(client: socket.socket) -> int:
    raw = client.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
    return int.from_bytes(raw[:4], sys.byteorder)


def test_what_is_too_long_is_not_sent(agent: Agent, channel: Channel) -> None:
    assert not channel.send({"state": "x" * PACKET_LIMIT})
    assert channel.send({"state": "x" * (PACKET_LIMIT - 100)})
    assert len(heard(agent.accept())["state"]) == PACKET_LIMIT - 100


def test_no_child_process_inherits_the_connection(agent: Agent, channel: Channel) -> None:
    assert channel.send({"progress": 1})
    child = subprocess.Popen(["sleep", "60"], close_fds=False)
    try:
        client = agent.accept()
        heard(client)
        channel.close()
        assert client.recv(1) == b""
    finally:
        child.kill()
        child.wait()


def test_it_needs_nothing_but_the_standard_library() -> None:
    code = "import sys, holdfast.worker.channel; print('msgspec' in sys.modules)"
    assert run(code).stdout == "False\n"


@pytest.mark.root
def test_whoever_takes_the_name_of_an_agent_that_is_gone_is_told_nothing(
    channel: Channel, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = f"@holdfast-{os.getpid()}-{secrets.token_hex(8)}"
    monkeypatch.setenv(VARIABLE, name)
    with another_user(HOLDS_NAMES, name):
        assert not channel.send({"progress": 1})


@pytest.mark.root
def test_a_worker_of_another_user_than_its_agent_speaks_to_it(
    channel: Channel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As one that is started with sudo: the agent's process has the number that its name says."""
    token = secrets.token_hex(8)
    own_name = "sys.argv[1:] = [f'holdfast-{os.getpid()}-{sys.argv[1]}']\n"
    with another_user(own_name + HOLDS_NAMES, token) as agent:
        monkeypatch.setenv(VARIABLE, f"@holdfast-{agent.pid}-{token}")
        assert channel.send({"progress": 1})
