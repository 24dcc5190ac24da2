"""Each view of a job says the same: while it runs, and afterwards from its journals.

Every fault is planted in a real job. What `holdfast status` and the dashboard are told, what
Prometheus reads and what `holdfast report` works out afterwards is compared.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from holdfast.admin.client import AdminError, connect_here
from holdfast.cli.sentences import no_step
from holdfast.core.protocol.requests import HistoryAsked, HistoryTold, JobAsked, JobTold
from holdfast.engine.sentences import LEADS
from holdfast.observe.goodput import Interruption
from holdfast.observe.sentences import CUT_OFF

from ..free_ports import free_port
from .conftest import Job, StartJob
from .health_probes import health_port, metrics

HOLDFAST = [sys.executable, "-m", "holdfast"]
# Steps for as long as nobody says "end"; whoever finds its name does what that file says.
PROGRAM = """
import os, signal, sys, time
import holdfast
os.chdir(sys.argv[1])
rank, number = os.environ["RANK"], int(os.environ["HOLDFAST_ROUND"])
start = int(open("saved").read()) if os.path.exists("saved") else 0
for step in range(start, 100_000):
    holdfast.progress(step)
    if rank == "0" and step % 10 == 0:
        open("saving", "w").write(str(step)), os.replace("saving", "saved")
    open(f"pid.{rank}", "w").write(f"{os.getpid()} {number} ")
    if os.path.exists(f"fail.{rank}.{number}"):
        raise ValueError("a planted fault")
    if os.path.exists(f"hang.{rank}.{number}") or os.path.exists(f"hang.all.{number}"):
        os.read(os.pipe()[0], 1)
    if os.path.exists("end"):
        break
    time.sleep(0.02)
