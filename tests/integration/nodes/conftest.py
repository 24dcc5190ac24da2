"""Jobs over several hosts, which are namespaces of this machine."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from ...conftest import passed_key
from ...etcd_cluster import EtcdCluster
from .etcd_hosts import SERVERS, EtcdJob, cluster_on
from .hosts import Network
from .nodes_job import PROGRAM, WITH_PYTORCH, NodesJob

COMMANDS = ("ip", "nsenter", "setpriv")
TUN = Path("/dev/net/tun")
JOB_HOSTS = 5

MakeHosts = Callable[[int], Network]
MakeJob = Callable[[int], NodesJob]
MakeEtcdJob = Callable[[int], EtcdJob]


def skip_without_hosts() -> None:
    missing = [name for name in COMMANDS if shutil.which(name) is None]
    if missing or not TUN.exists():
        pytest.skip(f"needs {', '.join(missing) or TUN}, which is not on this machine")


@pytest.fixture
def make_network(request: pytest.FixtureRequest) -> Iterator[MakeHosts]:
    """Make a number of hosts; they and all that runs on them are gone after the test.

    A test that passed and left a process on a host fails.
    """
    skip_without_hosts()
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
def program(request: pytest.FixtureRequest) -> Path:
    """What workers run: training with PyTorch where the test is marked so, else without."""
    return WITH_PYTORCH if request.node.get_closest_marker("torch") else PROGRAM


@pytest.fixture
def make_job(make_network: MakeHosts, tmp_path: Path, holdfast: Path, program: Path) -> MakeJob:
    """Make hosts for a job, which a test then starts on them."""
    return lambda count: NodesJob(make_network(count).hosts, tmp_path, holdfast, program)


class Ground(NamedTuple):
    """Hosts for jobs, and an etcd of three servers on others that no test may harm."""

    network: Network
    cluster: EtcdCluster


@pytest.fixture(scope="module")
def ground(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ground]:
    """For the tests of a module: each has the hosts to itself, and the servers with all."""
    skip_without_hosts()
    network = Network(JOB_HOSTS + SERVERS)
    try:
        with cluster_on(network.hosts[JOB_HOSTS:], tmp_path_factory.mktemp("etcd")) as cluster:
            yield Ground(network, cluster)
    finally:
        network.close()


@pytest.fixture
def make_etcd_job(
    ground: Ground,
    tmp_path: Path,
    holdfast: Path,
    program: Path,
    request: pytest.FixtureRequest,
) -> Iterator[MakeEtcdJob]:
    """Make a job on some hosts, which find each other through etcd."""
    jobs: list[EtcdJob] = []

    def make(count: int) -> EtcdJob:
        hosts = ground.network.hosts[:count]
        jobs.append(EtcdJob(hosts, tmp_path, holdfast, ground.cluster))
        jobs[-1].program = program
        return jobs[-1]

    yield make
    hosts = ground.network.hosts[:JOB_HOSTS]
    left = {host.name: pids for host in hosts if (pids := host.processes())}
    for host in ground.network.hosts:
        host.heal()
    for host in hosts:
        host.destroy()
    for process in ground.network.started:
        process.wait()
    ground.network.started.clear()
    for server in ground.cluster.servers:
        server.resume()
    ground.cluster.wait_healthy()
    if left and request.node.stash.get(passed_key, False):
        pytest.fail(f"left on the hosts: {left}", pytrace=False)
