"""`holdfast jobs`: what runs, and what has ended, of this user on this machine."""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from holdfast.cli.jobs import ListedJob, render

from ..free_ports import free_port
from ..waiting import until
from .conftest import Run, start_quietly

pytestmark = pytest.mark.slow  # Real jobs, for seconds each.

STEPS = """
import sys, time, holdfast
for step in range(int(sys.argv[1])):
    holdfast.progress(step)
    time.sleep(0.02)
"""
LONG = "100000"


class Jobs:
    """Jobs whose logs go to a folder of this test's own."""

    def __init__(self, run: Run, holdfast: Path, folder: Path) -> None:
        self._run, self._holdfast, self._folder = run, holdfast, folder
        self.env = {"TMPDIR": str(folder)}
        self.script = folder / "steps.py"
        self.script.write_text(STEPS)
        self.started: list[subprocess.Popen[bytes]] = []

    def run(self, *options: str, steps: str = "5") -> subprocess.CompletedProcess[str]:
        return self._run("run", *options, str(self.script), steps, env=self.env, timeout=100)

    def start(self, *options: str, steps: str = LONG) -> subprocess.Popen[bytes]:
        words = ("run", *options, str(self.script), steps)
        agent = start_quietly(self._holdfast, *words, environ=self.env)
        self.started.append(agent)
        return agent

    def report(self, name: str) -> subprocess.CompletedProcess[str]:
        return self._run("report", name, env=self.env)

    def listed(self) -> Mapping[str, dict[str, Any]]:
        """By name, as far as they have left something in that folder."""
        told = self._run("jobs", "--json", env=self.env)
        assert told.returncode == 0, told.stderr
        found = json.loads(told.stdout)
        own = [one for one in found if str(self._folder) in str(one.get("journals", ""))]
        assert len({one["name"] for one in own}) == len(own), "each is there once"
        return {one["name"]: one for one in own}

    def shown(self) -> str:
        return self._run("jobs", env=self.env).stdout

    def becomes(self, name: str, **wanted: object) -> None:
        def look() -> bool:
            seen = self.listed().get(name, {})
            return all(seen.get(key) == value for key, value in wanted.items())

        until(look, f"{name} is {wanted}")


@pytest.fixture
def jobs(run_holdfast: Run, holdfast: Path, tmp_path: Path) -> Iterator[Jobs]:
    all_jobs = Jobs(run_holdfast, holdfast, tmp_path)
    yield all_jobs
    for agent in all_jobs.started:
        agent.kill()
        agent.wait()


def test_a_job_that_succeeded_is_listed_and_can_be_reported_on_by_name(jobs: Jobs) -> None:
    done = jobs.run("--rdzv-id=well", "--nproc-per-node=2")
    assert done.stderr.splitlines()[-1].endswith("; report: holdfast report well")
    known = jobs.listed()["well"]
    assert (known["state"], known["nodes"], known["ranks"], known["steps"]) == (
        "succeeded",
        1,
        2,
        5,
    )
    line = next(line for line in jobs.shown().splitlines() if line.startswith("well "))
    assert "succeeded" in line
    assert "5 steps" in line
    assert jobs.report("well").stdout.startswith("well on ")


def test_a_job_with_a_log_dir_is_found_by_its_name_too(jobs: Jobs, tmp_path: Path) -> None:
    jobs.run("--rdzv-id=logged", f"--log-dir={tmp_path / 'logs'}")
    (journal,) = jobs.listed()["logged"]["journals"]
    assert journal.startswith(str(tmp_path / "logs"))
    assert jobs.report("logged").returncode == 0


def test_a_job_is_running_until_its_agent_is_interrupted_or_killed(jobs: Jobs) -> None:
    stopped, killed = jobs.start("--rdzv-id=stopped"), jobs.start("--rdzv-id=killed")
    jobs.becomes("stopped", state="running", ranks=1)
    jobs.becomes("killed", state="running", ranks=1)
    stopped.send_signal(signal.SIGINT)
    stopped.wait()
    killed.kill()
    killed.wait()
    jobs.becomes("stopped", state="interrupted", exit_status=130)
    jobs.becomes("killed", state="killed")


def test_the_nodes_of_one_job_are_one_job(jobs: Jobs, tmp_path: Path) -> None:
    place = f"--rdzv-endpoint=127.0.0.1:{free_port()}"
    for _ in range(2):
        jobs.start("--nnodes=2", place, "--rdzv-id=both", f"--snapshot-dir={tmp_path}")
    jobs.becomes("both", state="running", nodes=2, ranks=2)
    assert len(jobs.listed()["both"]["journals"]) == 2


def test_a_word_that_means_nothing_is_refused(run_holdfast: Run) -> None:
    told = run_holdfast("jobs", "mine")
    assert told.returncode == 2
    assert "unexpected argument: 'mine'" in told.stderr


def test_in_a_terminal_a_line_ends_where_the_terminal_does() -> None:
    long = ListedJob("nightly", "failed", 1.8e9, 3.0, 1, 2, reason="it failed again " * 20)
    assert max(map(len, render([long], 80).splitlines())) <= 80
    assert max(map(len, render([long]).splitlines())) > 80
