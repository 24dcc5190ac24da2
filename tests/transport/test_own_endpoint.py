"""The endpoint's host is the machine that can bind it, and only one process on it."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from threading import Barrier, Thread

import pytest

from holdfast.core.protocol.errors import UsageError
from holdfast.core.protocol.model import Endpoint
from holdfast.transport import own_endpoint as hosting
from holdfast.transport import resolving
from holdfast.transport.addresses import interface_addresses, usable_addresses
from holdfast.transport.own_endpoint import try_to_host
from holdfast.transport.resolving import Address

from ..free_ports import free_port

ELSEWHERE = "203.0.113.7"
"""An address for documentation: no machine has it."""


@pytest.fixture
def sockets() -> Iterator[list[socket.socket]]:
    kept: list[socket.socket] = []
    yield kept
    for sock in kept:
        sock.close()


Host = Callable[..., socket.socket]


@pytest.fixture
def host(sockets: list[socket.socket]) -> Host:
    def attempt(address: str, port: int = 0, is_host: bool | None = None) -> socket.socket | None:
        sock = try_to_host(Endpoint(address, port), is_host)
        if sock is not None:
            sockets.append(sock)
        return sock

    return attempt  # type: ignore[return-value]


@pytest.mark.parametrize("address", ["127.0.0.1", "::1", "localhost", "LocalHost"])
def test_loopback_is_hosted_on_loopback_only(host: Host, address: str) -> None:
    sock = host(address)
    assert sock.getsockname()[0] in ("127.0.0.1", "::1")
    assert sock.getsockname()[1] > 0
    socket.create_connection(sock.getsockname()[:2]).close()


def test_an_address_of_this_machine_is_hosted_for_both_families(host: Host) -> None:
    found = [each for each in interface_addresses() if each.is_usable and not each.is_loopback]
    if not found:
        pytest.skip("this machine has no address but that of loopback")
    own = [each.address for each in found]
    for address in own:
        sock = host(address)
        port = sock.getsockname()[1]
        for reachable in (*own, "127.0.0.1"):
            socket.create_connection((reachable, port)).close()


def test_an_address_of_another_machine_is_not_hosted(host: Host) -> None:
    assert host(ELSEWHERE, 29411) is None
    assert host("2001:db8::7", 29411) is None


def test_of_a_name_s_addresses_those_of_other_machines_are_known() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        if probe.connect_ex((ELSEWHERE, 9)) != 0:
            pytest.skip("this machine has no way to other machines")
    endpoint = Endpoint("node0", 29411)
    both = [Address(socket.AF_INET, (each, 29411), endpoint) for each in ("127.0.1.1", ELSEWHERE)]
    place = hosting.location_of(both)
    assert place.is_here
    assert [address.sockaddr[0] for address in place.elsewhere] == [ELSEWHERE]


def test_a_name_that_means_nothing_here_is_not_hosted(host: Host) -> None:
    assert host("no-such-host.invalid", 29411) is None


def test_a_name_for_loopback_that_is_not_localhost_is_hosted_for_all(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on systems where a machine's own name is 127.0.1.1 in its own file of hosts."""

    def own_name(endpoint: Endpoint, flags: int = 0) -> list[Address]:
        if flags & socket.AI_NUMERICHOST:
            raise OSError
        return [Address(socket.AF_INET, ("127.0.1.1", endpoint.port), endpoint)]

    monkeypatch.setattr(resolving, "addresses_of", own_name)
    monkeypatch.setattr(hosting, "addresses_of", own_name)
    sock = host("node0")
    assert sock.getsockname()[0] in ("::", "0.0.0.0")


def test_a_port_that_somebody_listens_on_is_not_hosted_again(host: Host) -> None:
    for address in ("localhost", socket.gethostname()):
        first = host(address, 0, True)
        assert host(address, first.getsockname()[1]) is None


def test_of_many_that_try_at_once_exactly_one_hosts(sockets: list[socket.socket]) -> None:
    for _ in range(20):
        endpoint = Endpoint("127.0.0.1", free_port())
        barrier = Barrier(6)
        won: list[socket.socket] = []

        def compete(barrier: Barrier, endpoint: Endpoint, won: list[socket.socket]) -> None:
            barrier.wait()
            sock = try_to_host(endpoint, None)
            if sock is not None:
                won.append(sock)

        threads = [Thread(target=compete, args=(barrier, endpoint, won)) for _ in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        sockets += won
        assert len(won) == 1


def test_the_users_word_goes_before_the_looking(host: Host) -> None:
    assert host("127.0.0.1", 0, False) is None
    sock = host(ELSEWHERE, 0, True)
    assert sock.getsockname()[0] in ("::", "0.0.0.0")


def test_a_demand_that_cannot_be_met_is_a_usage_error(host: Host) -> None:
    port = host("127.0.0.1").getsockname()[1]
    with pytest.raises(UsageError, match=f"cannot listen on 127.0.0.1:{port}"):
        try_to_host(Endpoint("127.0.0.1", port), True)


def test_the_port_can_be_had_again_at_once_after_connections_were_on_it(host: Host) -> None:
    port = free_port()
    listening = host("127.0.0.1", port)
    listening.setblocking(True)
    with socket.create_connection(("127.0.0.1", port)):
        accepted, _ = listening.accept()
        accepted.close()  # This side closes first, so the port lingers here.
    listening.close()
    assert host("127.0.0.1", port) is not None


# --- addresses ------------------------------------------------------------------------------


def test_every_address_that_is_listed_is_one_of_this_machine() -> None:
    listed = usable_addresses()
    assert listed
    for address in listed:
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        with socket.socket(family) as sock:
            sock.bind((address, 0))


def test_what_the_kernel_would_use_to_reach_others_is_listed() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        try:
            sock.connect((ELSEWHERE, 9))  # Sends nothing.
        except OSError:
            pytest.skip("this machine has no way to other machines")
        assert sock.getsockname()[0] in usable_addresses()


def test_loopback_is_listed_only_if_there_is_nothing_else() -> None:
    others = [found for found in interface_addresses() if found.is_usable and not found.is_loopback]
    loopback = {"127.0.0.1", "::1"} & set(usable_addresses())
    assert bool(loopback) == (not others)


def test_link_local_addresses_are_left_out() -> None:
    assert not [address for address in usable_addresses() if address.startswith("fe80")]
