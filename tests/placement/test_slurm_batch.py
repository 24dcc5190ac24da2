"""The batch script: what it asks of Slurm, and what its shell does."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from msgspec.structs import replace

from holdfast.placement.slurm_batch import Submission, batch_script

JOB = Submission(
    name="train",
    min_nodes=2,
    max_nodes=8,
    folder="/shared/jobs/train-1",
    command="/opt/holdfast",
    run_words=("--nproc-per-node", "4", "train.py", "--name", "a b"),
    spares=1,
)
STUB = """#!/bin/sh
echo "$0 $@" | sed 's|.*/stubs/||' >> {log}
{body}
"""


def directives(job: Submission) -> list[str]:
    lines = batch_script(job).splitlines()
    return [line.removeprefix("#SBATCH ") for line in lines if line.startswith("#SBATCH ")]


def test_an_array_has_an_element_for_each_node_and_each_spare() -> None:
    assert "--array=0-8" in directives(JOB)
    assert "--nodes=1" in directives(JOB)
    assert "--requeue" in directives(JOB)
    assert "--nnodes 2:8" in batch_script(JOB)


def test_one_allocation_has_room_for_the_spares_and_outlives_lost_nodes() -> None:
    job = replace(JOB, one_allocation=True)
    assert "--nodes=2-9" in directives(job)
    assert "--no-kill" in directives(job)
    assert not any(line.startswith("--ntasks") for line in directives(job))
    assert not any(line.startswith("--array") for line in directives(job))


def test_a_fixed_number_of_nodes_is_no_range() -> None:
    job = replace(JOB, max_nodes=2, spares=0, one_allocation=True)
    assert "--nodes=2" in directives(job)


def test_what_the_user_says_to_sbatch_comes_last() -> None:
    job = replace(JOB, sbatch_words=("-p", "gpu", "--signal=USR1@30", "--comment", 'say "hi" #1'))
    assert directives(job)[-3:] == [
        "-p gpu",
        "--signal=USR1@30",
        '"--comment" "say \\"hi\\" #1"',
    ]


def test_whole_machines_unless_they_may_be_shared() -> None:
    assert "--exclusive" in directives(JOB)
    assert "--exclusive" not in directives(replace(JOB, share_nodes=True))


def test_nodes_meet_in_the_folder_or_in_etcd() -> None:
    assert '--rdzv-backend file --rdzv-endpoint "$folder/register"' in batch_script(JOB)
    etcd = replace(JOB, backend="etcd", endpoint="e1:2379,e2:2379")
    assert "--rdzv-backend etcd --rdzv-endpoint e1:2379,e2:2379" in batch_script(etcd)


# --- what its shell does --------------------------------------------------------------------


class Ran:
    """One run of a script, with programs in place of Slurm's that note how they are called."""

    def __init__(
        self,
        folder: Path,
        status: int,
        state: str = "RUNNING",
        outcome: str = "",
        job: Submission = JOB,
    ) -> None:
        """`outcome` is what the agent writes of the job's end, if it hears of it."""
        self.job = replace(job, folder=str(folder))
        log = folder / "calls"
        stubs = folder / "stubs"
        stubs.mkdir(parents=True)
        bodies = {
            "srun": f"{f'echo {outcome!r} > {folder}/over; ' if outcome else ''}exit {status}",
            "squeue": f"echo {state}",
            "scontrol": "",
            "scancel": "",
        }
        for name, body in bodies.items():
            (stubs / name).write_text(STUB.format(log=log, body=body))
            (stubs / name).chmod(0o755)
        self.status = self.run(folder, stubs)
        self.calls = log.read_text().splitlines() if log.exists() else []

    def run(self, folder: Path, stubs: Path) -> int:
        environment = {
            "PATH": f"{stubs}:/usr/bin:/bin",
            "SLURM_JOB_ID": "12",
            "SLURM_ARRAY_JOB_ID": "10",
            "SLURM_ARRAY_TASK_ID": "3",
        }
        done = subprocess.run(
            ["bash", "-c", batch_script(self.job)], env=environment, cwd=folder, check=False
        )
        return done.returncode

    def called(self, name: str) -> list[str]:
        return [call for call in self.calls if call.startswith(f"{name} ")]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "job").mkdir()
    (tmp_path / "job" / "token").write_text("secret")
    return tmp_path / "job"


@pytest.mark.parametrize("status", [75, 137])
def test_an_element_that_is_to_run_again_goes_back_into_the_queue(
    folder: Path, status: int
) -> None:
    ran = Ran(folder, status)
    assert ran.called("squeue") == ["squeue --noheader --format=%T --jobs=10_3"]
    assert ran.called("scontrol") == ["scontrol requeue 10_3"]
    assert ran.called("scancel") == []
    assert ran.status == status


def test_an_element_that_was_cancelled_does_not_come_back(folder: Path) -> None:
    assert Ran(folder, 75, state="COMPLETING").called("scontrol") == []


@pytest.mark.parametrize("status", [0, 1, 3, 75, 137])
def test_at_the_end_of_the_job_nobody_has_to_start_any_more(folder: Path, status: int) -> None:
    ran = Ran(folder, status, outcome="succeeded: all workers succeeded")
    assert ran.called("scontrol") == []
    assert ran.called("scancel") == ["scancel --quiet --state=PENDING 10"]
    assert ran.status == status


@pytest.mark.parametrize("status", [0, 1, 2, 3, 4])
def test_what_srun_ends_with_is_not_the_end_of_the_job(
    folder: Path, status: int, capfd: pytest.CaptureFixture[str]
) -> None:
    """Its own failures have these numbers too: a node that failed, a program that is not there."""
    ran = Ran(folder, status)
    assert not (folder / "over").exists()
    assert ran.called("scancel") == ran.called("scontrol") == []
    assert ran.status == status
    told = f"holdfast: 10_3 ended with status {status} before the job did"
    assert (told in capfd.readouterr().err) == (status != 0)


@pytest.mark.parametrize("one_allocation", [False, True])
def test_an_element_that_comes_after_the_end_says_so_and_runs_nothing(
    folder: Path, one_allocation: bool, capfd: pytest.CaptureFixture[str]
) -> None:
    (folder / "over").write_text("failed: rank 0 raised\n")
    ran = Ran(folder, 1, job=replace(JOB, one_allocation=one_allocation))
    assert ran.status == 0
    assert ran.called("srun") == []
    assert "holdfast: the job is over (failed: rank 0 raised)" in capfd.readouterr().err


def test_the_agent_is_told_where_to_write_the_outcome(folder: Path) -> None:
    (call,) = Ran(folder, 0).called("srun")
    assert f"--outcome-file {folder}/over" in call


def test_the_program_gets_its_arguments_as_they_were_written(folder: Path) -> None:
    (call,) = Ran(folder, 0).called("srun")
    assert call.endswith("--nproc-per-node 4 train.py --name a b")
    assert "--rdzv-id slurm-10" in call


def test_a_folder_that_the_node_does_not_see_is_told(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert Ran(tmp_path, 0).status == 2
    said = capfd.readouterr().err
    assert "token cannot be read on" in said
    assert "hint: the folder has to be on a disk that all nodes share" in said
