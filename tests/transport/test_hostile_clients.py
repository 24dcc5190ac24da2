"""Whatever a client does, it is disconnected and counted, and nobody else notices."""

from __future__ import annotations

import os
import resource
import socket
import struct
from collections.abc import Iterator

import pytest

from holdfast.core.protocol.messages import Heartbeat, StopRound, WorkersProgressed
from holdfast.transport import connection as connections
from holdfast.transport import listener, sentences
from holdfast.transport.auth import OPEN, ConnectionSecurity
from holdfast.transport.frames import FRAME_LIMIT, HANDSHAKE_LIMIT, VERSION, encode, encode_order
from holdfast.transport.handshake import ClientSide, Opening, Proof, read_refusal

from .stage import JOB, TENURE, Agent, Raw, Stage, reset

SECRET = ConnectionSecurity(b"a secret token")


@pytest.fixture
def hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """A handshake has less time, and still enough; asked for before the server is there."""
    monkeypatch.setattr(listener, "HANDSHAKE_TIMEOUT_S", 2.0)


@pytest.fixture
def good(stage: Stage) -> Iterator[Agent]:
    """An agent that was there before, and that must not be disturbed."""
    stage.serve(SECRET)
    agent = stage.connect("good", SECRET)
    yield agent
    stage.assert_undisturbed(agent)
    newcomer = stage.connect("newcomer", SECRET)
    stage.assert_undisturbed(newcomer)


def refusal(stage: Stage, raw: Raw) -> tuple[str, str]:
    """The kind and the reason that the server gives before it hangs up."""
    stage.until(lambda: raw.is_ended)
    error = read_refusal(raw.frames[-1])
    assert error is not None, "it was not told why"
    return error.kind, error.reason


def admitted(stage: Stage, node: str, security: ConnectionSecurity = SECRET) -> Raw:
    """A client that has gone through the handshake and may now misbehave."""
    raw = stage.raw()
    side = ClientSide(JOB, node, "control", security)
    raw.send(side.opening())
    stage.until(lambda: len(raw.frames) == 1)
    side.read_challenge(raw.frames[0])
    raw.send(side.prove())
    stage.until(lambda: len(raw.frames) == 2)
    side.read_welcome(raw.frames[1])
    heard = len(stage.coordinator.messages)
    raw.send(encode(WorkersProgressed(1, 1)))
    stage.until(lambda: len(stage.coordinator.messages) > heard)
    return raw


def test_garbage_is_refused(stage: Stage, good: Agent) -> None:
    raw = stage.raw()
    raw.send(struct.pack("!I", 20) + os.urandom(20))
    assert refusal(stage, raw)[0] == "garbage"
    assert stage.server.rejected == {"garbage": 1}


def test_another_protocol_altogether_is_refused(stage: Stage, good: Agent) -> None:
    raw = stage.raw()
    raw.send(b"GET / HTTP/1.1\r\nHost: coordinator\r\n\r\n")
    assert refusal(stage, raw)[0] == "oversize"


def test_tls_where_there_is_none_is_refused(stage: Stage, good: Agent) -> None:
    raw = stage.raw()
    raw.send(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(500))
    assert refusal(stage, raw)[0] == "tls"


@pytest.mark.parametrize("length", [HANDSHAKE_LIMIT + 1, FRAME_LIMIT, 0xFFFFFFFF])
def test_a_length_above_the_limit_is_refused_at_once(
    stage: Stage, good: Agent, length: int
) -> None:
    raw = stage.raw()
    raw.send(struct.pack("!I", length))
    kind, reason = refusal(stage, raw)
    assert kind == "oversize"
    assert f"{length} bytes" in reason


def test_the_limit_is_higher_for_those_who_proved_themselves(stage: Stage, good: Agent) -> None:
    raw = admitted(stage, "node")
    raw.send(struct.pack("!I", HANDSHAKE_LIMIT + 1) + bytes(100))
    stage.assert_undisturbed(good)
    assert not raw.is_ended
    raw.close()
    other = admitted(stage, "other")
    other.send(struct.pack("!I", FRAME_LIMIT + 1))
    assert refusal(stage, other)[0] == "oversize"
    stage.until(lambda: len(stage.coordinator.lost) == 2)


