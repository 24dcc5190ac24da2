"""The hosts that the other tests stand on: apart, connected, cut off, and gone at the end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from .conftest import MakeHosts
from .hosts import Host, Streams

pytestmark = pytest.mark.root

SOON_S = 0.3
"""How long nothing is waited for."""
PIPE = Streams(stdin=subprocess.PIPE, stdout=subprocess.PIPE)
# Answers each byte with itself, on every address of the host.
ECHO = """
import socket
server = socket.create_server(("::", 7000), family=socket.AF_INET6, dualstack_ipv6=True)
print("listening", flush=True)
while True:
    connection, _ = server.accept()
    while data := connection.recv(100):
        connection.sendall(data)
"""
# Sends a byte for each line that it reads, and says what came of it within the line's time.
CALL = """
import socket, sys
connection = socket.create_connection((sys.argv[1], 7000), timeout=40)
for line in sys.stdin:
    connection.settimeout(float(line))
    try:
        connection.sendall(b"x")
        print("answer" if connection.recv(1) else "closed", flush=True)
    except TimeoutError:
        print("silence", flush=True)
    except OSError as error:
        print(error, flush=True)
"""


class Caller:
    """A connection from one host to the echo on another."""

    def __init__(self, host: Host, address: str) -> None:
        self.process = host.run([sys.executable, "-c", CALL, address], streams=PIPE)
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.words, self.answers = self.process.stdin, self.process.stdout

    def call(self, patience_s: float = 40) -> str:
        self.words.write(b"%f\n" % patience_s)
        self.words.flush()
        return self.answers.readline().decode().strip()

    def close(self) -> None:
        self.words.close()
        self.answers.close()
        self.process.wait()


@pytest.fixture
def two_hosts(make_network: MakeHosts) -> Iterator[list[Host]]:
    """Two hosts, the second of which answers."""
    hosts = make_network(2).hosts
    with hosts[1].run([sys.executable, "-c", ECHO], streams=PIPE) as echo:
        assert echo.stdout is not None
        assert echo.stdout.readline() == b"listening\n"
        yield hosts
        echo.kill()


@pytest.fixture
def caller(two_hosts: list[Host]) -> Iterator[Caller]:
    """A connection between the two."""
    made = Caller(two_hosts[0], two_hosts[1].address)
    yield made
    made.close()


def test_every_host_has_its_own_name_network_and_processes(make_network: MakeHosts) -> None:
    one, two = make_network(2).hosts
    with one.run(["sh", "-c", "hostname; ip -br address"], streams=PIPE) as process:
        shown = process.communicate()[0].decode()
    assert shown.startswith("host1\n")
    assert one.address in shown
    assert two.address not in shown
    sleepers = [host.run(["sleep", "1000"]) for host in (one, two)]
    assert [host.processes() for host in (one, two)] == [[s.pid] for s in sleepers]
    assert os.uname().nodename != "host1"
    for host, sleeper in zip((one, two), sleepers, strict=True):
        host.destroy()
        assert sleeper.wait() == -signal.SIGKILL
        assert host.processes() == []


def test_hosts_reach_each_other_over_both_families(two_hosts: list[Host]) -> None:
    for address in (two_hosts[1].address, two_hosts[1].address6):
        caller = Caller(two_hosts[0], address)
        assert caller.call() == "answer"
        caller.close()


@pytest.mark.parametrize("which", [0, 1])
def test_a_cut_is_silence_and_a_connection_outlives_it(
    two_hosts: list[Host], caller: Caller, which: int
) -> None:
    assert caller.call() == "answer"
    two_hosts[which].cut()
    assert caller.call(SOON_S) == "silence"
    two_hosts[which].heal()
    answers = iter(lambda: caller.call(SOON_S), "answer")
    assert set(answers) <= {"silence"}


def test_hosts_that_are_parted_together_reach_each_other_and_no_others(
    two_hosts: list[Host], caller: Caller
) -> None:
    network = two_hosts[0].network
    network.part(*two_hosts)
    assert caller.call() == "answer"
    two_hosts[0].heal()
    assert caller.call(SOON_S) == "silence"


@pytest.mark.parametrize(("delay_s", "loss"), [(20.0, 0.0), (0.0, 1.0)])
def test_a_shaped_link_delays_and_loses(
    two_hosts: list[Host], caller: Caller, delay_s: float, loss: float
) -> None:
    assert caller.call() == "answer"
    two_hosts[1].shape(delay_s, loss)
    assert caller.call(SOON_S) == "silence"


def test_what_is_lost_on_a_slow_and_lossy_link_is_sent_again(
    two_hosts: list[Host], caller: Caller
) -> None:
    two_hosts[0].shape(delay_s=0.01, loss=0.1)
    assert [caller.call() for _ in range(30)] == ["answer"] * 30


def test_a_second_network_with_the_same_addresses_is_another_one(make_network: MakeHosts) -> None:
    first, second = make_network(1).hosts[0], make_network(1).hosts[0]
    assert first.address == second.address
    sleeper = first.run(["sleep", "1000"])
    assert second.processes() == []
    first.destroy()
    sleeper.wait()