"""


def lost(parts_s: dict[str, float]) -> float:
    """Seconds that were not useful."""
    return sum(seconds for part, seconds in parts_s.items() if "useful" not in part)


class Watched:
    """A job of one or several agents, and what its views say."""

    def __init__(self, start_job: StartJob, folder: Path) -> None:
        self.run_id = f"truth-{uuid.uuid4().hex[:8]}"
        self.folder = folder
        self.agents: list[Job] = []
        self._start_job = start_job

    def start(self, *words: str) -> Job:
        common = ("--health-port=0", "--no-warm", "-n=2", f"--rdzv-id={self.run_id}")
        logs = f"--log-dir={self.folder / 'journals'}"
        agent = self._start_job(*common, logs, *words, script=PROGRAM, args=(str(self.folder),))
        self.agents.append(agent)
        return agent

    def until_running(self, number: int, ranks: int) -> None:
        def runs() -> bool:
            begun = [self.pid(rank)[1] for rank in range(ranks)]
            return begun == [number] * ranks

        self.agents[-1].until(runs, f"round {number} of {ranks} ranks")

    def pid(self, rank: int) -> tuple[int, int]:
        """Of the worker, and its round."""
        try:
            words = (self.folder / f"pid.{rank}").read_text().split()
        except FileNotFoundError:
            return 0, 0
        return (int(words[0]), int(words[1])) if len(words) == 2 else (0, 0)

    def ask(self) -> tuple[JobTold, HistoryTold]:
        with connect_here(self.run_id) as job:
            told, history = job.ask_coordinator(JobAsked()), job.ask_coordinator(HistoryAsked())
        assert isinstance(told, JobTold)
        assert isinstance(history, HistoryTold)
        return told, history

    def interruptions(self) -> list[Interruption]:
        """As status and dashboard are told; none while nobody coordinates."""
        try:
            _, history = self.ask()
        except AdminError:
            return []
        return [msgspec.msgpack.decode(one, type=Interruption) for one in history.interruptions]

    def until_interrupted(self, *kinds: str) -> None:
        """Until those were the interruptions, and the job has gone on after the last."""

        def is_so() -> bool:
            found = self.interruptions()
            return [one.ended_by for one in found] == list(kinds) and found[-1].is_over

        self.agents[-1].until(is_so, f"{kinds}, not {self.interruptions()}")

    def coordinator_metrics(self) -> dict[str, float]:
        pages = [metrics(health_port(one)) for one in self.agents if one.process.poll() is None]
        (page,) = (page for page in pages if page["holdfast_coordinator_here"])
        return page

    def report(self) -> dict:
        words = [*HOLDFAST, "report", str(self.folder / "journals"), "--json"]
        ended = subprocess.run(words, capture_output=True, text=True, check=True)
        return json.loads(ended.stdout)

    def told(self, *words: str) -> Any:
        """What a verb prints as JSON."""
        # Where the agents were told to keep the records of their runs.
        environ = {**os.environ, "TMPDIR": str(self.agents[0].folder / "tmp")}
        ended = subprocess.run(
            [*HOLDFAST, *words], capture_output=True, text=True, check=True, env=environ
        )
        return json.loads(ended.stdout)

    def compare_with_list(self) -> None:
        """Of the job that has ended: its line in `holdfast jobs`, its status, and its report."""
        report, status = self.report(), self.told("status", self.run_id, "--json")
        (listed,) = [one for one in self.told("jobs", "--json") if one["name"] == self.run_id]
        assert {report["verdict"], status["verdict"], listed["state"]} == {"succeeded"}
        restarts = {report["restarts"], status["restarts"], listed.get("restarts", 0)}
        assert len(restarts) == 1, restarts
        book = report["ledger"]
        goodput = book["parts_s"]["useful"] / sum(book["parts_s"].values())
        assert listed["goodput"] == pytest.approx(goodput, abs=0.05)
        assert status["goodput"] == listed["goodput"]
        assert f"{listed['steps']:,} steps" in self.agents[0].stderr

    def compare_views(self, *kinds: str) -> None:
        """Of the job that runs, and of its journals so far."""
        told, history = self.ask()
        live = [msgspec.msgpack.decode(one, type=Interruption) for one in history.interruptions]
        page, report = self.coordinator_metrics(), self.report()
        assert [one.ended_by for one in live] == list(kinds)
        assert [one["ended_by"] for one in report["ledger"]["interruptions"]] == list(kinds)
        for one, other in zip(live, report["ledger"]["interruptions"], strict=True):
            assert one.reason == other["reason"]
        counted = {
            kind: page[f'holdfast_coordinator_round_ends_total{{cause="{kind}"}}']
            for kind in ("failure", "loss", "hang", "drain", "newcomers", "asked")
        }
        assert counted == {kind: kinds.count(kind) for kind in counted}
        restarts = {told.restarts, page["holdfast_coordinator_restarts"], report["restarts"]}
        assert restarts == {sum(kind in ("failure", "hang") for kind in kinds)}
        useful = history.parts_s["useful"] / history.total_s
        assert useful == pytest.approx(page["holdfast_goodput_ratio"], abs=0.1)
        assert report["is_running"]
        status = self.told("status", self.run_id, "--json")
        assert [one["ended_by"] for one in status["interruptions"]] == list(kinds)
        assert [one["reason"] for one in status["interruptions"]] == [one.reason for one in live]
        assert {status["restarts"]} == restarts
        # While workers step, only the useful time grows: what was lost is the same in all views.
        lost_s = lost(history.parts_s)
        assert lost(status["parts_s"]) == pytest.approx(lost_s, abs=0.01)
        assert lost(report["ledger"]["parts_s"]) == pytest.approx(lost_s, abs=0.5)
        spent = {name: s for name, s in page.items() if name.startswith("holdfast_time_seconds{")}
        assert lost(spent) == pytest.approx(lost_s, abs=0.01)
        assert status["step"] >= (told.step or 0)
        assert page["holdfast_coordinator_hangs_total"] == kinds.count("hang")
        assert page["holdfast_coordinator_stalled"] == 0
        assert page["holdfast_coordinator_step_age_seconds"] >= 0

    def end(self) -> None:
        (self.folder / "end").touch()


@pytest.fixture
def watched(start_job: StartJob, tmp_path: Path) -> Watched:
    return Watched(start_job, tmp_path)


def plant_failure(job: Watched) -> str:
    (job.folder / "fail.1.1").touch()
    return "failure"


def plant_kill(job: Watched) -> str:
    os.kill(job.pid(1)[0], signal.SIGKILL)
    return "failure"


def plant_hang(job: Watched) -> str:
    (job.folder / "hang.all.1").touch()
    return "hang"


def plant_restart(job: Watched) -> str:
    subprocess.run([*HOLDFAST, "restart", job.run_id], check=True)
    return "asked"


PLANTED = [plant_failure, plant_kill, plant_hang, plant_restart]


@pytest.mark.parametrize("plant", PLANTED)
def test_views_of_a_job_of_one_node_agree(
    watched: Watched, plant: Callable[[Watched], str]
) -> None:
    watched.start("--max-restarts=3", "--hang=restart", "--hang-after=2")
    watched.until_running(1, 2)
    kind = plant(watched)
    watched.until_running(2, 2)
    watched.until_interrupted(kind)
    watched.compare_views(kind)
    watched.end()
    assert watched.agents[0].wait() == 0
    report = watched.report()
    assert report["verdict"] == "succeeded"
    assert [one["ended_by"] for one in report["ledger"]["interruptions"]] == [kind]
    watched.compare_with_list()


def test_a_worker_that_hangs_is_seen_long_before_it_is_ended(watched: Watched) -> None:
    watched.start("--hang-after=500")
    watched.until_running(1, 2)
    (watched.folder / "hang.1.1").touch()

    def is_overdue() -> bool:
        workers = watched.told("status", watched.run_id, "--json")["workers"]
        return [one["rank"] for one in workers if one["is_overdue"]] == [1]

    watched.agents[0].until(is_overdue, "rank 1 is overdue, and rank 0 is not")
    shown = subprocess.run(
        [*HOLDFAST, "status", watched.run_id], capture_output=True, text=True, check=True
    )
    before, _ = no_step([1], 2, "|").split("|")
    assert f"! {before}" in shown.stdout
    page = watched.coordinator_metrics()
    assert page['holdfast_worker_step_age_seconds{rank="1"}'] > 5
    assert page["holdfast_coordinator_hangs_total"] == 0


def test_a_stall_counts_from_the_last_step_on(watched: Watched) -> None:
    watched.start("--max-restarts=1", "--hang=restart", "--hang-after=2")
    watched.until_running(1, 2)
    plant_hang(watched)
    watched.until_running(2, 2)
    watched.until_interrupted("hang")
    (stalled,) = watched.interruptions()
    assert stalled.parts_s["detect"] > 1.9, "at least as long as it takes to be noticed"
    watched.end()
    assert watched.agents[0].wait() == 0
    (told,) = watched.report()["ledger"]["interruptions"]
    assert told["parts_s"]["detect"] == pytest.approx(stalled.parts_s["detect"], abs=0.2)


@pytest.mark.parametrize("lost", ["coordinator", "other"])
def test_views_agree_after_a_node_was_lost(watched: Watched, lost: str) -> None:
    register = watched.folder / "register"
    register.mkdir()
    meet = (f"--rdzv-backend=file --rdzv-endpoint={register} --nnodes=2:3").split()
    meet.append("--rdzv-conf=last_call_timeout=1")
    for _ in range(3):
        watched.start(*meet)
    watched.until_running(1, 6)
    leader = next(one for one in watched.agents if LEADS in one.stderr)
    victim = leader if lost == "coordinator" else next(a for a in watched.agents if a is not leader)
    watched.agents.remove(victim)
    victim.process.kill()
    watched.until_running(2, 4)
    watched.until_interrupted("loss")
    watched.compare_views("loss")
    watched.end()
    assert [agent.wait() for agent in watched.agents] == [0, 0]


def test_a_node_that_joins_is_no_incident(watched: Watched) -> None:
    meet = ["--nnodes=1:2", f"--rdzv-endpoint=127.0.0.1:{free_port()}"]
    watched.start(*meet, "--rdzv-conf=last_call_timeout=1")
    watched.until_running(1, 2)
    watched.start(*meet)
    watched.until_running(2, 4)
    watched.until_interrupted("newcomers")
    watched.compare_views("newcomers")
    (joined,) = watched.interruptions()
    assert not joined.is_incident
    watched.end()
    assert [agent.wait() for agent in watched.agents] == [0, 0]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_how_a_job_of_one_node_was_interrupted_is_known(watched: Watched, number: int) -> None:
    agent = watched.start()
    watched.until_running(1, 2)
    agent.send(number)
    assert agent.wait() == 128 + number
    report = watched.report()
    assert report["verdict"] == "interrupted"
    assert signal.Signals(number).name in report["outcome"]
    assert CUT_OFF not in report["unknowns"]


def test_a_job_that_was_stopped_was_interrupted_in_every_view(watched: Watched) -> None:
    agent = watched.start()
    watched.until_running(1, 2)
    subprocess.run([*HOLDFAST, "stop", watched.run_id], check=True)
    assert agent.wait() != 0
    report = watched.report()
    assert report["verdict"] == "interrupted"
    assert report["outcome"].partition("\n")[0] in agent.stderr
    assert report["ledger"]["interruptions"][-1]["ended_by"] == "asked"