def test_garbage_from_an_admitted_node_ends_its_connection_only(stage: Stage, good: Agent) -> None:
    raw = admitted(stage, "node")
    raw.send(encode(Heartbeat(1)) + struct.pack("!I", 3) + b"\xc1\xc1\xc1" + encode(Heartbeat(2)))
    assert refusal(stage, raw)[0] == "garbage"
    assert stage.coordinator.messages[1:] == [("node", Heartbeat(1))]
    assert [node for node, _ in stage.coordinator.lost] == ["node"]


def test_an_order_is_nothing_that_a_node_may_say(stage: Stage, good: Agent) -> None:
    raw = admitted(stage, "node")
    raw.send(encode(StopRound(1, "by me")))
    assert refusal(stage, raw)[0] == "garbage"
    assert stage.coordinator.messages[1:] == []


def test_a_wrong_version_is_told_both_versions(stage: Stage, good: Agent) -> None:
    raw = stage.raw()
    raw.send(encode(Opening(version=VERSION + 1, job=JOB, node="node", kind="control")))
    kind, reason = refusal(stage, raw)
    assert kind == "version"
    assert reason == sentences.other_version(VERSION, VERSION + 1)


def test_a_wrong_job_is_told_both_jobs(stage: Stage, good: Agent) -> None:
    raw = stage.raw()
    raw.send(ClientSide("their-job", "node", "control", SECRET).opening())
    kind, reason = refusal(stage, raw)
    assert kind == "job"
    assert sentences.other_job(JOB, "their-job") in reason


def test_a_wrong_token_is_refused(stage: Stage, good: Agent) -> None:
    raw = stage.raw()
    raw.send(ClientSide(JOB, "good", "control", SECRET).opening())
    stage.until(lambda: raw.frames)
    raw.send(encode(Proof(bytes(32))))
    assert refusal(stage, raw) == ("token", "wrong token")
    assert stage.server.rejected == {"token": 1}


def test_a_node_cannot_speak_before_it_has_proved_itself(stage: Stage, good: Agent) -> None:
    raw = stage.raw()
    raw.send(ClientSide(JOB, "node", "control", SECRET).opening() + encode(Heartbeat(666)))
    assert refusal(stage, raw)[0] == "garbage"
    assert stage.coordinator.messages == []


def test_a_replayed_handshake_is_refused(stage: Stage, good: Agent) -> None:
    side = ClientSide(JOB, "node", "control", SECRET)
    first = stage.raw()
    opening = side.opening()
    first.send(opening)
    stage.until(lambda: first.frames)
    side.read_challenge(first.frames[0])
    proof = side.prove()
    first.send(proof)
    stage.until(lambda: "node" in stage.server.nodes)

    replay = stage.raw()
    replay.send(opening)
    stage.until(lambda: replay.frames)
    replay.send(proof)
    assert refusal(stage, replay) == ("token", "wrong token")
    assert "node" in stage.server.nodes
    assert not first.is_ended


def test_what_the_server_proved_is_no_proof_for_a_node(stage: Stage, good: Agent) -> None:
    import msgspec

    side = ClientSide(JOB, "node", "control", SECRET)
    first = stage.raw()
    first.send(side.opening())
    stage.until(lambda: first.frames)
    side.read_challenge(first.frames[0])
    first.send(side.prove())
    stage.until(lambda: len(first.frames) == 2)
    servers_proof = msgspec.msgpack.decode(first.frames[1])["proof"]

    reflected = stage.raw()
    reflected.send(ClientSide(JOB, "other", "control", SECRET).opening())
    stage.until(lambda: reflected.frames)
    reflected.send(encode(Proof(servers_proof)))
    assert refusal(stage, reflected) == ("token", "wrong token")


def test_one_that_drips_its_bytes_is_cut_off_in_time(
    hurried: None, stage: Stage, good: Agent
) -> None:
    raw = stage.raw()
    opening = ClientSide(JOB, "node", "control", SECRET).opening()

    def drip(at: int) -> None:
        if not raw.is_ended and at < len(opening):
            try:
                raw.send(opening[at : at + 1])
            except OSError:
                return  # It was cut off.
            stage.loop.call_later(0.2, drip, at + 1)

    drip(0)
    assert refusal(stage, raw)[0] == "slow handshake"


