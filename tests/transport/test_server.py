"""Who is connected, what they say, and how their connections end."""

from __future__ import annotations

import select
import socket

import pytest

from holdfast.core.protocol.bounds import TEXT_MOST
from holdfast.core.protocol.messages import (
    CloseJob,
    Heartbeat,
    NodeLeft,
    StopRound,
    WorkersFailed,
    WorkersProgressed,
)
from holdfast.core.protocol.model import ErrorDetail, ExitStatus, Failure, Outcome, Term
from holdfast.transport import sentences
from holdfast.transport.auth import ConnectionSecurity
from holdfast.transport.frames import FRAME_LIMIT, MessageTooLarge, encode
from holdfast.transport.handshake import ClientSide, tether_opening

from .stage import DEADLINE_S, JOB, TENURE, Raw, Stage, reset

SECRET = ConnectionSecurity(b"a secret token")


@pytest.mark.parametrize("security", [ConnectionSecurity(), SECRET], ids=["open", "token"])
@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_messages_go_both_ways(stage: Stage, security: ConnectionSecurity, host: str) -> None:
    stage.serve(security, host)
    agent = stage.connect("node", security)
    assert agent.connected == [host]
    assert "node" in stage.server.nodes

    agent.client.send(WorkersProgressed(1, 10))
    agent.client.send(WorkersProgressed(1, 20))
    stage.until(lambda: len(stage.coordinator.messages) == 2)
    assert stage.coordinator.messages == [
        ("node", WorkersProgressed(1, 10)),
        ("node", WorkersProgressed(1, 20)),
    ]
    assert stage.server.send("node", Term(4, 5), StopRound(1, "why"))
    stage.until(lambda: agent.messages)
    assert agent.messages == [(4, 5, StopRound(1, "why"))]


def test_a_large_message_arrives_whole(stage: Stage) -> None:
    stage.serve()
    agent = stage.connect()
    detail = ErrorDetail("m" * TEXT_MOST, "t" * TEXT_MOST)
    failure = Failure(
        "node", "host", 0, 0, "r", 1, ExitStatus(code=1), 1.0, detail, "e" * TEXT_MOST
    )
    told = WorkersFailed(1, (failure, failure))
    order = CloseJob(Outcome("failed", "", 1, failure, (failure,)))
    agent.client.send(told)
    stage.until(lambda: stage.coordinator.messages)
    stage.server.send("node", TENURE, order)
    stage.until(lambda: agent.messages)
    assert stage.coordinator.messages == [("node", told)]
    assert agent.messages[0][2] == order


def test_a_message_that_is_too_large_is_the_senders_error_and_harms_nobody(stage: Stage) -> None:
    stage.serve()
    agent = stage.connect()
    with pytest.raises(MessageTooLarge):
        agent.client.send(NodeLeft("r" * FRAME_LIMIT))
    stage.assert_undisturbed(agent)
    with pytest.raises(MessageTooLarge):
        stage.server.send("node", TENURE, StopRound(1, "r" * FRAME_LIMIT))
    stage.assert_undisturbed(agent)


def test_a_node_is_told_nothing_on_a_connection_before_its_own_first_word(stage: Stage) -> None:
    stage.serve()
    older = stage.connect()
    stage.assert_undisturbed(older)
    assert stage.server.send("node", TENURE, StopRound(1, ""))
    stage.until(lambda: len(older.messages) == 2)
    newer = stage.connect()
    assert not stage.server.send("node", TENURE, StopRound(2, "decided before it was heard"))
    newer.client.send(WorkersProgressed(1, 1))
    stage.until(lambda: len(stage.coordinator.messages) == 2)
    assert stage.server.send("node", TENURE, StopRound(3, ""))
    stage.until(lambda: newer.messages)
    assert newer.messages[0][2] == StopRound(3, "")


def test_nobody_is_told_about_a_node_that_is_not_connected(stage: Stage) -> None:
    stage.serve()
    assert not stage.server.send("nobody", TENURE, StopRound(1, ""))


