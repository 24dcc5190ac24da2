"""Dialling finds the coordinator wherever it is, or says in words what failed."""

from __future__ import annotations

import asyncio
import socket

import pytest

from holdfast.core.protocol.errors import UsageError
from holdfast.core.protocol.messages import Heartbeat, StopRound
from holdfast.core.protocol.model import Endpoint, Term
from holdfast.transport import client as clients
from holdfast.transport import sentences
from holdfast.transport.auth import ConnectionSecurity
from holdfast.transport.client import Client
from holdfast.transport.dialling import Identity, begin_connecting
from holdfast.transport.frames import VERSION, ProtocolError, encode
from holdfast.transport.handshake import ADVICE, Challenge, Welcome, refusal_of
from holdfast.transport.resolving import Address
from holdfast.transport.server import Server

from ..free_ports import free_port
from .stage import JOB, LOOPBACK, TENURE, Agent, Stage

SECRET = ConnectionSecurity(b"a secret token")


def lost(
    stage: Stage, agent: Agent, *endpoints: Endpoint, timeout_s: float = 20
) -> tuple[str, bool]:
    """Dial in vain, and return what was said."""
    agent.client.dial(endpoints, timeout_s)
    assert agent.lost == [], "it must not call back from within"
    stage.until(lambda: agent.lost)
    assert agent.connected == []
    assert len(agent.lost) == 1
    return agent.lost[0]


class FakeServer:
    """Listens, and says what it is told to, to whoever comes first."""

    def __init__(self, stage: Stage, *frames: bytes) -> None:
        self._loop, self._frames = stage.loop, list(frames)
        self.socket = socket.create_server((LOOPBACK, 0))
        self.accepted: list[socket.socket] = []
        self.hung_up = 0
        stage.loop.add_reader(self.socket.fileno(), self._accept)
        stage._closing.append(self.close)
        self.endpoint = Endpoint(*self.socket.getsockname())

    def _accept(self) -> None:
        sock, _ = self.socket.accept()
        self.accepted.append(sock)
        self._loop.add_reader(sock.fileno(), self._answer, sock)

    def _answer(self, sock: socket.socket) -> None:
        if not sock.recv(1 << 16):
            self.hung_up += 1
            self._loop.remove_reader(sock.fileno())
        elif self._frames:
            sock.sendall(self._frames.pop(0))

    def close(self) -> None:
        for sock in (self.socket, *self.accepted):
            self._loop.remove_reader(sock.fileno())
            sock.close()


def test_a_refused_connection_is_named(stage: Stage) -> None:
    port = free_port()
    reason, permanent = lost(stage, stage.agent(), Endpoint(LOOPBACK, port))
    assert reason == f"127.0.0.1:{port} {sentences.REFUSED}"
    assert not permanent


def test_a_name_that_means_nothing_is_named(stage: Stage) -> None:
    reason, permanent = lost(stage, stage.agent(), Endpoint("no-such-host.invalid", 1))
    assert reason == sentences.unresolved("no-such-host.invalid")
    assert not permanent


@pytest.mark.parametrize("name", ["", "a" * 300, "..", "node\0seven"])
def test_a_name_that_cannot_be_one_is_named(stage: Stage, name: str) -> None:
    agent = stage.agent()
    agent.client.dial((Endpoint(name, free_port()),), 20)
    stage.until(lambda: agent.lost)
    assert len(agent.lost) == 1


def test_everything_that_failed_is_named(stage: Stage) -> None:
    port = free_port()
    endpoints = (Endpoint("no-such-host.invalid", 1), Endpoint(LOOPBACK, port))
    reason, _ = lost(stage, stage.agent(), *endpoints)
    assert sentences.unresolved("no-such-host.invalid") in reason
    assert f"127.0.0.1:{port} {sentences.REFUSED}" in reason


def test_without_an_endpoint_it_is_said(stage: Stage) -> None:
    assert lost(stage, stage.agent())[0] == sentences.NO_ENDPOINT


def test_one_that_never_answers_is_named_in_the_end(stage: Stage) -> None:
    silent = FakeServer(stage)
    reason, permanent = lost(stage, stage.agent(), silent.endpoint, timeout_s=0.3)
    assert reason == sentences.within(sentences.silent(silent.endpoint), 0.3)
    assert not permanent


