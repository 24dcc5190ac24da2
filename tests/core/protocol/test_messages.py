"""What a node sends is checked when it is decoded: nobody can make the coordinator allocate."""

from __future__ import annotations

import msgspec
import pytest

from holdfast.core.protocol.messages import FromNode, NodeGreeted, RoundReport, Seen
from holdfast.core.protocol.model import NodeInfo, Term

decoder = msgspec.msgpack.Decoder(FromNode)


def greeting(slots: int = 1, size: int = 2, rank: int = 0, charges: int = 0) -> NodeGreeted:
    return NodeGreeted(
        NodeInfo("a-1", "a", slots),
        seen=Seen(Term(1, 1), 1, charges),
        report=RoundReport(1, rank, size, "running"),
    )


def test_a_plain_greeting_is_accepted() -> None:
    assert decoder.decode(msgspec.msgpack.encode(greeting())) == greeting()


@pytest.mark.parametrize(
    "message",
    [
        greeting(slots=0),
        greeting(slots=10**9),
        greeting(size=10**9),
        greeting(rank=-1),
        greeting(charges=10**9),
        greeting(charges=-1),
    ],
)
def test_numbers_that_nobody_means_are_refused(message: NodeGreeted) -> None:
    with pytest.raises(msgspec.ValidationError):
        decoder.decode(msgspec.msgpack.encode(message))