def test_the_end_of_a_control_connection_is_told_once_after_all_that_was_said(stage: Stage) -> None:
    stage.serve()
    agent = stage.connect()
    for number in range(100):
        agent.client.send(WorkersProgressed(1, number))
    agent.client.close()
    stage.until(lambda: stage.coordinator.lost)
    said = [("node", WorkersProgressed(1, number)) for number in range(100)]
    assert stage.coordinator.messages == said
    assert stage.coordinator.lost == [("node", sentences.CLOSED)]
    assert "node" not in stage.server.nodes
    assert stage.coordinator.tethers_ended == []


def test_what_a_node_said_before_it_was_gone_is_heard_even_if_sending_to_it_failed(
    stage: Stage,
) -> None:
    stage.serve()
    agent = stage.connect()
    agent.client.send(NodeLeft("the last word"))
    # The close resets the connection, for what the server said is not read.
    stage.server.send("node", TENURE, StopRound(1, ""))
    agent.client.close()
    for _ in range(3):
        stage.server.send("node", TENURE, StopRound(1, ""))
    assert stage.coordinator.lost == []
    stage.until(lambda: stage.coordinator.lost)
    assert stage.coordinator.messages == [("node", NodeLeft("the last word"))]


def test_a_newer_connection_of_a_node_replaces_the_older_silently(stage: Stage) -> None:
    stage.serve()
    older = stage.connect("node")
    newer = stage.connect("node")
    stage.until(lambda: older.lost)
    newer.client.send(WorkersProgressed(1, 1))
    stage.until(lambda: stage.coordinator.messages)
    stage.server.send("node", TENURE, StopRound(2, ""))
    stage.until(lambda: newer.messages)
    assert stage.coordinator.lost == []
    assert older.messages == []

    newer.client.close()
    stage.until(lambda: stage.coordinator.lost)
    assert len(stage.coordinator.lost) == 1


def test_a_dropped_node_loses_everything_and_nothing_is_told(stage: Stage) -> None:
    stage.serve()
    agent, other = stage.connect("node"), stage.connect("other")
    stage.server.drop("node")
    stage.until(lambda: agent.lost)
    assert agent.lost == [(sentences.CLOSED, False)]
    select.select([agent.tethers[0]], [], [], DEADLINE_S)
    with pytest.raises(ConnectionResetError):  # An orderly end would say that we are dead.
        agent.tethers[0].recv(1)
    stage.assert_undisturbed(other)
    assert stage.coordinator.lost == []
    assert stage.coordinator.tethers_ended == []


def test_after_close_everybody_is_gone_and_nothing_is_told(stage: Stage) -> None:
    stage.serve()
    agents = [stage.connect(f"node{number}") for number in range(3)]
    stage.server.close()
    stage.until(lambda: all(agent.lost for agent in agents))
    assert stage.coordinator.lost == []
    assert stage.coordinator.tethers_ended == []


# --- tethers --------------------------------------------------------------------------------


def test_a_tether_that_is_closed_in_order_ended_clean(stage: Stage) -> None:
    stage.serve(SECRET)
    agent = stage.connect("node", SECRET)
    agent.tethers[0].close()
    stage.until(lambda: stage.coordinator.tethers_ended)
    assert stage.coordinator.tethers_ended == [("node", True)]
    assert stage.coordinator.lost == []


def test_a_tether_lasts_until_the_last_holder_of_its_descriptor_is_gone(stage: Stage) -> None:
    stage.serve()
    agent = stage.connect()
    held_elsewhere = agent.tethers[0].dup()
    agent.tethers[0].close()
    agent.client.close()
    stage.until(lambda: stage.coordinator.lost)
    assert stage.coordinator.tethers_ended == []
    held_elsewhere.close()
    stage.until(lambda: stage.coordinator.tethers_ended)
    assert stage.coordinator.tethers_ended == [("node", True)]


def test_a_tether_that_is_reset_did_not_end_clean(stage: Stage) -> None:
    stage.serve()
    agent = stage.connect()
    reset(agent.tethers[0])
    stage.until(lambda: stage.coordinator.tethers_ended)
    assert stage.coordinator.tethers_ended == [("node", False)]


