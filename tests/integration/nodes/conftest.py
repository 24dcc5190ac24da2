"""Jobs over several hosts, which are namespaces of this machine."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ...conftest import passed_key
from .hosts import Network
from .nodes_job import NodesJob

COMMANDS = ("ip", "nsenter", "setpriv")
TUN = Path("/dev/net/tun")

MakeHosts = Callable[[int], Network]


@pytest.fixture
def make_network(request: pytest.FixtureRequest) -> Iterator[MakeHosts]:
    """Make a number of hosts; they and all that runs on them are gone after the test.

    A test that passed and left a process on a host fails.
    """
    missing = [name for name in COMMANDS if shutil.which(name) is None]
    if missing or not TUN.exists():
        pytest.skip(f"needs {', '.join(missing) or TUN}, which is not on this machine")
    networks: list[Network] = []

    def make(count: int) -> Network:
        networks.append(Network(count))
        return networks[-1]

    yield make
    left = [network.left() for network in networks]
    for network in networks:
        network.close()
    if any(left) and request.node.stash.get(passed_key, False):
        pytest.fail(f"left on the hosts: {left}", pytrace=False)


@pytest.fixture
def make_job(make_network: MakeHosts, tmp_path: Path, holdfast: Path) -> Callable[[int], NodesJob]:
    """Make hosts for a job, which a test then starts on them."""
    return lambda count: NodesJob(make_network(count).hosts, tmp_path, holdfast)