def test_another_service_at_that_port_is_no_coordinator(stage: Stage) -> None:
    reason, _ = lost(stage, stage.agent(), FakeServer(stage, b"SSH-2.0-OpenSSH\r\n").endpoint)
    assert "above the limit" in reason


@pytest.mark.parametrize(
    ("security", "job", "words", "is_permanent"),
    [
        (ConnectionSecurity(b"another"), JOB, "wrong token", True),
        (
            ConnectionSecurity(),
            JOB,
            "the coordinator requires a token, but the node has none",
            True,
        ),
        (SECRET, "other", f"{sentences.other_job(JOB, 'other')} ({ADVICE})", False),
    ],
)
def test_a_refusal_is_told_in_the_servers_words(
    stage: Stage, security: ConnectionSecurity, job: str, words: str, is_permanent: bool
) -> None:
    stage.serve(SECRET)
    reason, permanent = lost(stage, stage.agent("node", security, job), stage.endpoint)
    assert reason == f"{stage.endpoint}: {words}"
    assert permanent is is_permanent


def test_a_coordinator_without_the_token_is_refused(stage: Stage) -> None:
    stage.serve()
    reason, permanent = lost(stage, stage.agent("node", SECRET), stage.endpoint)
    assert "the node has a token, but the coordinator has none" in reason
    assert permanent


def test_a_server_that_claims_the_token_and_has_not_is_refused(stage: Stage) -> None:
    liar = FakeServer(
        stage,
        encode(Challenge(VERSION, b"i" * 16, b"n" * 16, True)),
        encode(Welcome(bytes(32), b"t" * 16)),
    )
    reason, permanent = lost(stage, stage.agent("node", SECRET), liar.endpoint)
    assert "the coordinator does not know the token" in reason
    assert permanent


def test_the_one_that_answers_is_found_among_those_that_do_not(stage: Stage) -> None:
    stage.serve()
    silent = FakeServer(stage)
    agent = stage.agent()
    dead = Endpoint(LOOPBACK, free_port())
    nowhere = Endpoint("no-such-host.invalid", 1)
    agent.client.dial((dead, nowhere, silent.endpoint, stage.endpoint), 20)
    stage.until(lambda: agent.connected)
    stage.until(lambda: silent.hung_up == len(silent.accepted))
    stage.assert_undisturbed(agent)


def test_a_name_with_several_addresses_is_tried_at_each_of_them(stage: Stage) -> None:
    stage.serve(host=LOOPBACK)
    agent = stage.agent()
    agent.client.dial((Endpoint("localhost", stage.endpoint.port),), 20)
    stage.until(lambda: agent.connected)
    assert agent.connected == [LOOPBACK]


