"""A job over several hosts: its agents, what its workers did, and the checks at its end.

Each host has a folder of its own (working directory, temporary files, logs), which a second
agent on the same host finds as the first one left it. All hosts share one folder, through
which the test steers the workers and the workers tell what they did.
"""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

from tools.journals.replay import replay

from holdfast.observe import journal

from ...waiting import until
from ..conftest import job_environment, name_of
from .hosts import Host, Streams
from .story import Story, Worker

PORT = 29400
PROGRAM = Path(__file__).with_name("socket_job.py")
WITH_PYTORCH = Path(__file__).with_name("gloo_job.py")
"""The same for tests that are marked `torch`: some of each kind. Most need no PyTorch to prove
what agents do, and it takes each host seconds to import."""
# Short leases, so that a test in which one runs out takes seconds; and no long wait for
# latecomers, because the tests know who comes.
CONF = "--rdzv-conf=lease=6,heartbeat=0.8,last_call_timeout=1"
# Where none runs out: a process that gets no time for seconds, on a busy machine or because the
# test wants it so, is far from any suspicion, and nobody hangs up on it.
PATIENT_CONF = "--rdzv-conf=lease=60,heartbeat=3,last_call_timeout=1"
# For silences of several heartbeats that must not matter: those who get no answer dial again.
RESTLESS_CONF = "--rdzv-conf=lease=60,heartbeat=0.4,last_call_timeout=1"
# Soon suspected, and not gone for long.
SUSPICIOUS_CONF = "--rdzv-conf=lease=60,heartbeat=0.4,suspect=2,last_call_timeout=1"
SILENT_STEPS = 20
STEPS_SEEN = 3
ON_ITS_DISK = ("--log-dir=logs", "--snapshot-dir=snapshots")
FAILED = "the job failed: "


class Agent:
    """One `holdfast run` on one host."""

    def __init__(self, host: Host, process: subprocess.Popen[bytes], output: Path) -> None:
        self.host = host
        self.process = process
        self.output = output

    @property
    def stderr(self) -> str:
        try:
            return self.output.with_suffix(".stderr").read_text(errors="backslashreplace")
        except FileNotFoundError:
            return ""  # It is gone with the disk of its host.

    def cause(self) -> str:
        """The sentence with which the job failed; the test fails where there is none."""
        lines = [line for line in self.stderr.splitlines() if FAILED in line]
        assert len(lines) == 1, self.stderr
        return lines[0]

    def send(self, number: int) -> None:
        self.process.send_signal(number)

    def kill(self) -> None:
        """SIGKILL for the agent alone; whatever it started has to notice."""
        self.process.kill()
        self.process.wait()

    def kill_all(self) -> None:
        """SIGKILL for everything on the host: no process of it is left when this returns."""
        self.host.destroy()
        self.process.wait()


