"""An endpoint with addresses of two machines: one of them hosts, and the other joins it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast.core.protocol.model import Endpoint
from holdfast.engine.sentences import LEADS, meant_elsewhere

from .hosts import Host
from .nodes_job import PATIENT_CONF, PORT, NodesJob

pytestmark = pytest.mark.root

BRIDGE = "172.30.0.1"
"""An address that every machine has, as those of bridges are."""
TWO = ("--nnodes=2", PATIENT_CONF, "--max-restarts=0")
# A machine's own file of names. The mount is this process's alone.
WITH_NAMES = """#!/bin/sh
exec unshare --mount sh -c 'mount --bind {names} /etc/hosts && exec {holdfast} "$@"' holdfast "$@"
"""


def on(host: Host, *command: str) -> None:
    subprocess.run([*host.entry, *command], check=True, capture_output=True)


@pytest.fixture
def make_named_job(make_network, tmp_path: Path, holdfast: Path) -> Callable[..., NodesJob]:
    """A job of two hosts that know the endpoint by a name with these addresses."""

    def make(*addresses: str) -> NodesJob:
        hosts = make_network(2).hosts
        names, command = tmp_path / "names", tmp_path / "holdfast"
        own = [f"{host.address} {host.name}" for host in hosts]
        lines = ["127.0.0.1 localhost", *own, *(f"{address} head" for address in addresses)]
        names.write_text("\n".join(lines) + "\n")
        command.write_text(WITH_NAMES.format(names=names, holdfast=holdfast))
        command.chmod(0o755)
        job = NodesJob(hosts, tmp_path, command)
        job.endpoint = f"head:{PORT}"
        return job

    return make


@pytest.mark.thorough(but=("the bridge's",))
@pytest.mark.parametrize("in_front", ["the bridge's", "the host's own"])
def test_the_machine_with_all_of_the_addresses_hosts(make_named_job, in_front: str) -> None:
    addresses = [BRIDGE, "10.77.0.1"]
    job = make_named_job(*addresses if in_front == "the bridge's" else addresses[::-1])
    for host in job.hosts:
        on(host, "ip", "address", "add", f"{BRIDGE}/32", "dev", "lo")
    other = job.start(job.hosts[1], *TWO)
    told = meant_elsewhere(Endpoint.parse(job.endpoint), ["10.77.0.1"])
    job.until(lambda: told in other.stderr, "the other one not to host")
    meant = job.start(job.hosts[0], *TWO)
    job.until_stepping(world=2)
    assert LEADS not in other.stderr
    job.finish(meant, other)


@pytest.mark.thorough
def test_of_two_that_have_one_address_each_the_one_hosts_that_is_told_to(make_named_job) -> None:
    job = make_named_job("10.77.0.1", "10.77.0.2")
    other = job.start(job.hosts[1], *TWO)
    meant = job.start(job.hosts[0], *TWO, "--rdzv-conf=is_host=true")
    job.until_stepping(world=2)
    job.finish(meant, other)


def test_who_can_bind_the_address_of_another_does_not_host(make_job) -> None:
    """As machines can that are to take an address over."""
    job = make_job(2)
    on(job.hosts[1], "sysctl", "-w", "net.ipv4.ip_nonlocal_bind=1")
    other = job.start(job.hosts[1], *TWO)
    job.until(lambda: "the coordinator" in other.stderr, "it to look for the coordinator")
    meant = job.start(job.hosts[0], *TWO)
    job.until_stepping(world=2)
    assert LEADS not in other.stderr
    job.finish(meant, other)


PLACES = """
import socket
from holdfast.transport import own_endpoint as hosting
from holdfast.transport.resolving import Address
from holdfast.core.protocol.model import Endpoint

def both(endpoint):
    families = {"::1": socket.AF_INET6, "127.0.0.1": socket.AF_INET, "fd99::9": socket.AF_INET6}
    return [Address(family, (number, 29400), endpoint) for number, family in families.items()]

print(hosting.location_of(both(Endpoint("localhost", 29400))))
"""


def test_without_ipv6_its_addresses_put_nothing_in_doubt(make_network) -> None:
    """Else nobody would host at such a machine's own name."""
    (host,) = make_network(1).hosts
    on(host, "sysctl", "-w", "net.ipv6.conf.all.disable_ipv6=1")
    done = subprocess.run(
        [*host.entry, sys.executable, "-c", PLACES], capture_output=True, text=True, check=True
    )
    assert done.stdout == "EndpointLocation(is_here=True, elsewhere=())\n"
