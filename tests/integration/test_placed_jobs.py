"""Jobs whose place an engine's variables say: real agents and workers, and no word about nodes."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from holdfast.engine.sentences import LEADS
from holdfast.placement.model import port_of_numbers

from ..free_ports import free_port

WORKER = """\
import json, os, sys
with open("/proc/self/environ", "rb") as file:
    shown = dict(entry.split("=", 1) for entry in file.read().decode().split("\\0") if entry)
found = {"env": dict(os.environ), "shown": shown}
with open(os.path.join(sys.argv[1], "found." + os.environ["RANK"]), "w") as file:
    json.dump(found, file)
"""
HIDDEN = {"SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID", "SLURM_NODEID", "PMI_RANK", "PMIX_RANK"}


def slurm_job() -> int:
    """The id of a job whose port nobody has."""
    while True:
        port = free_port()
        for job in range(1, 10_000):
            if port_of_numbers(job) == port:
                return job


def step(job: int, node: int) -> dict[str, str]:
    """What a task of srun finds: two nodes, which are both this machine."""
    placed = {
        "SLURM_JOB_ID": job,
        "SLURM_JOB_NAME": "night",
        "SLURM_STEP_ID": 0,
        "SLURM_STEP_NUM_NODES": 2,
        "SLURM_STEP_NODELIST": "localhost,localhost",
        "SLURM_STEP_TASKS_PER_NODE": "1(x2)",
        "SLURM_NODEID": node,
        "SLURM_PROCID": node,
        "SLURM_LOCALID": 0,
        "SLURM_NTASKS": 2,
        "PMI_RANK": node,
        "PMI_SIZE": 2,
        "SLURM_STEP_NUM_TASKS": 2,
        "PMIX_RANK": node,
    }
    return {**os.environ, **{name: str(value) for name, value in placed.items()}}


@pytest.fixture
def start(holdfast: Path, tmp_path: Path):
    """Start `holdfast run`, with these options, as node 0 and as node 1 of a step."""
    program = tmp_path / "look.py"
    program.write_text(WORKER)
    started: list[subprocess.Popen[str]] = []

    def run(*words: str) -> list[tuple[int, str]]:
        job = slurm_job()
        for node in (1, 0):
            started.append(
                subprocess.Popen(
                    [holdfast, "run", *words, program, tmp_path],
                    env=step(job, node),
                    cwd=tmp_path,
                    stderr=subprocess.PIPE,
                    text=True,
                )
            )
        said = [agent.communicate(timeout=100)[1] for agent in started]
        return [(agent.returncode, text) for agent, text in zip(started, said, strict=True)]

    yield run
    for agent in started:
        if agent.poll() is None:
            agent.kill()
            agent.wait()


def found(folder: Path) -> dict[int, dict[str, dict[str, str]]]:
    files = {int(path.suffix[1:]): path for path in folder.glob("found.*")}
    return {rank: json.loads(path.read_text()) for rank, path in files.items()}


@pytest.mark.parametrize("start_how", ["--preload=json", "--no-warm"])
def test_a_step_of_two_nodes_runs_with_no_flags_and_workers_see_no_ranks_of_slurm(
    start, tmp_path: Path, start_how: str
) -> None:
    (second, said), (first, said_first) = start("-n1", start_how)
    assert (first, second) == (0, 0), said_first + said
    assert ", step 0: 2 nodes, this is node 1, meeting at localhost:" in said
    assert ", step 0: 2 nodes, this is node 0, meeting at localhost:" in said_first
    assert LEADS in said_first
    workers = found(tmp_path)
    assert workers.keys() == {0, 1}
    for rank, worker in workers.items():
        assert worker["env"]["GROUP_RANK"] == str(rank), "the engine's order of nodes"
        assert worker["env"]["TORCHELASTIC_RUN_ID"].startswith("slurm-")
        assert worker["env"]["SLURM_JOB_NAME"] == "night"
        for seen in (worker["env"], worker["shown"]):
            assert not HIDDEN & seen.keys()
            assert not [name for name in seen if name.startswith("SLURM_STEP_")]


def test_the_ranks_of_slurm_are_kept_where_that_is_asked_for(start, tmp_path: Path) -> None:
    statuses = [status for status, _ in start("-n1", "--keep-engine-variables")]
    assert statuses == [0, 0]
    for worker in found(tmp_path).values():
        assert worker["env"].keys() >= HIDDEN
