"""A local etcd of one's own, for tests and for jobs of a single machine.

Its ports are held until it stops, so that nobody else gets them between two tries. The program is
`TORCHELASTIC_ETCD_BINARY_PATH`, or `bin/etcd` beside this file, or `etcd` on the path.
"""

from __future__ import annotations

import atexit
import logging
import os
import shutil
import socket
import tempfile
import time
from subprocess import Popen, TimeoutExpired
from typing import Any, TextIO

from holdfast.processes.host.reserved_ports import ReservedPort

__all__ = ["EtcdServer", "stop_etcd"]

log = logging.getLogger(__name__)

HOST = "localhost"
READ_TIMEOUT_S = 10
"""Of its clients: it is on this machine."""
LOOK_EVERY_S = 0.05


class EtcdServer:
    """One server with the v2 API, which releases of etcd from 3.6 on do not have."""

    def __init__(self, data_dir: str | None = None) -> None:
        beside = os.path.join(os.path.dirname(__file__), "bin", "etcd")
        given = os.environ.get("TORCHELASTIC_ETCD_BINARY_PATH", beside)
        self._program = given if os.path.isfile(given) else "etcd"
        self._data_dir = data_dir or tempfile.mkdtemp(prefix="holdfast-etcd-")
        self._process: Popen[bytes] | None = None
        self._ports: list[ReservedPort] = []
        self._port = -1

    def get_port(self) -> int:
        """-1 until it was started."""
        return self._port

    def get_host(self) -> str:
        return HOST

    def get_endpoint(self) -> str:
        return f"{HOST}:{self._port}"

    def get_client(self) -> Any:
        """A `Client` of the package python-etcd, for a backend, a store, or to ask it oneself."""
        try:
            from etcd import Client
        except ModuleNotFoundError:
            needs = "EtcdServer.get_client needs a package: pip install python-etcd"
            raise ModuleNotFoundError(needs, name="etcd") from None
        return Client(host=HOST, port=self._port, read_timeout=READ_TIMEOUT_S)

    def start(
        self, timeout: int = 60, num_retries: int = 3, stderr: int | TextIO | None = None
    ) -> None:
        """Start it and wait until it serves.

        Raises TimeoutError, RuntimeError if it ends before that, or OSError if there is no such
        program; after `num_retries` tries.
        """
        for left in reversed(range(num_retries)):
            try:
                self._start(os.path.join(self._data_dir, str(left)), timeout, stderr)
            except (OSError, RuntimeError) as error:
                log.warning("etcd could not be started: %s", error)
                self._end()
                if not left:
                    shutil.rmtree(self._data_dir, ignore_errors=True)
                    raise
            else:
                atexit.register(self.stop)
                return

    def stop(self) -> None:
        """Stop it, and remove its data."""
        atexit.unregister(self.stop)
        self._end()
        shutil.rmtree(self._data_dir, ignore_errors=True)

    def _start(self, folder: str, timeout_s: float, stderr: int | TextIO | None) -> None:
        os.makedirs(folder, exist_ok=True)
        self._ports = [ReservedPort(), ReservedPort()]
        self._port = self._ports[0].number
        clients, peers = (f"http://{HOST}:{port.number}" for port in self._ports)
        command = [self._program, "--enable-v2", "--data-dir", folder]
        command += ["--listen-client-urls", clients, "--advertise-client-urls", clients]
        command += ["--listen-peer-urls", peers]
        self._process = Popen(command, stderr=stderr)
        deadline = time.monotonic() + timeout_s
        while not self._serves():
            if time.monotonic() > deadline:
                raise TimeoutError(f"etcd did not answer within {timeout_s:g} s")
            try:
                status = self._process.wait(LOOK_EVERY_S)
            except TimeoutExpired:
                continue
            raise RuntimeError(f"etcd ended with {status}")

    def _serves(self) -> bool:
        request = b"GET /health HTTP/1.0\r\n\r\n"
        try:
            with socket.create_connection((HOST, self._port), timeout=1.0) as connection:
                connection.sendall(request)
                return b" 200 " in connection.recv(64)
        except OSError:
            return False

    def _end(self) -> None:
        stop_etcd(self._process)
        self._process = None
        for port in self._ports:
            port.release()
        self._ports = []


def stop_etcd(subprocess: Popen[bytes] | None, data_dir: str | None = None) -> None:
    """End a server, and remove its data if that is named."""
    if subprocess is not None and subprocess.poll() is None:
        subprocess.terminate()
        subprocess.wait()
    if data_dir:
        shutil.rmtree(data_dir, ignore_errors=True)
