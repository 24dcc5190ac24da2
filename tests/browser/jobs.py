"""Real jobs with a dashboard, to look at."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.waiting import once, until

PROGRAM = """
import os, sys, time
import holdfast

rank = int(os.environ["RANK"])
print(f"rank {rank} has begun round {os.environ['HOLDFAST_ROUND']}", flush=True)
pids, name = sys.argv[1], f"{rank}.{os.environ['HOLDFAST_ROUND']}"
with open(f"{pids}/{name}.new", "w") as file:
    file.write(str(os.getpid()))
os.rename(f"{pids}/{name}.new", f"{pids}/{name}")
step = 0
while True:
    time.sleep(0.05)
    step += 1
    holdfast.progress(step)
    if step % 10 == 0:
        print(f"step {step} of rank {rank}", flush=True)
    if step % 40 == 0:
        print(f"a warning of rank {rank}", file=sys.stderr, flush=True)
    while os.path.exists(f"{pids}/stall"):
        time.sleep(0.05)
    if os.path.exists(f"{pids}/finish") or os.path.exists(f"{pids}/finish.{rank}"):
        print(f"rank {rank} is done", flush=True)
        break
    if os.path.exists(f"{pids}/fail.{rank}"):
        os.unlink(f"{pids}/fail.{rank}")
        raise RuntimeError("the gradients are not numbers")
"""


class RunningJobs:
    """Starts agents of one job; ends all that is left at the end."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.name = f"browser-{os.getpid()}-{id(self):x}"
        self.program = folder / "train.py"
        self.program.write_text(PROGRAM)
        self.agents: list[subprocess.Popen[Any]] = []

    def start(self, *options: str) -> subprocess.Popen[bytes]:
        """One agent, with a dashboard at a port of its own."""
        number = len(self.agents)
        output = (self.folder / f"agent{number}.out").open("wb")
        command = [sys.executable, "-m", "holdfast", "run", "--rdzv-id", self.name]
        command += ["--dashboard", "0", "--log-dir", str(self.folder / f"logs{number}"), *options]
        command += [str(self.program), str(self.folder)]
        agent = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)
        output.close()
        self.agents.append(agent)
        return agent

    def output(self, number: int = 0) -> str:
        return (self.folder / f"agent{number}.out").read_text(errors="replace")

    def link(self, number: int = 0) -> str:
        """Of an agent's page. Its key is not in its output: that is asked for."""
        url = once(lambda: _url_in(self.output(number)), f"agent {number} says where its page is")

        def ask() -> str | None:
            command = [sys.executable, "-m", "holdfast", "dashboard", self.name]
            told = subprocess.run(command, capture_output=True, text=True, check=False).stdout
            return next((link for link in told.split() if link.startswith(url)), None)

        return once(ask, f"the link to {url}")

    def worker(self, rank: int, round_number: int = 1) -> int:
        """The process of a worker, once it runs."""
        path = self.folder / f"{rank}.{round_number}"
        until(path.exists, f"rank {rank} in round {round_number}\n{self.output()}")
        return int(path.read_text())

    def fail(self, rank: int) -> None:
        """Have this worker raise an exception."""
        (self.folder / f"fail.{rank}").touch()

    def say(self, what: str) -> Path:
        """Have workers do it as long as this file is there: "stall", "finish", "finish.3"."""
        path = self.folder / what
        path.touch()
        return path

    def call(self, *words: str) -> str:
        """What `holdfast` says to this."""
        command = [sys.executable, "-m", "holdfast", *words]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout

    def journals(self) -> list[str]:
        return [str(path) for path in sorted(self.folder.rglob("journal.jsonl"))]

    def serve(self, *words: str) -> str:
        """The link to what `holdfast dashboard` serves, until the test ends."""
        command = [sys.executable, "-m", "holdfast", "dashboard", "--port", "0", *words]
        serving = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        self.agents.append(serving)
        assert serving.stdout is not None
        with serving.stdout as output:
            return output.readline().strip()

    def close(self) -> None:
        for agent in self.agents:
            if agent.poll() is None:
                agent.send_signal(signal.SIGCONT)
                agent.terminate()
        for agent in self.agents:
            try:
                agent.wait(60)
            except subprocess.TimeoutExpired:
                agent.kill()
                agent.wait()


def _url_in(output: str) -> str | None:
    words = [word for word in output.split() if word.startswith("http://")]
    return words[0] if words else None
