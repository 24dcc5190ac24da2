"""`holdfast slurm`: what it prints without a cluster, and what it says to what cannot be."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess

import pytest

from holdfast.cli.slurm import sort, submission
from holdfast.core.protocol.errors import UsageError

RunHoldfast = Callable[..., "CompletedProcess[str]"]
PROGRAM = ("--", "train.py")


def test_a_dry_run_prints_the_script_and_makes_nothing(
    run_holdfast: RunHoldfast, tmp_path: Path
) -> None:
    words = ("slurm", "submit", "--nodes", "2:8", "--spares=1", "-p", "gpu", "--dry-run")
    done = run_holdfast(*words, *PROGRAM, "--epochs", "3", cwd=tmp_path)
    assert done.returncode == 0
    assert done.stdout.startswith("#!/bin/bash\n")
    assert "#SBATCH --array=0-8" in done.stdout
    assert "#SBATCH -p gpu" in done.stdout
    assert "train.py --epochs 3" in done.stdout
    assert done.stderr == ""
    assert list(tmp_path.iterdir()) == []


def test_no_secret_is_in_the_script(run_holdfast: RunHoldfast, tmp_path: Path) -> None:
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
def test_help_is_there(call_holdfast: RunHoldfast, words: tuple[str, ...], said: str) -> None:
    done = call_holdfast("slurm", *words)
    assert done.returncode == 0
    assert said in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 100


def test_options_of_the_program_are_not_ours(run_holdfast: RunHoldfast, tmp_path: Path) -> None:
    words = ("slurm", "submit", "--nodes=2", "--dry-run", *PROGRAM, "--help", "--nodes", "9")
    done = run_holdfast(*words, cwd=tmp_path)
    assert "train.py --help --nodes 9" in done.stdout


@pytest.mark.parametrize(
    ("words", "message", "hint"),
    [
        (("--nodes=2",), "nothing to run", "put -- before the program"),
        (("--nodes=2", "--"), "nothing to run", "after --"),
        (PROGRAM, "how many nodes?", "--nodes 4"),
        (("--nodes", "--spares", "1", *PROGRAM), "--nodes/-N: expected one argument", "--help"),
        (("--nodes=x", *PROGRAM), "--nodes: 'x' is neither", "2"),
        (("--nodes=8:2", *PROGRAM), "the larger number first", "smaller"),
        (("--nodes=2", "--spares=-1", *PROGRAM), "--spares: -1 is out of range", "0 or more"),
        (
            ("--nodes=2", "--array=0-3", *PROGRAM),
            "--array cannot be passed to sbatch here",
            "--nodes",
        ),
        (
            ("--nodes=2", "-n", "4", *PROGRAM),
            "-n cannot be passed to sbatch here",
            "--nproc-per-node",
        ),
        (("--nodes=2", "-o", "x", *PROGRAM), "-o cannot be passed to sbatch here", "--folder"),
        (("train.py", "--nodes=2", *PROGRAM), "'train.py' is neither", "after --"),
        (
            ("--nodes=2", "--", "--nnodes=2", "t.py"),
            "--nnodes is set by holdfast slurm",
            "leave it out",
        ),
        (("--nodes=2", "--", "--zzz", "t.py"), "no option --zzz", "--help lists"),
        (("--nodes=2", "--rdzv-backend=c10d", *PROGRAM), "'c10d' lives on one node", "etcd"),
        (
            ("--nodes=2", "--rdzv-backend=etcd", *PROGRAM),
            "etcd needs a --rdzv-endpoint",
            "HOST:2379",
        ),
        (("--nodes=2", "--rdzv-endpoint=e", *PROGRAM), "--rdzv-endpoint is for etcd", "--folder"),
        (("--nodes=2", "--folder=/a%b", *PROGRAM), "does not accept in a path", "without %"),
    ],
)
def test_what_cannot_be_is_refused_with_a_hint(
    words: tuple[str, ...], message: str, hint: str
) -> None:
    with pytest.raises(UsageError) as caught:
        submission(sort(words))
    assert message in caught.value.message
    assert hint in caught.value.hint


def test_a_range_may_be_written_as_slurm_writes_it() -> None:
    job = submission(sort(("-N", "2-8", *PROGRAM)))
    assert (job.min_nodes, job.max_nodes) == (2, 8)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((), "the following arguments are required: submit|follow"),
        (("sumbit",), "invalid choice: 'sumbit' (choose from 'submit', 'follow')"),
        (("follow",), "the following arguments are required: JOB"),
        (("submit", "--nodes=2", *PROGRAM), "there is no sbatch here"),
        (("follow", "7"), "there is no squeue here"),
    ],
)
def test_a_mistake_ends_with_a_sentence_a_hint_and_status_2(
    run_holdfast: RunHoldfast, tmp_path: Path, words: tuple[str, ...], message: str
) -> None:
    done = run_holdfast("slurm", *words, cwd=tmp_path, env={"PATH": "/nowhere"})
    assert done.returncode == 2
    said, hint = done.stderr.splitlines()
    assert message in said
    assert hint.startswith("hint: ")
    assert list(tmp_path.iterdir()) == []


def stub(folder: Path, name: str, text: str) -> None:
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(f"#!/bin/sh\n{text}\n")
    (folder / name).chmod(0o755)


def test_what_sbatch_refuses_is_told_in_its_words_and_leaves_nothing(
    run_holdfast: RunHoldfast, tmp_path: Path
) -> None:
    stub(tmp_path / "bin", "sbatch", "echo 'sbatch: error: invalid partition' >&2; exit 1")
    path = f"{tmp_path / 'bin'}:/usr/bin:/bin"
    words = ("slurm", "submit", "--nodes=2", *PROGRAM)
    done = run_holdfast(*words, cwd=tmp_path, env={"PATH": path})
    assert done.returncode == 2
    assert "sbatch refused the job: invalid partition" in done.stderr
    assert list((tmp_path / "holdfast-jobs").iterdir()) == []


def test_a_folder_that_cannot_be_made_is_told(run_holdfast: RunHoldfast, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    stub(tmp_path / "bin", "sbatch", "exit 1")
    path = f"{tmp_path / 'bin'}:/usr/bin:/bin"
    words = ("slurm", "submit", "--nodes=2", "--folder=file/jobs", *PROGRAM)
    done = run_holdfast(*words, cwd=tmp_path, env={"PATH": path})
    assert done.returncode == 2
    assert "cannot make" in done.stderr
    assert "hint: --folder must be a place that you can write to" in done.stderr


def test_the_token_is_its_owners_alone_and_is_not_handed_to_slurm(
    run_holdfast: RunHoldfast, tmp_path: Path
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
    ("verdict", "status"), [("succeeded", 0), ("failed", 1), ("not_formed", 3)]
)
def test_a_job_is_followed_to_its_end_and_ends_as_it_did(
    run_holdfast: RunHoldfast, tmp_path: Path, verdict: str, status: int
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
        f"holdfast: job 7 {verdict}: it is over",
    ]


def test_a_controller_that_does_not_answer_does_not_end_the_following(
    run_holdfast: RunHoldfast, tmp_path: Path
) -> None:
    away = "[ -e away ] || { touch away; echo 'squeue: error: no contact' >&2; exit 1; }"
    stub(tmp_path / "bin", "sbatch", "echo 7")
    stub(tmp_path / "bin", "squeue", away)
    words = ("slurm", "submit", "--nodes=2", *PROGRAM)
    done = run_holdfast(*words, cwd=tmp_path, env={"PATH": f"{tmp_path / 'bin'}:/usr/bin:/bin"})
    assert "Slurm does not answer (no contact); the job goes on without it" in done.stderr
    assert "job 7 has ended, but no node recorded how" in done.stderr
    assert done.returncode == 1


def test_a_job_that_slurm_has_forgotten_is_found_where_it_was_submitted(
    run_holdfast: RunHoldfast, tmp_path: Path
) -> None:
    unknown = "echo 'slurm_load_jobs error: Invalid job id specified' >&2; exit 1"
    for name in ("scontrol", "squeue"):
        stub(tmp_path / "bin", name, unknown)
    environment = {"PATH": f"{tmp_path / 'bin'}:/usr/bin:/bin"}
    folder = tmp_path / "holdfast-jobs" / "7"
    done = run_holdfast("slurm", "follow", "7", cwd=tmp_path, env=environment)
    assert done.returncode == 2
    assert "Slurm does not know job 7" in done.stderr
    folder.mkdir(parents=True)
    (folder / "token").touch()
    (folder / "over").write_text("succeeded: it is over\n")
    done = run_holdfast("slurm", "follow", "7", cwd=tmp_path, env=environment)
    assert done.stderr == "holdfast: job 7 succeeded: it is over\n"
    assert done.returncode == 0
