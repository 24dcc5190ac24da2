"""`holdfast slurm`: what it prints without a cluster, and what it says to what cannot be."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from holdfast.cli import sentences
from holdfast.cli.slurm import sort, submission

from .conftest import Run

PROGRAM = ("--", "train.py")


def test_a_dry_run_prints_the_script_and_makes_nothing(run_holdfast: Run, tmp_path: Path) -> None:
    words = ("slurm", "submit", "--nodes", "2:8", "--spares=1", "-p", "gpu", "--dry-run")
    done = run_holdfast(*words, *PROGRAM, "--epochs", "3", cwd=tmp_path)
    assert done.returncode == 0
    assert done.stdout.startswith("#!/bin/bash\n")
    assert "#SBATCH --array=0-8" in done.stdout
    assert "#SBATCH -p gpu" in done.stdout
    assert "train.py --epochs 3" in done.stdout
    assert done.stderr == ""
    assert list(tmp_path.iterdir()) == []


def test_no_secret_is_in_the_script(run_holdfast: Run, tmp_path: Path) -> None:
    words = ("slurm", "submit", "--nodes=2", "--dry-run", *PROGRAM)
    done = run_holdfast(*words, cwd=tmp_path, env={"HOLDFAST_TOKEN": "a-secret-of-mine"})
    assert "a-secret-of-mine" not in done.stdout


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--help",), "submit|follow"),
        (("submit", "--help"), "--spares N"),
        (("follow", "-h"), "the number that Slurm gave"),
    ],
)
def test_help_is_there(call_holdfast: Run, words: tuple[str, ...], said: str) -> None:
    done = call_holdfast("slurm", *words)
    assert done.returncode == 0
    assert said in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 100


def test_options_of_the_program_are_not_ours(run_holdfast: Run, tmp_path: Path) -> None:
    words = ("slurm", "submit", "--nodes=2", "--dry-run", *PROGRAM, "--help", "--nodes", "9")
    done = run_holdfast(*words, cwd=tmp_path)
    assert "train.py --help --nodes 9" in done.stdout


def test_a_range_may_be_written_as_slurm_writes_it() -> None:
    job = submission(sort(("-N", "2-8", *PROGRAM)))
    assert (job.min_nodes, job.max_nodes) == (2, 8)


@pytest.mark.parametrize(
    "words",
    [(), ("sumbit",), ("follow",), ("submit", "--nodes=2", *PROGRAM), ("follow", "7")],
)
def test_a_mistake_ends_with_status_2_and_leaves_nothing(
    run_holdfast: Run, tmp_path: Path, words: tuple[str, ...]
) -> None:
    done = run_holdfast("slurm", *words, cwd=tmp_path, env={"PATH": "/nowhere"})
    assert done.returncode == 2
    assert [line.partition(": ")[0] for line in done.stderr.splitlines()] == ["holdfast", "hint"]
    assert list(tmp_path.iterdir()) == []


def stub(folder: Path, name: str, text: str) -> None:
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(f"#!/bin/sh\n{text}\n")
    (folder / name).chmod(0o755)


def test_what_sbatch_refuses_is_told_in_its_words_and_leaves_nothing(
    run_holdfast: Run, tmp_path: Path
) -> None:
    stub(tmp_path / "bin", "sbatch", "echo 'sbatch: error: invalid partition' >&2; exit 1")
    path = f"{tmp_path / 'bin'}:/usr/bin:/bin"
    words = ("slurm", "submit", "--nodes=2", *PROGRAM)
    done = run_holdfast(*words, cwd=tmp_path, env={"PATH": path})
    assert done.returncode == 2
    assert "invalid partition" in done.stderr
    assert list((tmp_path / "holdfast-jobs").iterdir()) == []


def test_a_folder_that_cannot_be_made_is_told(run_holdfast: Run, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    stub(tmp_path / "bin", "sbatch", "exit 1")
    path = f"{tmp_path / 'bin'}:/usr/bin:/bin"
    words = ("slurm", "submit", "--nodes=2", "--folder=file/jobs", *PROGRAM)
    done = run_holdfast(*words, cwd=tmp_path, env={"PATH": path})
    assert done.returncode == 2
    assert "file/jobs" in done.stderr


def test_the_token_is_its_owners_alone_and_is_not_handed_to_slurm(
    run_holdfast: Run, tmp_path: Path
) -> None:
    stub(
        tmp_path / "bin", "sbatch", f"env > {tmp_path}/environment; cp $2 {tmp_path}/script; echo 7"
    )
    path = f"{tmp_path / 'bin'}:/usr/bin:/bin"
    words = ("slurm", "submit", "--nodes=2", "--no-follow", *PROGRAM)
    environment = {"PATH": path, "HOLDFAST_TOKEN": "a-secret-of-mine"}
    done = run_holdfast(*words, cwd=tmp_path, env=environment)
    assert done.returncode == 0
    token = tmp_path / "holdfast-jobs" / "7" / "token"
    assert token.read_text() == "a-secret-of-mine"
    assert token.stat().st_mode & 0o077 == 0
    assert os.stat(token.parent).st_mode & 0o077 == 0
    for name in ("environment", "script"):
        assert "a-secret-of-mine" not in (tmp_path / name).read_text()
    assert "hint: holdfast slurm follow 7" in done.stderr


SBATCH = """
folder=$(dirname $2)
printf 'a line\\nholdfast: said by all\\n' > $folder/7_0.out
printf 'another line\\nholdfast: said by all\\nwithout an end' > $folder/7_1.out
cp outcome $folder/over
echo 7
"""
SQUEUE = """
[ ! -e asked ] || exit 0
touch asked
printf '7_0|RUNNING|n1|None\\n7_1|RUNNING|n2|None\\n'
"""


@pytest.mark.parametrize(
    ("verdict", "status"),
    [("succeeded", 0), ("failed", 1), ("not_formed", 3), ("interrupted", 143)],
)
def test_a_job_is_followed_to_its_end_and_ends_as_it_did(
    run_holdfast: Run, tmp_path: Path, verdict: str, status: int
) -> None:
    stub(tmp_path / "bin", "sbatch", SBATCH)
    stub(tmp_path / "bin", "squeue", SQUEUE)
    (tmp_path / "outcome").write_text(f"{verdict}: it is over\n")
    words = ("slurm", "submit", "--nodes=2", *PROGRAM)
    done = run_holdfast(*words, cwd=tmp_path, env={"PATH": f"{tmp_path / 'bin'}:/usr/bin:/bin"})
    assert done.returncode == status
    assert done.stdout.splitlines() == [
        "7_0: a line",
        "7_0: holdfast: said by all",
        "7_1: another line",
        "7_1: without an end",
    ]
    assert [line for line in done.stderr.splitlines() if "submitted" not in line] == [
        "holdfast: 7_0 on n1, 7_1 on n2: running",
        "holdfast: 7_0, 7_1: no longer in the queue",
        f"holdfast: {sentences.ended_as('7', f'{verdict}: it is over')}",
    ]


def test_a_controller_that_does_not_answer_does_not_end_the_following(
    run_holdfast: Run, tmp_path: Path
) -> None:
    away = "[ -e away ] || { touch away; echo 'squeue: error: no contact' >&2; exit 1; }"
    stub(tmp_path / "bin", "sbatch", "echo 7")
    stub(tmp_path / "bin", "squeue", away)
    words = ("slurm", "submit", "--nodes=2", *PROGRAM)
    done = run_holdfast(*words, cwd=tmp_path, env={"PATH": f"{tmp_path / 'bin'}:/usr/bin:/bin"})
    assert sentences.slurm_is_silent("no contact") in done.stderr
    assert sentences.ended_unrecorded("7") in done.stderr
    assert done.returncode == 1


def test_a_job_that_slurm_has_forgotten_is_found_where_it_was_submitted(
    run_holdfast: Run, tmp_path: Path
) -> None:
    unknown = "echo 'slurm_load_jobs error: Invalid job id specified' >&2; exit 1"
    for name in ("scontrol", "squeue"):
        stub(tmp_path / "bin", name, unknown)
    environment = {"PATH": f"{tmp_path / 'bin'}:/usr/bin:/bin"}
    folder = tmp_path / "holdfast-jobs" / "7"
    done = run_holdfast("slurm", "follow", "7", cwd=tmp_path, env=environment)
    assert done.returncode == 2
    folder.mkdir(parents=True)
    (folder / "token").touch()
    (folder / "over").write_text("succeeded: it is over\n")
    done = run_holdfast("slurm", "follow", "7", cwd=tmp_path, env=environment)
    assert done.stderr == f"holdfast: {sentences.ended_as('7', 'succeeded: it is over')}\n"
    assert done.returncode == 0
