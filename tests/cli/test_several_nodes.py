"""`holdfast run` over several nodes: what it says before it starts, and what it refuses."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from holdfast.cli import run, sentences
from holdfast.cli.options import parse_run
from holdfast.engine.secrets import MAKE_ONE


def refused(holdfast: Path, *words: str) -> str:
    """What the installed command says as it refuses to run."""
    ended = subprocess.run(
        [holdfast, "run", *words, __file__],
        check=False,
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert ended.returncode == 2, ended.stderr
    assert ended.stdout == ""
    assert "hint: " in ended.stderr
    return ended.stderr


def test_a_password_without_a_user_is_refused(holdfast: Path, tmp_path: Path) -> None:
    (tmp_path / "password").write_text("open sesame")
    said = refused(
        holdfast,
        "--nnodes=2",
        "--rdzv-backend=etcd",
        "--rdzv-id=job",
        "--rdzv-endpoint=node0",
        f"--rdzv-conf=password_file={tmp_path / 'password'}",
    )
    assert "sesame" not in said


def test_a_password_that_cannot_be_read_is_refused(holdfast: Path, tmp_path: Path) -> None:
    missing = tmp_path / "password"
    words = ("--nnodes=2", "--rdzv-backend=etcd", "--rdzv-endpoint=node0", "--rdzv-id=job")
    said = refused(holdfast, *words, f"--rdzv-conf=user=me,password_file={missing}")
    assert str(missing) in said


def test_a_token_that_cannot_be_read_is_refused_before_anything_runs(
    holdfast: Path, tmp_path: Path
) -> None:
    missing = tmp_path / "token"
    said = refused(holdfast, "--nnodes=2", "--rdzv-endpoint=localhost", f"--token-file={missing}")
    assert str(missing) in said


def test_the_worst_cases_and_the_state_of_the_token_are_said_at_the_start(
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = ("--nnodes=2", "--rdzv-endpoint=node0", "--lease=4", "train.py")
    run._print_about_several_nodes(parse_run(words, {}).config, {"HOLDFAST_TOKEN": "secret"})
    said = capsys.readouterr()
    assert said.out == ""
    assert "(lease 4 s)" in said.err
    assert sentences.short_token(MAKE_ONE) in said.err
    assert "secret" not in said.err


def test_a_password_in_an_endpoint_is_refused_and_not_repeated(holdfast: Path) -> None:
    for place in ("http://me:sesame@node0:2379", "me:sesame@node0"):
        said = refused(holdfast, "--nnodes=2", "--rdzv-backend=etcd", f"--rdzv-endpoint={place}")
        assert "sesame" not in said
