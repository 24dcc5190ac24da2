"""What is put into a node's words on their way to the coordinator."""

from __future__ import annotations

from holdfast.core.protocol.messages import Heartbeat, NodeGreeted, NodeJoined, RoundStopped
from holdfast.core.protocol.model import Endpoint, NodeInfo
from holdfast.engine.link import complete

INFO = NodeInfo("a", "host-a", slots=1)
UNKNOWN, KNOWN = Endpoint("", 29500), Endpoint("10.0.0.7", 29500)


def test_the_address_is_put_in_where_a_node_could_not_know_it() -> None:
    for message in (
        NodeGreeted(INFO, endpoint=UNKNOWN),
        NodeJoined(INFO, UNKNOWN),
        RoundStopped(1, (), UNKNOWN),
    ):
        found = complete(message, KNOWN.address)
        assert isinstance(found, type(message))
        assert found.endpoint == KNOWN


def test_an_address_that_the_user_gave_stays() -> None:
    joined = NodeJoined(INFO, Endpoint("192.0.2.1", 1))
    assert complete(joined, KNOWN.address) == joined


def test_what_has_no_endpoint_is_left_alone() -> None:
    for message in (Heartbeat(1), NodeGreeted(INFO)):
        assert complete(message, KNOWN.address) == message


def test_a_node_says_where_it_can_be_dialled_when_it_comes() -> None:
    for message in (NodeGreeted(INFO), NodeJoined(INFO, UNKNOWN)):
        found = complete(message, KNOWN.address, KNOWN)
        assert isinstance(found, NodeGreeted | NodeJoined)
        assert found.info.address == KNOWN
    stopped = complete(RoundStopped(1, (), UNKNOWN), KNOWN.address, KNOWN)
    assert stopped == RoundStopped(1, (), KNOWN)