def test_a_tether_that_speaks_did_not_end_clean(stage: Stage) -> None:
    stage.serve()
    agent = stage.connect()
    agent.tethers[0].sendall(encode(Heartbeat(1)))
    stage.until(lambda: stage.coordinator.tethers_ended)
    assert stage.coordinator.tethers_ended == [("node", False)]
    assert stage.server.rejected["garbage"] == 1


def test_a_tether_that_is_closed_in_the_middle_of_a_word_did_not_end_clean(stage: Stage) -> None:
    stage.serve()
    agent = stage.connect()
    agent.tethers[0].sendall(b"\0")
    agent.tethers[0].close()
    stage.until(lambda: stage.coordinator.tethers_ended)
    assert stage.coordinator.tethers_ended == [("node", False)]


def test_a_silent_tether_stays(stage: Stage) -> None:
    stage.serve()
    agent = stage.connect()
    for _ in range(5):
        stage.assert_undisturbed(agent)


def test_nothing_is_ever_written_on_a_tether(stage: Stage) -> None:
    stage.serve(SECRET)
    agent = stage.connect("node", SECRET)
    stage.assert_undisturbed(agent)
    with pytest.raises(BlockingIOError):
        agent.tethers[0].recv(1)


def test_tethers_of_one_node_end_together_and_clean_only_if_all_do(stage: Stage) -> None:
    stage.serve()
    first = stage.connect("node")
    second = stage.connect("node")
    reset(first.tethers[0])
    stage.assert_undisturbed(second)
    second.tethers[0].close()
    stage.until(lambda: stage.coordinator.tethers_ended)
    assert stage.coordinator.tethers_ended == [("node", False)]

    third = stage.connect("node")
    third.tethers[0].close()
    stage.until(lambda: len(stage.coordinator.tethers_ended) == 2)
    assert stage.coordinator.tethers_ended[1] == ("node", True)


def ticket_of(stage: Stage, node: str) -> tuple[Raw, bytes]:
    """A ticket that was given out and not used: of a node that never made its tether."""
    raw = stage.raw()
    side = ClientSide(JOB, node, "control", ConnectionSecurity(), node.encode())
    raw.send(side.opening())
    stage.until(lambda: len(raw.frames) == 1)
    side.read_challenge(raw.frames[0])
    raw.send(side.prove())
    stage.until(lambda: len(raw.frames) == 2)
    side.read_welcome(raw.frames[1])
    return raw, side.ticket


@pytest.mark.parametrize(
    "case", ["forged", "of another node", "used", "dropped", "of one that is lost", "replaced"]
)
def test_a_tether_needs_a_ticket_that_holds_and_is_told_nothing(stage: Stage, case: str) -> None:
    stage.serve()
    good = stage.connect("good")
    (raw, ticket), node = ticket_of(stage, "node"), "node"
    expected = ["good"]
    if case == "forged":
        ticket = bytes(len(ticket))
    elif case == "of another node":
        node = "good"
    elif case == "dropped":
        stage.server.drop("node")
    elif case == "of one that is lost":
        raw.close()
        stage.until(lambda: stage.coordinator.lost)
    elif case == "replaced":
        ticket_of(stage, "node")
    elif case == "used":
        stage.raw().send(tether_opening(JOB, node, ticket))
        stage.until(lambda: "node" in stage.coordinator.tethered)
        expected.append("node")
    raw = stage.raw()
    raw.send(tether_opening(JOB, node, ticket))
    stage.until(lambda: raw.is_ended)
    assert raw.frames == []
    assert stage.server.rejected == {"ticket": 1}
    assert stage.coordinator.tethered == expected
    stage.assert_undisturbed(good)


def test_a_server_may_listen_in_several_places(stage: Stage) -> None:
    stage.serve()
    with socket.socket() as extra:
        extra.bind(("127.0.0.1", 0))
        stage.server.listen(extra.dup())
    assert len(stage.server.addresses) == 2
    agents = []
    for number, endpoint in enumerate(stage.server.addresses):
        agents.append(stage.agent(f"node{number}"))
        agents[-1].client.dial((endpoint,), 20)
    stage.until(lambda: all(agent.connected for agent in agents))
    stage.until(lambda: stage.server.nodes == {"node0", "node1"})
