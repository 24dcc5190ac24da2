"""What one peer, and all of them together, can cost a server in memory, time and descriptors."""

from __future__ import annotations

import struct
import time
from collections.abc import Iterator

import pytest

from holdfast.core.policy.config import Leases
from holdfast.core.protocol.messages import Heartbeat, NodeGreeted, NodeLeft, StopRound
from holdfast.core.protocol.model import NodeInfo
from holdfast.store.messages import Done, Get, Set, answers
from holdfast.transport import buffers, listener, peers, sentences
from holdfast.transport.auth import ConnectionSecurity
from holdfast.transport.frames import FRAME_LIMIT, FrameReader, ProtocolError, encode
from holdfast.transport.handshake import ClientSide, Kind, Proof
from holdfast.transport.server import TETHERS_OF_A_NODE

from .stage import DEADLINE_S, JOB, LOOPBACK, TENURE, Agent, Raw, Stage
from .test_hostile_clients import admitted, refusal

SECRET = ConnectionSecurity(b"a secret token")


@pytest.fixture
def good(stage: Stage) -> Iterator[Agent]:
    """An agent that was there before, and that must not be disturbed."""
    stage.serve(SECRET)
    agent = stage.connect("good", SECRET)
    agent.greet()
    yield agent
    stage.assert_undisturbed(agent)
    stage.assert_undisturbed(stage.connect("newcomer", SECRET))


def send_all(stage: Stage, raw: Raw, data: bytes) -> None:
    """Send as fast as the server reads, while it reads; it may hang up meanwhile."""
    view, at = memoryview(data), 0

    def go_on() -> bool:
        nonlocal at
        try:
            at += raw.socket.send(view[at:])
        except BlockingIOError:
            pass
        except OSError:
            return True
        return at == len(data) or raw.is_ended

    stage.loop.add_writer(raw.socket.fileno(), lambda: None)
    try:
        stage.until(go_on)
    finally:
        stage.loop.remove_writer(raw.socket.fileno())


def test_what_drips_in_is_collected_in_one_place() -> None:
    """A copy of all that is there for each byte that comes would cost the square of it."""
    reader = FrameReader(FRAME_LIMIT)
    frame = encode(NodeLeft("x" * 5000))
    reader.feed(frame[:1])
    reader.feed(frame[1:2])
    collected = reader._buffer
    for at in range(2, len(frame)):
        assert reader.take() is None
        reader.feed(frame[at : at + 1])
        assert reader._buffer is collected
    assert reader.take() == frame[4:]


