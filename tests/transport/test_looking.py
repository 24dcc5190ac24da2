"""Two hosts of one endpoint: the one that is not sure of its place finds the other."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from holdfast.core.protocol.model import Endpoint
from holdfast.transport.auth import OPEN, ConnectionSecurity
from holdfast.transport.dialling import Identity
from holdfast.transport.handshake import NONCE_BYTES
from holdfast.transport.looking import Looking
from holdfast.transport.resolving import Address, numeric
from holdfast.transport.server import Server

from ..free_ports import free_port
from .stage import JOB, LOOPBACK, Stage

Look = Callable[..., list[Address]]


@pytest.fixture
def look(stage: Stage) -> Iterator[Look]:
    """Look at an endpoint as a host with this nonce; what is found comes into the list."""
    started: list[Looking] = []

    def begin(
        place: Endpoint, nonce: bytes, job: str = JOB, security: ConnectionSecurity = OPEN
    ) -> list:
        found: list[Address] = []
        identity = Identity(job, "a", security)
        started.append(Looking(stage.loop, identity, numeric(place), nonce, found.append))
        return found

    yield begin
    for looking in started:
        looking.close()


def unsure(stage: Stage) -> Server:
    server = stage.serve()
    server.give_way_to_the_sure()
    return server


def test_one_that_is_not_sure_finds_one_that_is_and_admits_itself_nowhere(stage, look) -> None:
    here, other = unsure(stage), stage.serve()
    found = look(other.addresses[0], here.nonce)
    stage.until(lambda: found)
    assert [str(address) for address in found] == [str(other.addresses[0])]
    assert not other.nodes


def test_of_two_that_are_not_sure_exactly_one_finds_the_other(stage, look) -> None:
    for _ in range(4):
        one, two = unsure(stage), unsure(stage)
        by_one = look(two.addresses[0], one.nonce)
        by_two = look(one.addresses[0], two.nonce)
        stage.until(lambda found=(by_one, by_two): any(found))
        assert bool(by_one) == (two.nonce < one.nonce)
        assert bool(by_two) == (one.nonce < two.nonce)


def test_one_that_comes_later_is_found(stage, look) -> None:
    here, other = unsure(stage), stage.serve()
    place = Endpoint(LOOPBACK, free_port())
    found = look(place, here.nonce)
    stage.connect()  # The loop has gone round since: nobody was there at the first look.
    other.listen((place.address, place.port))
    stage.until(lambda: found)


@pytest.mark.parametrize(
    ("job", "security"), [("another", OPEN), (JOB, ConnectionSecurity(b"a token that it has not"))]
)
def test_a_stranger_is_nobody(stage, look, job: str, security: ConnectionSecurity) -> None:
    other = stage.serve()
    found = look(other.addresses[0], b"\xff" * NONCE_BYTES, job, security)
    stage.until(lambda: sum(other.rejected.values()))
    stage.connect()
    assert not found
