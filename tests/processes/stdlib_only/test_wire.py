"""Frames and descriptors on a private socket, between two ends in one process."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import pytest

from holdfast.processes.stdlib_only.private_messages import Message
from holdfast.processes.stdlib_only.wire import MAX_DESCRIPTORS, PrivateConnection

Ends = tuple[PrivateConnection, PrivateConnection]


class Parcel(Message):
    number: int = 0
    text: str = ""


Received = list[tuple[Parcel, list[int]]]


@pytest.fixture
def ends() -> Iterator[Ends]:
    one, other = (PrivateConnection(sock) for sock in socket.socketpair())
    yield one, other
    one.close()
    other.close()


def exchange(sender: PrivateConnection, receiver: PrivateConnection, count: int) -> Received:
    """Send what is queued, as far as there is room, until so many frames have arrived."""
    messages: Received = []
    while len(messages) < count:
        sender.flush()
        messages += cast(Received, receiver.receive())
    return messages


def test_frames_arrive_whole_and_in_order(ends: Ends) -> None:
    one, other = ends
    sent = [(number, "x" * (number % 7) * 1000) for number in range(300)]
    for number, text in sent:
        one.queue(Parcel(number=number, text=text))
    received = exchange(one, other, len(sent))
    assert [(message.number, message.text) for message, _ in received] == sent


def test_a_frame_larger_than_any_buffer_arrives(ends: Ends) -> None:
    one, other = ends
    one.queue(Parcel(text="y" * 5_000_000))
    assert not one.flush(), "it cannot have gone out at once"
    ((message, _),) = exchange(one, other, 1)
    assert message.text == "y" * 5_000_000
    assert one.flush()


def test_bytes_that_are_no_text_survive(ends: Ends) -> None:
    """Environments and arguments of Unix may hold any bytes."""
    one, other = ends
    word = os.fsdecode(b"caf\xe9 \xff\xfe")
    one.queue(Parcel(text=word))
    ((message, _),) = exchange(one, other, 1)
    assert os.fsencode(message.text) == b"caf\xe9 \xff\xfe"


def test_descriptors_come_with_their_own_frame(ends: Ends, tmp_path: Path) -> None:
    """Also when the frames are so long that reads and frames do not end together."""
    one, other = ends
    for number in range(40):
        descriptor = os.open(tmp_path / str(number), os.O_CREAT | os.O_RDWR)
        copies = [os.dup(descriptor) for _ in range(number % 3)]
        os.close(descriptor)
        padding = "z" * (number * 9973 % 300_000)
        one.queue(Parcel(number=number, text=padding), copies)
    for message, descriptors in exchange(one, other, 40):
        assert len(descriptors) == message.number % 3
        for descriptor in descriptors:
            path = os.readlink(f"/proc/self/fd/{descriptor}")
            assert path == str(tmp_path / str(message.number))
            assert not os.get_inheritable(descriptor)
            os.close(descriptor)


def test_as_many_descriptors_as_allowed_fit_into_a_frame(ends: Ends) -> None:
    one, other = ends
    one.queue(Parcel(), [os.open(os.devnull, os.O_RDONLY) for _ in range(MAX_DESCRIPTORS)])
    ((_, received),) = exchange(one, other, 1)
    assert len(received) == MAX_DESCRIPTORS
    for each in received:
        os.close(each)


def test_descriptors_are_closed_once_sent(ends: Ends) -> None:
    one, other = ends
    descriptor = os.open(os.devnull, os.O_RDONLY)
    one.queue(Parcel(), [descriptor])
    assert is_open(descriptor)
    assert one.flush()
    assert not is_open(descriptor)
    ((_, received),) = other.receive()
    for each in received:
        os.close(each)


def test_descriptors_that_were_never_sent_are_closed_with_the_connection() -> None:
    one, other = (PrivateConnection(sock) for sock in socket.socketpair())
    descriptor = os.open(os.devnull, os.O_RDONLY)
    one.queue(Parcel(text="w" * 5_000_000))
    one.queue(Parcel(), [descriptor])
    one.flush()
    one.close()
    other.close()
    assert not is_open(descriptor)


def test_descriptors_whose_frame_never_came_are_closed_with_the_connection() -> None:
    one, other = (PrivateConnection(sock) for sock in socket.socketpair())
    reading, writing = os.pipe()
    one.queue(Parcel(text="w" * 5_000_000), [writing])
    one.flush()  # The descriptor goes with the first byte, and the rest has no room.
    assert other.receive() == []
    one.close()
    other.close()
    assert os.read(reading, 1) == b"", "somebody still holds the other end"
    os.close(reading)


def test_the_end_of_the_other_side_is_told(ends: Ends) -> None:
    one, other = ends
    one.queue(Parcel(text="the last"))
    one.flush()
    one.socket.close()
    ((message, _),) = cast(Received, other.receive())
    assert message.text == "the last"
    with pytest.raises(EOFError):
        other.receive()


def test_sending_to_a_side_that_is_gone_raises_and_kills_nobody(ends: Ends) -> None:
    one, other = ends
    other.socket.close()
    one.queue(Parcel(text="anyone there?"))
    with pytest.raises(BrokenPipeError):
        one.flush()


def is_open(descriptor: int) -> bool:
    try:
        os.fstat(descriptor)
    except OSError:
        return False
    return True
