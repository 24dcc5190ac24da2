"""Frames come out as they went in, however they are cut; nothing else comes out."""

from __future__ import annotations

import contextlib
import struct

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.protocol.messages import Heartbeat, StopRound
from holdfast.core.protocol.model import Term
from holdfast.store.messages import answers, requests
from holdfast.transport.auth import OPEN
from holdfast.transport.frames import (
    FRAME_LIMIT,
    HANDSHAKE_LIMIT,
    FrameReader,
    MessageTooLarge,
    ProtocolError,
    encode,
    encode_order,
    from_node,
    orders,
)
from holdfast.transport.handshake import ServerSide, read_refusal


def framed(payload: bytes) -> bytes:
    return struct.pack("!I", len(payload)) + payload


def taken(reader: FrameReader) -> list[bytes]:
    return [bytes(payload) for payload in iter(reader.take, None)]


@given(
    payloads=st.lists(st.binary(max_size=300), max_size=12),
    cuts=st.lists(st.integers(1, 200), min_size=1),
)
def test_frames_come_out_whole_and_in_order_however_the_bytes_are_cut(
    payloads: list[bytes], cuts: list[int]
) -> None:
    stream = b"".join(map(framed, payloads))
    reader, found, at, turn = FrameReader(), [], 0, 0
    while at < len(stream):
        size = cuts[turn % len(cuts)]
        reader.feed(stream[at : at + size])
        found += taken(reader)
        at, turn = at + size, turn + 1
    assert found == payloads
    assert reader.is_between_frames


@given(payload=st.binary(min_size=1, max_size=100), data=st.data())
def test_a_frame_that_is_not_whole_is_not_given_out(payload: bytes, data: st.DataObject) -> None:
    whole = framed(payload)
    reader = FrameReader()
    reader.feed(whole[: data.draw(st.integers(1, len(whole) - 1))])
    assert taken(reader) == []
    assert not reader.is_between_frames


def test_a_frame_of_the_limit_passes_and_one_byte_more_is_refused() -> None:
    reader = FrameReader(limit=10)
    reader.feed(framed(b"x" * 10))
    assert taken(reader) == [b"x" * 10]
    reader.feed(struct.pack("!I", 11))
    with pytest.raises(ProtocolError, match="11 bytes is above the limit of 10") as refused:
        reader.take()
    assert refused.value.kind == "oversize"


def test_frames_before_one_that_is_too_long_are_given_out_first() -> None:
    reader = FrameReader(limit=10)
    reader.feed(framed(b"good") + struct.pack("!I", 1 << 31))
    assert reader.take() == b"good"
    with pytest.raises(ProtocolError):
        reader.take()


@given(st.integers(0, FRAME_LIMIT), st.lists(st.integers(1, 5000), min_size=1, max_size=30))
def test_never_more_than_a_frame_is_held(claimed: int, chunks: list[int]) -> None:
    reader = FrameReader(limit=HANDSHAKE_LIMIT)
    try:
        reader.feed(struct.pack("!I", claimed))
        taken(reader)
        for size in chunks:
            reader.feed(b"\0" * size)
            taken(reader)
            assert len(reader._buffer) - reader._at <= HANDSHAKE_LIMIT + 4
    except ProtocolError:
        assert claimed > HANDSHAKE_LIMIT


def test_messages_come_back_as_they_were() -> None:
    reader = FrameReader()
    reader.feed(encode(Heartbeat(5)) + encode_order(Term(2, 9), StopRound(4, "a reason")))
    first, second = taken(reader)
    assert from_node.decode(first) == Heartbeat(5)
    order = orders.decode(second)
    assert (order.instance, order.epoch, order.message) == (2, 9, StopRound(4, "a reason"))


def test_a_message_that_no_frame_can_hold_is_refused_where_it_is_made() -> None:
    with pytest.raises(MessageTooLarge, match="StopRound"):
        encode(StopRound(1, "x" * FRAME_LIMIT))


DECODERS = {
    "from_node": from_node.decode,
    "orders": orders.decode,
    "requests": requests.decode,
    "answers": answers.decode,
    "opening": ServerSide("job", OPEN, b"identity").read_opening,
    "refusal": read_refusal,
}
plain = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.text() | st.binary(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)


@pytest.mark.parametrize("name", DECODERS)
@given(payload=st.binary(max_size=200) | plain.map(msgspec.msgpack.encode))
def test_whatever_the_bytes_are_only_a_protocol_error_comes_of_them(
    name: str, payload: bytes
) -> None:
    with contextlib.suppress(ProtocolError):
        DECODERS[name](payload)


@pytest.mark.parametrize("name", DECODERS)
@given(data=st.data())
def test_a_good_message_with_changed_bytes_is_read_or_refused(
    name: str, data: st.DataObject
) -> None:
    good = data.draw(st.sampled_from([Heartbeat(5), StopRound(4, "reason"), (1, 2, Heartbeat(3))]))
    payload = bytearray(msgspec.msgpack.encode(good))
    for _ in range(data.draw(st.integers(1, 4))):
        payload[data.draw(st.integers(0, len(payload) - 1))] = data.draw(st.integers(0, 255))
    with contextlib.suppress(ProtocolError):
        DECODERS[name](bytes(payload))


@pytest.mark.parametrize("name", DECODERS)
@pytest.mark.parametrize(
    "payload", [b"\x91" * 100_000, b"\x81\xa1x" * 50_000, b"\xdd\xff\xff\xff\xff"]
)
def test_deep_nesting_and_lying_lengths_are_refused(name: str, payload: bytes) -> None:
    if name == "refusal":
        assert read_refusal(payload) is None
        return
    with pytest.raises(ProtocolError):
        DECODERS[name](payload)
