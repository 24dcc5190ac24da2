"""Reserved ports: nobody gets one by chance, and whoever is told its number can use it."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator

import pytest

from holdfast.processes.host import reserved_ports
from holdfast.processes.host.reserved_ports import ReservedPort, another_port

PROCESSES = 8
EACH = 25

RESERVE = """
import sys
from holdfast.processes.host.reserved_ports import ReservedPort
held = [ReservedPort() for _ in range(int(sys.argv[1]))]
print(*[port.number for port in held], flush=True)
sys.stdin.read()
"""


@pytest.fixture
def reserved() -> Iterator[ReservedPort]:
    port = ReservedPort()
    yield port
    port.release()


def test_reservations_of_several_processes_never_clash() -> None:
    command = [sys.executable, "-c", RESERVE, str(EACH)]
    holders = [
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        for _ in range(PROCESSES)
    ]
    pipes = [holder.stdout for holder in holders if holder.stdout is not None]
    numbers = [int(word) for pipe in pipes for word in pipe.readline().split()]
    for holder in holders:
        holder.communicate()
    assert len(numbers) == PROCESSES * EACH
    assert len(set(numbers)) == len(numbers)


def test_nobody_who_asks_for_any_port_gets_a_reserved_one() -> None:
    held = [ReservedPort() for _ in range(20)]
    others = []
    for number in range(1000):
        family = (socket.AF_INET, socket.AF_INET6)[number % 2]
        sock = socket.socket(family)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(("", 0))
        others.append(sock)
    taken = {sock.getsockname()[1] for sock in others}
    for sock in others:
        sock.close()
    numbers = {port.number for port in held}
    for port in held:
        port.release()
    assert len(numbers) == 20
    assert not numbers & taken


def test_nobody_connects_from_a_reserved_port() -> None:
    """An outgoing connection takes a port too, and would keep a server from binding it."""
    held = [ReservedPort() for _ in range(20)]
    with socket.create_server(("127.0.0.1", 0), backlog=512) as server:
        clients = [socket.create_connection(server.getsockname()) for _ in range(400)]
        taken = {client.getsockname()[1] for client in clients}
        for client in clients:
            client.close()
    for port in held:
        port.release()
    assert not {port.number for port in held} & taken


@pytest.mark.parametrize(
    ("family", "address"),
    [
        (socket.AF_INET, "127.0.0.1"),
        (socket.AF_INET, ""),
        (socket.AF_INET6, "::1"),
        (socket.AF_INET6, "::"),
    ],
)
def test_a_plain_server_can_listen_at_a_reserved_port(
    reserved: ReservedPort, family: socket.AddressFamily, address: str
) -> None:
    with socket.create_server((address, reserved.number), family=family) as server:
        target = "::1" if family == socket.AF_INET6 else "127.0.0.1"
        with socket.create_connection((target, reserved.number)) as client:
            connection, _ = server.accept()
            connection.sendall(b"hello")
            connection.close()
            assert client.recv(5) == b"hello"


def test_a_server_of_both_families_can_listen_at_a_reserved_port(reserved: ReservedPort) -> None:
    server = socket.create_server(
        ("", reserved.number), family=socket.AF_INET6, dualstack_ipv6=True
    )
    with server, socket.create_connection(("127.0.0.1", reserved.number)):
        pass


def test_nobody_answers_at_a_reserved_port_before_somebody_serves_it(
    reserved: ReservedPort,
) -> None:
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", reserved.number))


def test_a_second_server_is_refused_while_the_first_listens(reserved: ReservedPort) -> None:
    with (
        socket.create_server(("127.0.0.1", reserved.number)),
        pytest.raises(OSError, match="in use"),
    ):
        socket.create_server(("127.0.0.1", reserved.number))


def test_a_released_port_is_let_go_of() -> None:
    port = ReservedPort()
    port.release()
    with socket.socket() as sock:  # without SO_REUSEADDR, so that any holder would show
        sock.bind(("127.0.0.1", port.number))


def test_whoever_knocks_at_a_listening_port_is_heard_by_who_serves_it_later() -> None:
    port = ReservedPort("127.0.0.1")
    port.listen()
    with socket.create_connection(("127.0.0.1", port.number)) as client:
        client.sendall(b"early")
        server = socket.socket(fileno=port.duplicate())
        port.release()
        with server:
            connection, _ = server.accept()
            with connection:
                assert connection.recv(5) == b"early"


@pytest.mark.torch
@pytest.mark.timeout(300)
def test_pytorchs_store_can_listen_at_a_reserved_port(reserved: ReservedPort) -> None:
    """In a process of its own: importing PyTorch leaves threads in whoever does."""
    program = """
import sys
from torch.distributed import TCPStore
port = int(sys.argv[1])
server = TCPStore("127.0.0.1", port, None, True, wait_for_workers=False)
client = TCPStore("127.0.0.1", port, None, False)
client.set("key", "value")
assert server.get("key") == b"value"
assert server.port == port
"""
    command = [sys.executable, "-c", program, str(reserved.number)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=280, check=False)
    assert ended.returncode == 0, ended.stderr


def test_a_duplicate_is_not_passed_on_to_children(reserved: ReservedPort) -> None:
    descriptor = reserved.duplicate()
    assert not os.get_inheritable(descriptor)
    os.close(descriptor)


def test_another_port_is_not_the_one_before_even_if_the_kernel_offers_that_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before = ReservedPort()  # Still held, lest somebody else gets it meanwhile.
    bind, offers = reserved_ports._bound_to_any_port, [before.number]

    def offer(address: str | None) -> socket.socket:
        if not offers:
            return bind(address)
        sock = socket.socket(socket.AF_INET6)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(("::", offers.pop()))
        return sock

    monkeypatch.setattr(reserved_ports, "_bound_to_any_port", offer)
    after = another_port(before)
    assert offers == []
    assert after.number != before.number
    for port in (before, after):
        port.release()
