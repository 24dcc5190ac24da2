"""Each register with a real server, or a real disk, and what may be demanded of it.

The embedded register is not among them: `registers.job_record` is written by one host only, and has
no comparison. The contract is about stores that several machines write to.
"""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import TypeVar

from msgspec import structs

from holdfast.registers.register import (
    Closes,
    Register,
    RegisterSettings,
    Token,
    WaitsForChange,
)

from ..etcd_cluster import EtcdCluster, EtcdOptions
from ..free_ports import free_port
from .opening import open_for_test, python_command
from .proxy import Proxy

DEADLINE_S = 30.0
ENDPOINT_S = 5.0
"""A server of a busy machine is not silent yet."""
SLOW_ELECTIONS = ("--election-timeout=3000",)
"""Nor has it lost its leader."""
Found = TypeVar("Found")


class OpenRegister:
    """A register that a test uses: every write is answered (rule 2)."""

    def __init__(self, register: Register) -> None:
        self._register = register

    def get_state(self) -> tuple[bytes, Token] | None:
        return self._register.get_state()

    def set_state(self, state: bytes, token: Token | None = None) -> tuple[bytes, Token, bool]:
        answer = self._register.set_state(state, token)
        assert answer is not None
        return answer

    def wait_for_change(self, token: Token | None, timeout_s: float) -> tuple[bytes, Token] | None:
        assert isinstance(self._register, WaitsForChange)
        return self._register.wait_for_change(token, timeout_s)

    def close(self) -> None:
        if isinstance(self._register, Closes):
            self._register.close()


class Stage:
    """A place where documents of one kind of register can be kept."""

    rounds = 500
    """What each of two writers does in a tight loop."""
    rest_s = 0.0
    """What lies between two of them."""
    unknown_share = 0.0
    """How many of their writes may be of unknown outcome, although nothing goes wrong."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._opened: list[OpenRegister] = []

    def settings(self, run_id: str) -> RegisterSettings:
        raise NotImplementedError

    def open(self, run_id: str) -> OpenRegister:
        """A register of its own, as every agent has one."""
        return self.open_with(self.settings(run_id))

    def open_with(self, settings: RegisterSettings) -> OpenRegister:
        register = OpenRegister(open_for_test(settings))
        self._opened.append(register)
        return register

    def close_registers(self) -> None:
        while self._opened:
            self._opened.pop().close()

    def close(self) -> None:
        self.close_registers()


class ServedStage(Stage):
    """A register with a server, which can be cut off and restarted."""

    is_durable = True
    """Whether what was written is there after a restart of the server."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._proxy: Proxy | None = None

    @property
    def endpoint(self) -> str:
        raise NotImplementedError

    def restart(self) -> None:
        """Kill the servers, all at once, and start them again with what is on their disks."""
        raise NotImplementedError

    @property
    def proxy(self) -> Proxy:
        """Between the servers and whoever is opened `far` off."""
        if self._proxy is None:
            self._proxy = Proxy(self.endpoint)
        return self._proxy

    def open_far(self, run_id: str) -> OpenRegister:
        """A register that reaches its servers through the proxy only, and is impatient."""
        settings = structs.replace(
            self.settings(run_id),
            endpoint=self.proxy.endpoint,
            call_timeout_s=1.5,
            endpoint_timeout_s=0.4,
        )
        return self.open_with(settings)

    def close(self) -> None:
        super().close()
        if self._proxy is not None:
            self._proxy.close()


def _patient(settings: RegisterSettings) -> RegisterSettings:
    return structs.replace(settings, call_timeout_s=DEADLINE_S, endpoint_timeout_s=ENDPOINT_S)


class EtcdStage(ServedStage):
    """etcd, one server or three, by the API of version 3."""

    size, backend, options = 1, "etcd", EtcdOptions(arguments=SLOW_ELECTIONS)
    rounds = 300

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.cluster = EtcdCluster(folder, self.size, self.options).__enter__()

    @property
    def endpoint(self) -> str:
        return self.cluster.endpoints

    def settings(self, run_id: str) -> RegisterSettings:
        return _patient(RegisterSettings(self.backend, self.endpoint, run_id))

    def restart(self) -> None:
        for server in self.cluster.servers:
            server.kill()
        for server in self.cluster.servers:
            server.start()
        self.cluster.wait_healthy()

    def close(self) -> None:
        super().close()
        self.cluster.close()


class ThreeEtcdsStage(EtcdStage):
    size = 3
    rounds = 200


class EtcdV2Stage(EtcdStage):
    backend, options = "etcd-v2", EtcdOptions(enable_v2=True, arguments=SLOW_ELECTIONS)


class TcpStoreStage(ServedStage):
    """A TCPStore in a process of its own, which hosts it by its register."""

    is_durable = False
    rounds = 1000

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._endpoint = f"127.0.0.1:{free_port()}"
        self._host = self._start()

    @property
    def endpoint(self) -> str:
        return self._endpoint

    def settings(self, run_id: str) -> RegisterSettings:
        options = {"store_type": "tcp", "is_host": "false"}
        return _patient(RegisterSettings("c10d", self._endpoint, run_id, options))

    def _start(self) -> subprocess.Popen[str]:
        host = subprocess.Popen(
            python_command("contract.store_host", self._endpoint),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert host.stdout is not None
        assert host.stdout.readline() == "serving\n"
        return host

    def _end(self) -> None:
        self._host.kill()
        self._host.communicate()

    def restart(self) -> None:
        self._end()
        self._host = self._start()

    def close(self) -> None:
        super().close()
        self._end()


class SharedFileStage(Stage):
    """A writer that gets no time while the other makes so many versions does not know."""

    unknown_share = 0.01

    def settings(self, run_id: str) -> RegisterSettings:
        return RegisterSettings("file", str(self.folder), run_id)


class OwnStage(Stage):
    """The example of a user's own.

    SQLite is not fair: who waits for its lock, asleep, gets it only if others rest.
    """

    rounds = 300
    rest_s = 0.001

    def settings(self, run_id: str) -> RegisterSettings:
        path = str(self.folder / "registers.sqlite")
        return RegisterSettings("sqlite", path, run_id, call_timeout_s=DEADLINE_S)


SERVED: dict[str, type[ServedStage]] = {
    "etcd": EtcdStage,
    "three-etcds": ThreeEtcdsStage,
    "etcd-v2": EtcdV2Stage,
    "tcp-store": TcpStoreStage,
}
STAGES: dict[str, type[Stage]] = {
    **SERVED,
    "shared-file": SharedFileStage,
    "own": OwnStage,
}