class NodesJob:
    """One job, with an agent on each of some hosts."""

    def __init__(
        self, hosts: list[Host], folder: Path, holdfast: Path, program: Path = PROGRAM
    ) -> None:
        self.hosts = hosts
        self.folder = folder
        self.shared = folder / "shared"
        self.shared.mkdir()
        self.story = Story(self.shared)
        self.agents: list[Agent] = []
        self.endpoint = f"{hosts[0].address}:{PORT}"
        self.program = program
        self.run_id = "job"
        self._holdfast = holdfast

    # --- the agents -------------------------------------------------------------------------

    def start(self, host: Host, *words: str, env: Mapping[str, str] | None = None) -> Agent:
        """Start `holdfast run` with these options on a host."""
        home = self.home_of(host)
        (home / "tmp").mkdir(parents=True, exist_ok=True)
        output = home / f"agent{len(self.agents)}"
        command: list[str | Path] = [self._holdfast, "run", *ON_ITS_DISK]
        command += [f"--rdzv-id={self.run_id}", f"--rdzv-endpoint={self.endpoint}"]
        command += [*words, self.program, self.shared]
        own = {"TMPDIR": str(home / "tmp"), "HOME": str(home), "GLOO_SOCKET_IFNAME": "eth0"}
        with (
            open(output.with_suffix(".stdout"), "wb") as out,
            open(output.with_suffix(".stderr"), "wb") as err,
        ):
            environment = job_environment({**own, **(env or {})})
            process = host.run(command, environment, home, Streams(stdout=out, stderr=err))
        self.agents.append(Agent(host, process, output))
        return self.agents[-1]

    def home_of(self, host: Host) -> Path:
        """The folder that stands for the disk of a host."""
        return self.folder / host.name

    def start_all(self, *words: str) -> list[Agent]:
        """Start the same command on every host."""
        return [self.start(host, *words) for host in self.hosts]

    # --- what happens -----------------------------------------------------------------------

    def until(self, condition: Callable[[], object], what: str) -> None:
        """Wait for something to happen, to a deadline; fail with all that is known then."""
        until(condition, lambda: f"{what}\n{self.record()}", over=self.has_ended)

    def until_stepping(self, world: int, after: int = 0) -> int:
        """Wait for a later round in which so many workers do steps; return its number."""
        found: list[int] = []

        def look() -> bool:
            newest = self.newest()
            if newest > after and _all_step(self.workers(newest), world):
                found.append(newest)
            return bool(found)

        self.until(look, f"steps of {world} workers in a round after {after}")
        return found[0]

    def newest(self) -> int:
        """The number of the newest round of which a worker has started; 0 before the first."""
        return max(self.story.rounds(), default=0)

    def until_steps_more(self, steps: int) -> None:
        """Wait until every worker of the newest round has done so many steps more."""
        newest = self.newest()
        before = {w.pid: len(w.steps) for w in self.workers(newest)}
        self.until(
            lambda: all(len(w.steps) >= before[w.pid] + steps for w in self.workers(newest)),
            f"{steps} steps more in round {newest}",
        )

    def until_seen_waiting(self, number: int) -> None:
        """Wait until a worker of the round is alive for a second without doing a step."""
        self.until(
            lambda: any(w.last - w.last_step > 1 for w in self.workers(number)),
            f"round {number} to wait",
        )

    def until_gone(self, workers: Iterable[Worker]) -> None:
        """Wait until none of these workers runs."""
        pids = {worker.pid for worker in workers}
        self.until(
            lambda: not pids & {pid for host in self.hosts for pid in host.processes()},
            "the end of some workers",
        )

    def workers(self, number: int) -> list[Worker]:
        """The workers of a round, by rank."""
        return self.story.rounds().get(number, [])

    def hosts_of(self, number: int) -> list[str]:
        """The hosts of a round, in the order of their ranks."""
        return list(dict.fromkeys(worker.host for worker in self.workers(number)))

    def worker_on(self, host: Host, number: int) -> Worker:
        """A worker of a round on a host."""
        return next(w for w in self.workers(number) if w.host == host.name)

    def has_noted(self, host: Host, *words: str) -> bool:
        """Whether a line of a journal on this host has all these words."""
        journals = self.home_of(host).glob("logs/*/journal.jsonl")
        lines = (line for path in journals for line in path.read_text().splitlines())
        return any(all(word in line for word in words) for line in lines)

    # --- the end ----------------------------------------------------------------------------

    def say(self, word: str) -> None:
        """Steer the workers: `finish`, `fail.HOST`, `hold.HOST`."""
        (self.shared / word).touch()

    def unsay(self, word: str) -> None:
        (self.shared / word).unlink()

    def wait(self, agent: Agent) -> int:
        """The exit status of an agent, once it has ended."""
        self.until(lambda: agent.process.poll() is not None, f"the agent on {agent.host.name}")
        return agent.process.wait()

    def finish(self, *agents: Agent) -> None:
        """Let the workers finish: these agents end with success, and all went right."""
        self.say("finish")
        statuses = {agent.host.name: self.wait(agent) for agent in agents}
        assert set(statuses.values()) == {0}, f"{statuses}\n{self.record()}"
        self.check()

    def check(self) -> None:
        """The workers' lives were right, and no process is left on any host."""
        mistakes = self.story.mistakes()
        assert not mistakes, "\n".join([*mistakes, self.record()])
        self.until(lambda: not self.left(), "the end of every process")
        self.check_journals()

    def check_journals(self) -> None:
        """The core decides the same again, from every agent's journal."""
        for header, steps in self.journals():
            assert list(replay(header, steps)) == [], header.node

    def journals(self) -> Iterator[tuple[journal.JournalHeader, list[journal.Step]]]:
        for host in self.hosts:
            for path in sorted(self.home_of(host).glob("logs/*/journal.jsonl")):
                yield journal.read(path)

    def has_ended(self) -> bool:
        """No agent and no other process of the job is there any more."""
        return all(agent.process.poll() is not None for agent in self.agents) and not self.left()

    def left(self) -> list[str]:
        return [f"{h.name}: {pid} {name_of(pid)}" for h in self.hosts for pid in h.processes()]

    def record(self) -> str:
        """All that is known, for the reader of a failed test."""
        parts = [f"--- workers\n{self.story}", "--- left", *self.left()]
        for agent in self.agents:
            title = f"--- {agent.host.name} {agent.output.name} ({agent.process.poll()})"
            parts += [title, agent.stderr]
        return "\n".join(parts)


def kill_worker(worker: Worker) -> None:
    os.kill(worker.pid, signal.SIGKILL)


def _all_step(workers: list[Worker], world: int) -> bool:
    return len(workers) == world and all(len(w.steps) >= STEPS_SEEN for w in workers)
