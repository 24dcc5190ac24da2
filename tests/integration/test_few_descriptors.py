"""Strangers take what connections they can get, at every port of a node that may open few files."""

from __future__ import annotations

import contextlib
import resource
import select
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from ..free_ports import free_port
from .conftest import Job, StartJob
from .health_probes import health_port, probe

FEW = 256
STRANGERS = 300
# Fails once it is told to, and ends when it is told to.
PROGRAM = """
import os, sys, time
round = os.environ["HOLDFAST_ROUND"]
open("began." + os.environ["WORLD_SIZE"] + "." + round + "." + os.environ["RANK"], "w").close()
limit = __import__("resource").getrlimit(__import__("resource").RLIMIT_NOFILE)
open("limit." + os.environ["RANK"], "w").write(str(limit))
while not os.path.exists("finish"):
    if round == "1" and os.path.exists("fail"):
        sys.exit(3)
    time.sleep(0.02)
"""


@pytest.fixture
def many_here() -> Iterator[None]:
    """This process has as many descriptors as it may have: it is the strangers."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < 4 * STRANGERS:
        pytest.skip(f"needs {4 * STRANGERS} descriptors, and {hard} are allowed here")
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def strangers_at(port: int, says: bytes, opened: contextlib.ExitStack) -> list[socket.socket]:
    """Connections that are open, and say this; none waits for an answer."""
    held = []
    for _ in range(STRANGERS):
        sock = opened.enter_context(socket.socket())
        sock.setblocking(False)
        sock.connect_ex(("127.0.0.1", port))
        held.append(sock)
    select.select([], held[:1], [], 5)
    for sock in held:
        with contextlib.suppress(OSError):
            sock.send(says)
    return held


def start(holdfast: Path, start_program: StartJob, limits: str, *words: str) -> Job:
    command = f'{limits}; exec "$@"'
    run = (holdfast, "run", "--log-dir", "logs", "--no-warm", "--health-port=0", *words)
    return start_program("bash", "-c", command, "bash", *run, "program.py",
                         files={"program.py": PROGRAM})  # fmt: skip


@pytest.mark.parametrize("says", [b"", b"GET /liv", b"\0\0\0\x20"])
def test_a_job_goes_on_whatever_strangers_hold_open(
    holdfast: Path, start_program: StartJob, many_here: None, says: bytes
) -> None:
    port = free_port()
    meet = ("--nnodes=1:2", f"--rdzv-endpoint=127.0.0.1:{port}", "--rdzv-id=few", "--last-call=0.2")
    job = start(
        holdfast, start_program, f"ulimit -n {FEW}", "-n=4", "--max-restarts=1", "--dashboard=0",
        "--restart-backoff=0", *meet,
    )  # fmt: skip
    job.until(lambda: "dashboard: http://" in job.stderr, "the dashboard")
    job.until_files("began.4.1.0")
    page = int(job.stderr.partition("dashboard: http://127.0.0.1:")[2].partition("/")[0])
    with contextlib.ExitStack() as opened:
        for there in (port, health_port(job), page):
            strangers_at(there, says, opened)
        (job.folder / "fail").touch()
        job.until_files(*(f"began.4.2.{rank}" for rank in range(4)))
        job.until(lambda: probe(health_port(job), "/livez").status == 200, "a probe")
        (job.folder / "finish").touch()
        assert job.wait() == 0, job.stderr


def test_an_agent_raises_its_limit_and_its_workers_keep_theirs(
    holdfast: Path, start_program: StartJob
) -> None:
    job = start(holdfast, start_program, f"ulimit -S -n {FEW}", "-n=1")
    job.until(lambda: job.read("limit.0").endswith(")"), "the worker's limit")
    soft, hard = resource.prlimit(job.process.pid, resource.RLIMIT_NOFILE)
    assert soft == hard
    assert job.read("limit.0") == f"({FEW}, {hard})"
    (job.folder / "finish").touch()
    assert job.wait() == 0, job.stderr