@pytest.mark.parametrize("goes_as_far_as", ["nothing", "the length", "the opening"])
def test_one_that_stops_in_the_middle_of_its_handshake_is_cut_off_in_time(
    hurried: None, stage: Stage, good: Agent, goes_as_far_as: str
) -> None:
    raw = stage.raw()
    opening = ClientSide(JOB, "node", "control", SECRET).opening()
    raw.send({"nothing": b"", "the length": opening[:4], "the opening": opening}[goes_as_far_as])
    assert refusal(stage, raw)[0] == "slow handshake"
    assert stage.server.rejected == {"slow handshake": 1}


def test_those_who_are_through_are_not_cut_off(hurried: None, stage: Stage) -> None:
    stage.serve()
    agent = stage.connect("node")
    stranger = stage.raw()
    stage.until(lambda: stranger.is_ended)
    stage.assert_undisturbed(agent)


def test_one_that_closes_only_its_half_is_closed(stage: Stage, good: Agent) -> None:
    raw = admitted(stage, "node")
    raw.socket.shutdown(socket.SHUT_WR)
    stage.until(lambda: raw.is_ended)
    assert stage.coordinator.lost == [("node", sentences.CLOSED)]


def test_one_that_resets_at_any_point_is_forgotten(stage: Stage, good: Agent) -> None:
    for part in (b"", b"\0\0", ClientSide(JOB, "node", "control", SECRET).opening()):
        raw = stage.raw()
        raw.send(part)
        raw.read_no_more()
        reset(raw.socket)
    raw = admitted(stage, "node")
    raw.read_no_more()
    reset(raw.socket)
    stage.until(lambda: stage.coordinator.lost)
    assert stage.coordinator.lost == [("node", sentences.RESET)]
    stage.until(lambda: len(stage.server._connections) == 2)


def test_one_that_never_reads_is_dropped_when_too_much_waits_for_it(
    stage: Stage, good: Agent
) -> None:
    raw = admitted(stage, "node")
    raw.read_no_more()
    sent = 0
    while "node" in stage.server.nodes:
        stage.server.send("node", TENURE, StopRound(1, "x" * 200_000))
        assert stage.coordinator.lost == [], "it must not call back from within"
        sent += 200_000
        assert sent < 100 * connections.OUTPUT_LIMIT, "it is never dropped"
        stage.assert_undisturbed(good)
    assert stage.coordinator.lost == [("node", sentences.NOT_READING)]
    assert stage.server.rejected == {"slow reader": 1}


def test_one_that_reads_late_gets_everything_in_order(stage: Stage, good: Agent) -> None:
    raw = admitted(stage, "late")
    raw.read_no_more()
    words = [encode_order(TENURE, StopRound(number, "x" * 100_000)) for number in range(60)]
    for number in range(len(words)):
        stage.server.send("late", TENURE, StopRound(number, "x" * 100_000))
    stage.assert_undisturbed(good)
    raw.read_again()
    stage.until(lambda: len(raw.frames) == 2 + len(words))
    assert raw.frames[2:] == [word[4:] for word in words]


def test_without_a_free_descriptor_accepting_pauses_and_resumes(stage: Stage) -> None:
    stage.serve()
    agent = stage.connect("node")
    newcomer = stage.raw()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    lowest_free = os.dup(0)
    os.close(lowest_free)
    turns = 0

    def count() -> bool:
        nonlocal turns
        turns += 1
        return len(agent.messages) >= 3

    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest_free, hard))
    try:
        for number in range(3):
            delay = listener.PAUSE_S * (number + 1)
            stage.loop.call_later(delay, agent.client.send, Heartbeat(number))
        stage.until(count)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert turns < 50, "accepting did not pause"
    newcomer.send(ClientSide(JOB, "newcomer", "control", OPEN).opening())
    stage.until(lambda: newcomer.frames)
    stage.assert_undisturbed(agent)


def test_when_there_is_no_room_the_oldest_strangers_make_it(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.transport.server.PATIENCE_WHEN_FULL_S", 0.1)
    stage.serve()
    good = stage.connect("good")
    good.greet()
    stage.server._limit = 12
    strangers = [stage.raw() for _ in range(30)]
    newcomer = stage.connect("newcomer")
    stage.assert_undisturbed(newcomer)
    stage.assert_undisturbed(good)
    assert any(stranger.is_ended for stranger in strangers)
    assert stage.server.rejected["no room"] > 0
