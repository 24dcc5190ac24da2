"""Real jobs to be attacked: two honest nodes on loopback, whose workers step until told to end."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from holdfast.core.protocol.model import Endpoint

from ..free_ports import free_port

JOB = "fuzzed"
DEADLINE_S = 120.0
MEMORY_LIMIT = 400 << 20
"""Of the agent that carries the coordinator; it begins with some 40 MB."""
WORKER = """
import os, time
with open(f"worker.{os.getpid()}", "w") as file:
    while not os.path.exists("end"):
        file.seek(0)
        file.write(str(time.monotonic()))
        file.flush()
        time.sleep(0.05)
"""


class Broken(Exception):
    """Something that must never happen, in words."""


class Agent:
    """One honest node."""

    def __init__(self, folder: Path, name: str, words: list[str]) -> None:
        self.output = folder / f"{name}.txt"
        self.logs = folder / f"{name}.logs"
        command = [sys.executable, "-m", "holdfast", "run", "--log-dir", str(self.logs), *words]
        with self.output.open("wb") as output:
            self.process = subprocess.Popen(
                [*command, "worker.py"],
                cwd=folder,
                stdout=output,
                stderr=output,
                stdin=subprocess.DEVNULL,
            )

    @property
    def text(self) -> str:
        return self.output.read_text(errors="replace")

    def node(self) -> str:
        """Its identity, once its journal says so."""
        for path in self.logs.glob("*/journal.jsonl"):
            with path.open() as journal:
                line = journal.readline()
                if line.endswith("\n"):
                    return str(json.loads(line)["node"])
        return ""

    def resident(self) -> int:
        with open(f"/proc/{self.process.pid}/statm") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGESIZE")


class HonestJob:
    """Two nodes of one job. `check` says whether all is still as it must be."""

    def __init__(self, folder: Path, *words: str, is_full: bool) -> None:
        self.folder, self.is_full = folder, is_full
        (folder / "worker.py").write_text(WORKER)
        self.endpoint = Endpoint("127.0.0.1", free_port())
        self._words = [
            "--rdzv-id", JOB, "--nproc-per-node", "1", "--no-warm", "--max-restarts", "1000000",
            "--restart-backoff", "0", "--last-call", "0.1", *words,
        ]  # fmt: skip
        self.agents = [Agent(folder, name, self._words_of(name)) for name in ("host", "peer")]
        self.until(lambda: len(self.workers()) >= 2, "the workers of both nodes")
        self.names = {"@host": self.agents[0].node(), "@peer": self.agents[1].node()}
        self._first_workers = self.workers()

    def _words_of(self, name: str) -> list[str]:
        if "--rdzv-backend" in self._words:
            return self._words
        kept = [
            "--snapshot-dir",
            str(self.folder / "record"),
            "--rdzv-endpoint",
            str(self.endpoint),
        ]
        return [*self._words, *kept, *(["--rdzv-conf", "is_host=1"] if name == "host" else [])]

    def workers(self) -> set[int]:
        """Processes of workers that live."""
        pids = [int(path.suffix[1:]) for path in self.folder.glob("worker.[0-9]*")]
        return {pid for pid in pids if os.path.exists(f"/proc/{pid}/fd")}

    def until(self, condition: Callable[[], object], what: str) -> None:
        deadline = time.monotonic() + DEADLINE_S
        while not condition():
            self.look_for_crashes()
            if time.monotonic() > deadline:
                raise Broken(f"waited in vain for {what}\n{self.texts()}")
            time.sleep(0.01)

    def texts(self) -> str:
        return "\n".join(agent.text[-3000:] for agent in self.agents)

    def look_for_crashes(self) -> None:
        for agent in self.agents:
            text = agent.text
            if "Traceback" in text or "internal error" in text:
                raise Broken(f"an agent crashed\n{self.texts()}")
            if any(character in text for character in "\x1b\0\x07"):
                raise Broken(f"a stranger's control characters were printed\n{text!r}")
            if "\nholdfast: the job succeeded" in text and not (self.folder / "end").exists():
                raise Broken(f"a line was forged\n{text}")

    def has_ended(self) -> bool:
        return any(agent.process.poll() is not None for agent in self.agents)

    def check(self) -> None:
        """Raise `Broken` unless all is well. A job with free seats may end, but not in a crash."""
        self.look_for_crashes()
        for agent in self.agents:
            if agent.process.poll() is None and agent.resident() > MEMORY_LIMIT:
                raise Broken(f"an agent holds {agent.resident() >> 20} MB")
        statuses = [agent.process.poll() for agent in self.agents]
        if 0 in statuses:
            raise Broken(f"an agent said that all is well: {statuses}\n{self.texts()}")
        if self.is_full and self.has_ended():
            raise Broken(f"a stranger ended the job: {statuses}\n{self.texts()}")
        if self.is_full and self.workers() != self._first_workers:
            raise Broken(f"a stranger restarted the workers\n{self.texts()}")

    def watch(self, seconds: float) -> None:
        """Check it for some time, or until it has ended."""
        until = time.monotonic() + seconds
        while time.monotonic() < until and not self.has_ended():
            self.check()
            time.sleep(0.02)
        self.check()

    def end(self) -> None:
        """End it as an ordinary job ends, or raise `Broken`."""
        self.check()
        (self.folder / "end").touch()
        if self.is_full:
            self.until(lambda: all(a.process.poll() is not None for a in self.agents), "the end")
            statuses = [agent.process.poll() for agent in self.agents]
            if statuses != [0, 0]:
                raise Broken(f"the job ended with {statuses}\n{self.texts()}")

    def kill(self) -> None:
        for agent in self.agents:
            if agent.process.poll() is None:
                agent.process.terminate()
        for agent in self.agents:
            try:
                agent.process.wait(20)
            except subprocess.TimeoutExpired:
                agent.process.kill()
                agent.process.wait()
