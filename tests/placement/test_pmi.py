"""Asking an MPI process manager where rank 0 is."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.placement.pmi import PmiJob, exchange_host

HELLO = """\
import os
from pathlib import Path
place = Path(__file__).with_name("rank." + os.environ["RANK"])
place.write_text(f"PMI_RANK: {os.environ.get('PMI_RANK')}")
"""


class Manager:
    """A process manager of two ranks, with a table, a barrier, and nothing else."""

    def __init__(self) -> None:
        self.table: dict[str, str] = {}
        self.barrier = threading.Barrier(2)
        self.lines = [socket.socketpair() for _ in range(2)]
        self.threads = [
            threading.Thread(target=self.serve, args=(theirs,)) for _, theirs in self.lines
        ]

    def variables(self, rank: int) -> dict[str, str]:
        return {"PMI_FD": str(self.lines[rank][0].fileno())}

    def serve(self, line: socket.socket) -> None:
        with line, line.makefile("rw", newline="\n") as lines:
            for asked in lines:
                lines.write(self.answer(dict(word.split("=") for word in asked.split())) + "\n")
                lines.flush()

    def answer(self, asked: dict[str, str]) -> str:
        match asked["cmd"]:
            case "init":
                return "cmd=response_to_init pmi_version=1 pmi_subversion=1 rc=0"
            case "get_my_kvsname":
                return "cmd=my_kvsname kvsname=kvs_17_0"
            case "put":
                self.table[asked["key"]] = asked["value"]
                return "cmd=put_result rc=0 msg=success"
            case "barrier_in":
                self.barrier.wait(timeout=60)
                return "cmd=barrier_out"
            case "get" if asked["key"] in self.table:
                value = self.table[asked["key"]]
                return f"cmd=get_result rc=0 msg=success value={value}"
            case "finalize":
                return "cmd=finalize_ack"
        return "cmd=get_result rc=-1 msg=unknown"


@pytest.fixture
def manager() -> Iterator[Manager]:
    made = Manager()
    for thread in made.threads:
        thread.start()
    yield made
    for ours, _ in made.lines:
        ours.close()
    for thread in made.threads:
        thread.join(timeout=60)


def ask_as_both(manager: Manager, ranks: tuple[int, int]) -> list[PmiJob | None]:
    heard: list[PmiJob | None] = []

    def ask(rank: int) -> None:
        heard.append(exchange_host(manager.variables(rank), ranks[rank], f"host{rank}"))

    threads = [threading.Thread(target=ask, args=(rank,)) for rank in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    return heard


def test_every_rank_hears_where_rank_0_is(manager: Manager) -> None:
    job = PmiJob(host="host0", name="kvs_17_0")
    assert ask_as_both(manager, (0, 1)) == [job, job]


def test_a_manager_that_has_nothing_to_tell_is_none(manager: Manager) -> None:
    assert ask_as_both(manager, (1, 1)) == [None, None]


@pytest.mark.parametrize("number", ["", "no", "9999"])
def test_without_a_line_there_is_nobody_to_ask(number: str) -> None:
    assert exchange_host({"PMI_FD": number}, 0, "host0") is None


def test_what_is_no_manager_is_not_waited_for(tmp_path: Path) -> None:
    with open(tmp_path / "file", "w") as file:
        assert exchange_host({"PMI_FD": str(file.fileno())}, 0, "host0") is None
    ours, theirs = socket.socketpair()
    theirs.close()
    with ours:
        assert exchange_host({"PMI_FD": str(ours.fileno())}, 0, "host0") is None


@pytest.mark.skipif(shutil.which("mpiexec.hydra") is None, reason="there is no mpiexec.hydra here")
def test_hydra_runs_two_nodes_with_no_flags(holdfast: Path, tmp_path: Path) -> None:
    """Both nodes are this machine: hydra forks what it would start elsewhere."""
    program = tmp_path / "hello.py"
    program.write_text(HELLO)
    hosts = ("-launcher", "fork", "-hosts", "localhost,127.0.0.1")
    ended = subprocess.run(
        ["mpiexec.hydra", *hosts, "-n", "2", "-ppn", "1", holdfast, "run", "-n1", program],
        env={**os.environ, "PYTHON_EXEC": sys.executable},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    assert "MPI job: 2 nodes, this is node 1, meeting at localhost:" in ended.stderr
    assert {path.name: path.read_text() for path in tmp_path.glob("rank.*")} == {
        "rank.0": "PMI_RANK: None",
        "rank.1": "PMI_RANK: None",
    }
