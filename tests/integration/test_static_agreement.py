"""Static nodes: their workers find the same under `holdfast run` as under torchrun."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from ..free_ports import free_port
from .conftest import job_environment

# Twice nine processes that import PyTorch.
pytestmark = [pytest.mark.torch, pytest.mark.thorough, pytest.mark.timeout(300)]

DEADLINE_S = 140.0
TELL = """
import json, os, sys
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
total = torch.tensor([dist.get_rank()])
dist.all_reduce(total)
found = {name: value for name, value in os.environ.items() if name in sys.argv[2:]}
with open(f"{sys.argv[1]}/{dist.get_rank()}", "w") as file:
    json.dump({**found, "sum": int(total)}, file)
dist.barrier()
dist.destroy_process_group()
"""
SAME = (
    "RANK", "LOCAL_RANK", "GROUP_RANK", "ROLE_RANK", "ROLE_NAME",
    "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_WORLD_SIZE", "ROLE_WORLD_SIZE",
    "MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RESTART_COUNT", "TORCHELASTIC_MAX_RESTARTS",
    "TORCHELASTIC_RUN_ID", "TORCH_NCCL_ASYNC_ERROR_HANDLING", "OMP_NUM_THREADS",
)  # fmt: skip
"""All but `TORCHELASTIC_USE_AGENT_STORE`: at a port that was given, rank 0 serves the store."""
NPROC = (2, 1, 3)
Start = Callable[..., subprocess.Popen[bytes]]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts a command; what is left of it is killed after the test."""
    started: list[subprocess.Popen[bytes]] = []

    def run(command: Sequence[str | Path]) -> subprocess.Popen[bytes]:
        environment = job_environment({"GLOO_SOCKET_IFNAME": "lo", "TMPDIR": str(tmp_path)})
        process = subprocess.Popen(command, env=environment, stderr=subprocess.PIPE)
        started.append(process)
        return process

    yield run
    for process in started:
        process.kill()
        process.communicate()


def found_under(launcher: Sequence[str | Path], start: Start, folder: Path, port: int) -> list[Any]:
    """What the workers of three nodes find, by rank."""
    folder.mkdir()
    script = folder / "tell.py"
    script.write_text(TELL)
    static = ["--nnodes=3", "--master-addr=127.0.0.1", f"--master-port={port}"]
    same = [*static, "--rdzv-id=night", "--max-restarts=2"]
    program = [script, folder, *SAME]
    nodes = [
        start([*launcher, *same, f"--node-rank={rank}", f"--nproc-per-node={count}", *program])
        for rank, count in reversed(list(enumerate(NPROC)))
    ]
    for node in nodes:
        _, errors = node.communicate(timeout=DEADLINE_S)
        assert node.returncode == 0, errors.decode()
    return [json.loads((folder / str(rank)).read_text()) for rank in range(sum(NPROC))]


def test_workers_of_static_nodes_find_what_torchrun_gives_them(
    start: Start, tmp_path: Path, holdfast: Path
) -> None:
    port, beside = free_port(), free_port("")
    torchrun = (sys.executable, "-m", "torch.distributed.run")
    theirs = found_under(torchrun, start, tmp_path / "theirs", port)
    meet = (f"--rdzv-conf=coordinator_port={beside}", f"--snapshot-dir={tmp_path}")
    ours = found_under((holdfast, "run", *meet), start, tmp_path / "ours", port)
    assert ours == theirs
    assert {one["MASTER_PORT"] for one in ours} == {str(port)}