def test_a_message_that_is_never_finished_is_refused_in_time(
    stage: Stage, good: Agent, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(buffers, "FRAME_TIMEOUT_S", 1.0)
    raw = admitted(stage, "node")
    raw.send(struct.pack("!I", FRAME_LIMIT) + bytes(100_000))

    def drip() -> None:
        if not raw.is_ended:
            try:
                raw.send(b"\0")
            except OSError:
                return
            stage.loop.call_later(0.05, drip)

    drip()
    assert refusal(stage, raw)[0] == "slow message"
    assert stage.server.rejected == {"slow message": 1}
    assert stage.server.buffers.unfinished_bytes == 0


def test_one_that_speaks_without_a_pause_is_never_late(
    stage: Stage, good: Agent, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each piece ends in the middle of a message, and each message is whole in good time."""
    monkeypatch.setattr(buffers, "FRAME_TIMEOUT_S", 1.0)
    until = time.monotonic() + DEADLINE_S
    while not speaks_without_a_pause(stage):
        assert time.monotonic() < until, "this process gets no time"


def speaks_without_a_pause(stage: Stage) -> bool:
    """Whether it did; one that had to pause, on a busy machine, may have been late."""
    raw = admitted(stage, "node")
    words = b"".join(encode(Heartbeat(number)) for number in range(100))
    heard = len(stage.coordinator.messages)
    at, spoke_at, longest_s = 0, time.monotonic(), 0.0

    def speak() -> None:
        nonlocal at, spoke_at, longest_s
        now = time.monotonic()
        longest_s, spoke_at = max(longest_s, now - spoke_at), now
        if at < len(words) and not raw.is_ended:
            piece = words[at : at + 17]
            raw.send(piece)
            at += len(piece)
            stage.loop.call_later(0.03, speak)

    speak()
    stage.until(lambda: raw.is_ended or len(stage.coordinator.messages) == heard + 100)
    longest_s = max(longest_s, time.monotonic() - spoke_at)
    raw.close()
    if longest_s > buffers.FRAME_TIMEOUT_S / 2:
        return False
    assert not raw.is_ended
    return True


def gets_through(stage: Stage) -> bool:
    """One attempt; while others take all the room, it may be refused as they are."""
    honest = let_in(stage, "honest", kind="store")
    send_all(stage, honest, encode(Set((("key", bytes(500_000)),))))
    stage.until(lambda: len(honest.frames) == 3 or honest.is_ended)
    try:
        return answers.decode(honest.frames[2]) == Done()
    except (IndexError, ProtocolError):
        return False


def test_unfinished_messages_of_many_take_a_bounded_room(
    stage: Stage, good: Agent, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(buffers, "UNFINISHED_BYTES", 4 << 20)
    monkeypatch.setattr(buffers, "FRAME_TIMEOUT_S", DEADLINE_S)
    monkeypatch.setattr(buffers, "PATIENCE_S", 0.1)
    raws = [admitted(stage, f"node{number}") for number in range(30)]
    most = 0
    for raw in raws:
        send_all(stage, raw, struct.pack("!I", FRAME_LIMIT) + bytes(FRAME_LIMIT - 1))
        stage.assert_undisturbed(good)
        most = max(most, stage.server.buffers.unfinished_bytes)
    assert most <= (4 << 20) + 30 * (1 << 16)
    # A message of one who means it, and comes again, gets through, large as it is.
    stage.spaces.open(1)
    until = time.monotonic() + DEADLINE_S
    while not gets_through(stage):
        assert time.monotonic() < until
    stage.until(lambda: sum(raw.is_ended for raw in raws) > 20)
    assert stage.server.rejected["slow message"] > 15


def test_what_many_do_not_read_takes_a_bounded_room(
    stage: Stage, good: Agent, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(buffers, "UNREAD_BYTES", 4 << 20)
    raws = [admitted(stage, f"node{number}") for number in range(20)]
    for raw in raws:
        raw.read_no_more()
    for _ in range(60):
        for number in range(20):
            stage.server.send(f"node{number}", TENURE, StopRound(1, "x" * 200_000))
        stage.assert_undisturbed(good)
        assert stage.server.buffers.unread_bytes <= (4 << 20) + FRAME_LIMIT
    assert stage.server.rejected["slow reader"] >= 10


# Connections that were let in, and what they may be there for.


def let_in(
    stage: Stage, node: str, security: ConnectionSecurity = SECRET, kind: Kind = "control"
) -> Raw:
    """One that goes through the handshake, and then says nothing."""
    raw = stage.raw()
    side = ClientSide(JOB, node, kind, security)
    raw.send(side.opening(1))
    stage.until(lambda: raw.frames)
    side.read_challenge(raw.frames[0])
    raw.send(side.prove())
    stage.until(lambda: len(raw.frames) == 2)
    side.read_welcome(raw.frames[1])
    return raw


def greeting(node: str) -> NodeGreeted:
    return NodeGreeted(NodeInfo(node, "host", 1))


@pytest.mark.parametrize("kind", ["control", "store"])
def test_one_that_is_let_in_and_says_nothing_is_dropped(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, kind: Kind
) -> None:
    monkeypatch.setattr(listener, "GREETING_TIMEOUT_S", 1.0)
    stage.spaces.open(1)
    stage.serve(SECRET)
    good = stage.connect("good", SECRET)
    good.greet()
    raw = let_in(stage, "mute", kind=kind)
    assert refusal(stage, raw) == ("mute", sentences.MUTE)
    assert stage.server.rejected == {"mute": 1}
    stage.assert_undisturbed(good)


def test_a_word_that_is_no_greeting_does_not_keep_a_connection(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listener, "GREETING_TIMEOUT_S", 1.0)
    stage.serve(SECRET)
    raw = let_in(stage, "node")
    raw.send(encode(Heartbeat(1)))
    stage.until(lambda: raw.is_ended)
    assert stage.server.rejected == {"mute": 1}


def test_those_who_say_nothing_make_room_for_one_who_does(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.transport.server.PATIENCE_WHEN_FULL_S", 0.1)
    stage.serve(SECRET)
    good = stage.connect("good", SECRET)
    good.greet()
    stage.server._limit = 40
    mute = [let_in(stage, f"mute{number}") for number in range(33)]
    more = [stage.raw() for _ in range(30)]
    newcomer = stage.connect_at_last("newcomer", SECRET)
    newcomer.greet()
    stage.assert_undisturbed(newcomer)
    stage.assert_undisturbed(good)
    assert any(raw.is_ended for raw in mute)
    assert more


def test_one_address_leaves_room_for_others(stage: Stage) -> None:
    stage.serve(SECRET)
    stage.server._limit = 16
    for number in range(14):
        let_in(stage, f"node{number}").send(encode(greeting(f"node{number}")))
    late = stage.agent("late", SECRET)
    late.client.dial((stage.endpoint,), DEADLINE_S)
    stage.until(lambda: late.lost)
    assert late.lost == [(f"{stage.endpoint}: 14 connections come from {LOOPBACK} already", False)]
    # From elsewhere there is room.
    raw = stage.raw(source="127.0.0.2")
    side = ClientSide(JOB, "elsewhere", "control", SECRET)
    raw.send(side.opening())
    stage.until(lambda: raw.frames)
    side.read_challenge(raw.frames[0])
    raw.send(side.prove())
    stage.until(lambda: "elsewhere" in stage.server.nodes)


def test_the_store_leaves_room_for_nodes(stage: Stage) -> None:
    stage.spaces.open(1)
    stage.serve(SECRET)
    stage.server._limit = 20
    for number in range(10):
        let_in(stage, f"worker{number}", kind="store").send(encode(Get(("never",))))
    raw = stage.raw()
    side = ClientSide(JOB, "worker", "store", SECRET)
    raw.send(side.opening(1))
    stage.until(lambda: raw.frames)
    side.read_challenge(raw.frames[0])
    raw.send(side.prove())
    assert refusal(stage, raw)[0] == "no room"
    stage.assert_undisturbed(stage.connect("node", SECRET))


def test_a_node_that_reconnects_for_ever_does_not_pile_up_tethers(stage: Stage) -> None:
    stage.serve(SECRET)
    kept = []
    for _ in range(TETHERS_OF_A_NODE):
        agent = stage.connect("node", SECRET)
        kept += [agent.tethers.pop()]
        agent.client.close()
    late = stage.agent("node", SECRET)
    late.client.dial((stage.endpoint,), DEADLINE_S)
    stage.until(lambda: stage.server.rejected["no room"])
    assert len(stage.coordinator.tethered) == TETHERS_OF_A_NODE
    stage.assert_undisturbed(stage.connect("other", SECRET))
    for tether in kept:
        tether.close()


# Wrong tokens.


def guess(stage: Stage) -> None:
    raw = stage.raw()
    raw.send(ClientSide(JOB, "guesser", "control", SECRET).opening())
    stage.until(lambda: raw.frames)
    raw.send(encode(Proof(bytes(32))))
    assert refusal(stage, raw) == ("token", "wrong token")
    raw.close()


def test_after_some_wrong_tokens_every_answer_to_that_address_waits(
    stage: Stage, good: Agent, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(peers.WRONG_TOKENS_FREE):
        guess(stage)
    monkeypatch.setattr(peers, "BRAKE_FIRST_S", 0.4)
    monkeypatch.setattr(peers, "BRAKE_MOST_S", 0.4)
    earlier: list[str] = []
    stage.loop.call_later(0.3, earlier.append, "a wrong one")
    guess(stage)
    assert earlier == ["a wrong one"]
    stage.loop.call_later(0.3, earlier.append, "a right one")
    newcomer = stage.connect("another", SECRET)
    assert earlier == ["a wrong one", "a right one"]
    stage.assert_undisturbed(newcomer)
    assert stage.server.rejected == {"token": peers.WRONG_TOKENS_FREE + 1}


def test_one_that_does_not_wait_for_its_answer_is_not_let_in(stage: Stage, good: Agent) -> None:
    for _ in range(peers.WRONG_TOKENS_FREE):
        guess(stage)
    impatient = stage.raw()
    side = ClientSide(JOB, "impatient", "control", SECRET)
    impatient.send(side.opening())
    stage.until(lambda: impatient.frames)
    side.read_challenge(impatient.frames[0])
    impatient.send(side.prove())
    impatient.close()
    stage.assert_undisturbed(stage.connect("patient", SECRET))
    assert "impatient" not in stage.server.nodes


def test_the_wait_grows_and_is_a_moment_at_most() -> None:
    brake, delays = peers.Brake(), []
    for _ in range(50):
        delays.append(brake.delay_s("192.0.2.1"))
        brake.wrong_token("192.0.2.1")
    free = peers.WRONG_TOKENS_FREE
    assert delays[: free + 1] == [0.0] * free + [peers.BRAKE_FIRST_S]
    assert delays == sorted(delays)
    assert delays[-1] == peers.BRAKE_MOST_S < Leases().reconnect_s
    assert brake.delay_s("192.0.2.2") == 0.0


def test_a_bounded_number_of_addresses_is_remembered() -> None:
    brake = peers.Brake()
    for number in range(3 * peers.ADDRESSES_MOST):
        brake.wrong_token(f"address {number}")
    assert len(brake._wrong) == peers.ADDRESSES_MOST


def test_an_address_that_erred_is_forgiven(monkeypatch: pytest.MonkeyPatch) -> None:
    brake = peers.Brake()
    for _ in range(10):
        brake.wrong_token("address")
    assert brake.delay_s("address")
    monkeypatch.setattr(peers, "FORGOTTEN_AFTER_S", 0.0)
    assert not brake.delay_s("address")
