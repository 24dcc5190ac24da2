"""A job of several agents on this machine, for the soak: real ones, restarted when killed.

Rules
1. All its files are in one folder, which is the caller's; temporary files of the agents too.
2. An agent that was killed (SIGKILL) is started again, as a scheduler would do. One that ends in
   another way has ended.
3. Agents do not get the terminal's Ctrl-C: this process gets it, and ends them. They get
   SIGTERM, their grace, and then SIGKILL. If this process is killed, they are.
4. Orphans below this process become its children, so that none escapes: processes that are still
   there when all agents have ended were left behind.
"""

from __future__ import annotations

import os
import secrets
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

from msgspec import Struct

from holdfast.processes.host.reserved_ports import ReservedPort
from holdfast.processes.output.run_folders import OUTPUT, RECORD
from holdfast.processes.stdlib_only import linux

GRACE_S = 3.0
END_S = 60.0
"""How long agents may take to end, once the program has."""
GONE_S = 10.0
"""How long an agent's processes may outlive it: a spawner reaps the rest."""


class SoakProgram(Struct, frozen=True):
    """The workers' program, and their number."""

    file: Path
    nodes: int = 3
    workers: int = 2
    options: tuple[str, ...] = ()


class SoakJob:
    """Agents of one job; `close` ends all of it, in whatever state it is."""

    def __init__(self, program: SoakProgram, folder: Path) -> None:
        self.program, self.folder = program, folder
        self.run_id = f"soak-{os.getpid()}"
        self.token_file = folder / "token"
        self.started_again = 0
        self.statuses: dict[int, int] = {}
        self._port = ReservedPort()
        self._lock = threading.Lock()
        self._closing = False
        self._agents: dict[int, subprocess.Popen[bytes]] = {}
        self._keepers: list[threading.Thread] = []

    @property
    def connect_options(self) -> tuple[str, ...]:
        """The options by which the job is found."""
        endpoint = f"--rdzv-endpoint=127.0.0.1:{self._port.number}"
        return endpoint, f"--rdzv-id={self.run_id}", f"--token-file={self.token_file}"

    def start(self) -> None:
        linux.set_subreaper()
        self.token_file.touch(mode=0o600)
        self.token_file.write_text(secrets.token_hex(16))
        (self.folder / "temporary").mkdir()
        for number in range(self.program.nodes):
            keeper = threading.Thread(target=self._keep, args=(number,), daemon=True)
            self._keepers.append(keeper)
            keeper.start()

    def _keep(self, number: int) -> None:
        """Restart that agent until it ends by itself (rule 2)."""
        while True:
            with self._lock:
                if self._closing:
                    return
                agent = self._agents[number] = self._start(number)
            status = agent.wait()
            if status != -signal.SIGKILL:
                self.statuses[number] = status
                return
            self.started_again += 1

    def _start(self, number: int) -> subprocess.Popen[bytes]:
        program, folder = self.program, self.folder
        least = max(1, program.nodes - 1)
        command = [
            *(sys.executable, "-m", "holdfast", "run", *self.connect_options, "--allow-chaos"),
            *("-n", str(program.workers), "--nnodes", f"{least}:{program.nodes}"),
            *("--max-restarts", "100000", "--quarantine-after", "0"),
            *("--log-dir", str(folder / "logs"), "--snapshot-dir", str(folder / "temporary")),
            *("--shutdown-timeout", str(GRACE_S), *program.options),
            *(str(program.file), str(folder)),
        ]
        environ = {**os.environ, "TMPDIR": str(folder / "temporary")}
        parent = os.getpid()

        def bind_to_parent() -> None:
            linux.set_parent_death_signal(signal.SIGKILL)
            if os.getppid() != parent:
                os.kill(os.getpid(), signal.SIGKILL)

        with open(folder / f"agent-{number}.txt", "ab") as output:
            return subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=environ,
                process_group=0,
                preexec_fn=bind_to_parent,  # noqa: PLW1509 - it makes two system calls
            )

    def finish(self) -> bool:
        """Tell the program to finish; return whether all agents ended, and well."""
        (self.folder / "enough").touch()
        until = time.monotonic() + END_S
        for keeper in self._keepers:
            keeper.join(max(0.0, until - time.monotonic()))
        is_over = not any(keeper.is_alive() for keeper in self._keepers)
        return is_over and set(self.statuses.values()) == {0}

    def close(self) -> list[str]:
        """End all running agents; return the processes left behind, in words."""
        with self._lock:
            self._closing = True
            running = [agent for agent in self._agents.values() if agent.poll() is None]
        for agent in running:
            agent.terminate()
        until = time.monotonic() + 2 * GRACE_S
        for keeper in self._keepers:
            keeper.join(max(0.0, until - time.monotonic()))
        for agent in running:
            agent.kill()
        for keeper in self._keepers:
            keeper.join()
        left = _left_processes()
        if _answers(self._port.number):
            left.append(f"somebody listens on port {self._port.number}")
        files = sorted((self.folder / "temporary").rglob("*"))
        left += [
            f"file {file.relative_to(self.folder)}"
            for file in files
            if file.is_file() and file.name not in (RECORD, OUTPUT)  # Kept for `holdfast jobs`.
        ]
        self._port.release()
        return left

    def tail(self, number: int = 0, lines: int = 15) -> str:
        """The last line of an agent."""
        file = self.folder / f"agent-{number}.txt"
        told = file.read_text(errors="replace").splitlines() if file.exists() else []
        return "\n".join(told[-lines:])


def _children() -> list[int]:
    return [one.pid for one in linux.process_table() if one.parent == os.getpid()]


def _left_processes() -> list[str]:
    """Wait a moment for exiting processes; then end the rest, and name them (rule 4)."""
    until, left = time.monotonic() + GONE_S, []
    while children := _children():
        for pid in children:
            left_s = max(0.0, until - time.monotonic())
            if not _has_ended(pid, left_s):
                left.append(f"process {pid} ({_name(pid)})")
                os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
    return left


def _has_ended(pid: int, within_s: float) -> bool:
    descriptor = os.pidfd_open(pid)
    try:
        poll = select.poll()
        poll.register(descriptor, select.POLLIN)
        return bool(poll.poll(within_s * 1000))
    finally:
        os.close(descriptor)


def _name(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()[:80].strip()
    except OSError:
        return "gone meanwhile"


def _answers(port: int) -> bool:
    try:
        with socket.create_connection(("127.0.0.1", port), 5.0):
            return True
    except OSError:
        return False
