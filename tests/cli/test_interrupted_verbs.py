"""Ctrl-C ends every verb with 130, so that nothing goes on behind `&&`."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.cli.main import VERBS

from ..waiting import until

pytestmark = pytest.mark.slow  # A start of the command for each verb.

ELSEWHERE = {
    "status": (),
    "events": ("--follow",),
    "logs": (),
    "stacks": (),
    "drain": ("node",),
    "restart": (),
    "scale": ("2",),
    "save": (),
    "stop": (),
    "chaos": ("--kill-worker=30s",),
}
"""Those that ask a job; here one that never answers."""
HERE = ("report", "dashboard")
"""Those that read journals; here one that never ends."""
OTHERS = ("jobs", "top", "slurm", "doctor", "where")
"""`top` needs a terminal, and is ended by Ctrl-C as it should be; `where` waits for nothing."""


def test_every_verb_is_here() -> None:
    assert {*ELSEWHERE, *HERE, *OTHERS} == set(VERBS)


@pytest.fixture
def mute() -> Iterator[socket.socket]:
    """Takes connections, and says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(100)
        yield server


class Started:
    """A command that can be interrupted, wherever these tests were started from."""

    def __init__(self, *words: str | Path, cwd: Path | None = None, path: str = "") -> None:
        self.process = subprocess.Popen(
            ["env", "--default-signal=INT", *words],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=cwd,
            env={**os.environ, "PATH": f"{path}:{os.environ['PATH']}"},
            process_group=0,
        )

    def __enter__(self) -> Started:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.communicate()

    def is_over(self) -> bool:
        return self.process.poll() is not None

    def interrupted(self) -> tuple[int, str]:
        """Interrupt it as a terminal does; what it ended with, and what it complained of."""
        os.killpg(self.process.pid, signal.SIGINT)
        _, complaints = self.process.communicate(timeout=100)
        return self.process.returncode, complaints


@pytest.mark.parametrize("verb", ELSEWHERE)
def test_a_verb_that_asks_a_job_ends_with_130(
    holdfast: Path, mute: socket.socket, verb: str
) -> None:
    place = f"--rdzv-endpoint=127.0.0.1:{mute.getsockname()[1]}"
    words = (verb, *ELSEWHERE[verb], place, "--rdzv-id=none")
    with Started(holdfast, *words) as started, mute.accept()[0]:
        assert started.interrupted() == (130, "")


@pytest.mark.parametrize("verb", HERE)
def test_a_verb_that_reads_journals_ends_with_130(
    holdfast: Path, tmp_path: Path, verb: str
) -> None:
    pipe = tmp_path / "journal.jsonl"
    os.mkfifo(pipe)
    with Started(holdfast, verb, pipe) as started, open(pipe, "wb"):  # Now it is read.
        assert started.interrupted() == (130, "")


def test_following_a_job_of_slurm_ends_with_130(holdfast: Path, tmp_path: Path) -> None:
    for name, text in (("squeue", ""), ("scontrol", ": > asked; exec sleep 600")):
        (tmp_path / name).write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / name).chmod(0o755)
    words = (holdfast, "slurm", "follow", "7")
    with Started(*words, cwd=tmp_path, path=str(tmp_path)) as started:
        until((tmp_path / "asked").exists, over=started.is_over)
        assert started.interrupted() == (130, "")


def test_the_doctor_who_waits_for_other_nodes_ends_with_130(holdfast: Path, tmp_path: Path) -> None:
    words = ("--nnodes=2", "--rdzv-backend=file", f"--rdzv-endpoint={tmp_path}", "--rdzv-id=none")
    with Started(holdfast, "doctor", *words) as started:
        until(lambda: any(tmp_path.iterdir()), over=started.is_over)
        status, complaints = started.interrupted()
        assert (status, "Traceback" in complaints) == (130, False), complaints