def test_a_node_that_dials_a_server_by_many_ways_is_admitted_once(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.transport.dialling.STAGGER_S", 0.0)
    stage.serve(SECRET)
    for number in range(1, 9):
        stage.server.listen((f"127.0.0.{number}", 0))
    agent = stage.agent("node", SECRET)
    agent.client.dial(stage.server.addresses, 20)
    stage.until(lambda: agent.tethers and stage.coordinator.tethered)
    stage.assert_undisturbed(agent)
    stage.until(lambda: len(stage.server._connections) == 2)
    assert stage.coordinator.tethered == ["node"]


def test_after_a_loss_it_may_dial_again_and_gets_another_tether(stage: Stage) -> None:
    port = free_port()
    stage.serve(port=port)
    agent = stage.connect()
    stage.server.close()
    stage.until(lambda: agent.lost)
    assert agent.lost == [(sentences.CLOSED, False)]
    stage.serve(port=port)
    agent.client.dial((stage.endpoint,), 20)
    stage.until(lambda: len(agent.tethers) == 2)
    agent.client.send(Heartbeat(1))
    stage.until(lambda: agent.messages)
    assert len(agent.lost) == 1


def test_nothing_is_told_after_close(stage: Stage) -> None:
    stage.serve()
    connected, dialling, looking_up = stage.connect("connected"), stage.agent(), stage.agent()
    dialling.client.dial((FakeServer(stage).endpoint,), 0.1)
    looking_up.client.dial((Endpoint("no-such-host.invalid", 1),), 0.1)
    for agent in (connected, dialling, looking_up):
        agent.client.close()
    stage.server.close()
    passed: list[bool] = []
    stage.loop.call_later(0.3, passed.append, True)
    stage.until(lambda: passed)
    assert connected.lost == dialling.lost == looking_up.lost == []
    connected.client.send(Heartbeat(1))


def test_garbage_from_the_coordinator_ends_the_connection(stage: Stage) -> None:
    server = FakeServer(
        stage,
        encode(Challenge(VERSION, b"i" * 16, b"n" * 16, False)),
        encode(Welcome(b"", b"t" * 16)) + encode("an order?"),
    )
    agent = stage.agent()
    agent.client.dial((server.endpoint,), 20)
    stage.until(lambda: agent.lost)
    assert len(agent.connected) == len(agent.lost) == 1
    assert "cannot be read" in agent.lost[0][0]


def test_a_refusal_later_on_is_told_in_its_words(stage: Stage) -> None:
    refusal = refusal_of(ProtocolError("garbage", "what was that?"))
    server = FakeServer(
        stage,
        encode(Challenge(VERSION, b"i" * 16, b"n" * 16, False)),
        encode(Welcome(b"", b"t" * 16)) + refusal,
    )
    agent = stage.agent()
    agent.client.dial((server.endpoint,), 20)
    stage.until(lambda: agent.lost)
    assert agent.lost == [("what was that?", True)]


def test_a_handler_may_close_or_dial_from_within(stage: Stage) -> None:
    stage.serve()
    first = stage.agent("first")
    first.on_connected = lambda *_: first.client.close()  # type: ignore[method-assign]
    first.client.dial((stage.endpoint,), 20)
    stage.until(lambda: stage.coordinator.lost)
    assert first.tethers == []
    assert first.lost == []

    second = stage.agent("second")
    second.on_line_lost = lambda *_: second.client.dial((stage.endpoint,), 20)  # type: ignore[method-assign]
    second.client.dial((Endpoint(LOOPBACK, free_port()),), 20)
    stage.until(lambda: second.tethers)


def test_a_tether_that_cannot_be_made_at_first_is_made_later(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clients, "TETHER_RETRY_S", 0.05)
    real, failures = begin_connecting, [OSError("no"), OSError("no")]

    def failing_at_first(address: Address) -> socket.socket:
        if failures:
            raise failures.pop()
        return real(address)

    monkeypatch.setattr(clients, "begin_connecting", failing_at_first)
    stage.serve()
    stage.connect()
    assert failures == []


class ClockedLoop(asyncio.SelectorEventLoop):
    """asyncio's loop, whose clock is read by the name that it has here."""

    def now(self) -> float:
        return self.time()


def test_it_runs_on_the_loop_of_asyncio_too(stage: Stage) -> None:
    client: Client

    class Handlers:
        def __init__(self, done: asyncio.Future[object]) -> None:
            self.done = done

        def on_connected(self, local_address: str) -> None:
            client.send(Heartbeat(9))

        def on_line_lost(self, reason: str, permanent: bool) -> None:
            self.done.set_exception(AssertionError(reason))

        def on_unusable(self, error: UsageError) -> None:
            self.done.set_exception(error)

        def on_told(self, term: Term, message: object) -> None:
            self.done.set_result((term, message))

        def on_own_tether(self, tether: int) -> None:
            socket.socket(fileno=tether).close()

    async def main() -> object:
        nonlocal client
        loop = asyncio.get_running_loop()
        assert isinstance(loop, ClockedLoop)
        server = Server(loop, JOB, SECRET, stage.coordinator)
        stage.coordinator.server = server
        server.listen((LOOPBACK, 0))
        done: asyncio.Future[object] = loop.create_future()
        who = Identity(JOB, "node", SECRET)
        client = Client(loop, who, stage.disk, Handlers(done))
        client.dial((Endpoint("localhost", server.addresses[0].port),), 20)
        try:
            return await asyncio.wait_for(done, 20)
        finally:
            client.close()
            server.close()

    with asyncio.Runner(loop_factory=ClockedLoop) as runner:
        result = runner.run(main())
    assert isinstance(result, tuple)
    assert result[0] == TENURE
    assert not isinstance(result[1], StopRound)
