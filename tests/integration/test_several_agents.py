"""Several agents on one machine, over loopback: roles, hints, the token and TLS."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from holdfast.engine.sentences import LEADS

from ..free_ports import free_port

DEADLINE_S = 100.0
TOKEN = "a token that is long enough"
TELL = """
import os
names = ("ROLE_NAME", "RANK", "WORLD_SIZE", "ROLE_RANK", "ROLE_WORLD_SIZE", "GROUP_RANK")
print("told", *(os.environ[name] for name in names), os.environ.get("HOLDFAST_TOKEN"), flush=True)
"""
Start = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def start(tmp_path: Path, holdfast: Path) -> Iterator[Start]:
    """Starts an agent of one job that meets at one endpoint."""
    script = tmp_path / "tell.py"
    script.write_text(TELL)
    meet = [f"--rdzv-endpoint=127.0.0.1:{free_port()}", f"--snapshot-dir={tmp_path}", "--no-warm"]
    started: list[subprocess.Popen[str]] = []

    def run(*words: str, token: str | None = None) -> subprocess.Popen[str]:
        environment = {**os.environ, **({"HOLDFAST_TOKEN": token} if token else {})}
        command = [holdfast, "run", *meet, *words, script]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        started.append(subprocess.Popen(command, env=environment, text=True, **pipes))
        return started[-1]

    yield run
    for agent in started:
        agent.kill()
        agent.communicate()


def told(agents: list[subprocess.Popen[str]]) -> list[list[str]]:
    """What the workers of agents that succeed print, in order of their ranks."""
    lines = []
    for agent in agents:
        out, errors = agent.communicate(timeout=DEADLINE_S)
        assert agent.returncode == 0, errors
        lines += [line.split()[1:] for line in out.splitlines() if line.startswith("told ")]
    return sorted(lines, key=lambda words: int(words[1]))


def test_roles_sizes_and_hints_of_different_nodes(start: Start) -> None:
    agents = [
        start("--nnodes=3", "--role=trainer", "--nproc-per-node=2", "--node-rank=2"),
        start("--nnodes=3", "--role=ps", "--nproc-per-node=1", "--node-rank=0"),
        start("--nnodes=3", "--role=trainer", "--nproc-per-node=3", "--node-rank=1"),
    ]
    assert [words[:-1] for words in told(agents)] == [
        ["ps", "0", "6", "0", "1", "0"],
        ["trainer", "1", "6", "0", "5", "1"],
        ["trainer", "2", "6", "1", "5", "1"],
        ["trainer", "3", "6", "2", "5", "1"],
        ["trainer", "4", "6", "3", "5", "2"],
        ["trainer", "5", "6", "4", "5", "2"],
    ]


def test_a_node_may_finish_long_before_the_others(start: Start, tmp_path: Path) -> None:
    """Longer than a lease: its own is renewed until the round is over."""
    (tmp_path / "tell.py").write_text(
        "import os, time\n"
        "if os.environ['RANK'] == '1':\n    time.sleep(10)\n"
        "print('told', os.environ['RANK'], os.environ['HOLDFAST_ROUND'], flush=True)\n"
    )
    agents = [start("--nnodes=2", "--lease=8") for _ in range(2)]
    lines = []
    for agent in agents:
        out, errors = agent.communicate(timeout=DEADLINE_S)
        assert agent.returncode == 0, errors
        lines += out.splitlines()
    assert sorted(lines) == ["told 0 1", "told 1 1"]


def test_who_has_the_token_joins_and_workers_do_not_get_it(start: Start) -> None:
    agents = [start("--nnodes=2", token=TOKEN) for _ in range(2)]
    assert [words[-1] for words in told(agents)] == ["None", "None"]


@pytest.mark.parametrize("token", ["another token that is long", None])
def test_who_has_not_the_token_is_refused_and_disturbs_nobody(
    start: Start, token: str | None
) -> None:
    first = start("--nnodes=2", token=TOKEN)
    assert first.stderr is not None
    while LEADS not in first.stderr.readline():
        assert first.poll() is None
    stranger = start("--nnodes=2", token=token)
    _, errors = stranger.communicate(timeout=DEADLINE_S)
    assert stranger.returncode == 3
    assert "token" in errors
    assert len(told([first, start("--nnodes=2", token=TOKEN)])) == 2


@pytest.mark.skipif(shutil.which("openssl") is None, reason="certificates are made with openssl")
def test_a_job_whose_connections_are_encrypted(start: Start, tmp_path: Path) -> None:
    certificate, key = tmp_path / "node.pem", tmp_path / "node.key"
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "ed25519", "-nodes", "-days", "1"),
            *("-keyout", key, "-out", certificate, "-subj", "/CN=127.0.0.1"),
            *("-addext", "subjectAltName=IP:127.0.0.1"),
        ],
        check=True,
        capture_output=True,
    )
    words = [f"--tls-cert={certificate}", f"--tls-key={key}", f"--tls-ca={certificate}"]
    agents = [start("--nnodes=2", *words, token=TOKEN) for _ in range(2)]
    assert len(told(agents)) == 2
