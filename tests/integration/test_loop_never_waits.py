"""The thread that sends heartbeats has nothing to do with a disk: its system calls say so."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from ..free_ports import free_port
from .conftest import Job, StartJob

pytestmark = [
    pytest.mark.skipif(shutil.which("strace") is None, reason="needs strace to see system calls"),
    pytest.mark.timeout(300),
]

CALLS = "%file,read,write,writev,pread64,fsync,fdatasync,ftruncate,close"
OF_NO_DISK = re.compile(
    r'[<"](?:/proc/|/sys/|/dev/|/run/|/memfd:|pipe:|socket:|anon_inode:|UNIX|TCP|@)'
)
# Imports something late, prints, reports steps, and fails in the first round.
PROGRAM = """
import os, sys, time
import holdfast
for step in range(20):
    holdfast.progress(step)
    print("step", step, flush=True)
    print("error", step, file=sys.stderr, flush=True)
    time.sleep(0.02)
    if step == 10 and os.environ["HOLDFAST_ROUND"] == "1" and os.environ["RANK"] == "0":
        import csv, decimal
        raise ValueError("as it was told")
"""


def calls_of_the_loop(trace: Path) -> list[str]:
    """What the first thread did with files, from when the first worker's files were made."""
    lines = trace.read_text(errors="replace").splitlines()
    main = lines[0].split()[0]
    begin = next(n for n, line in enumerate(lines) if "/attempt_0/0" in line)
    return [line for line in lines[begin:] if line.startswith(f"{main} ")]


def names_looked_up(trace: Path, loops: bool) -> list[str]:
    """Where names were looked up: on the first thread, which runs the loop, or on another."""
    lines = trace.read_text(errors="replace").splitlines()
    main = lines[0].split()[0]
    looks = [line for line in lines if '"/etc/hosts"' in line]
    return [line for line in looks if line.startswith(f"{main} ") == loops]


def on_a_disk(line: str) -> bool:
    """Whether a call names a file, by path or by descriptor, that is on a disk."""
    names_a_file = re.search(r'[<"]/', line) is not None
    return names_a_file and OF_NO_DISK.search(line) is None


@pytest.mark.thorough(but=("--tee=3",))
@pytest.mark.parametrize("way", ["--tee=3", "--redirects=3"])
def test_the_loop_does_nothing_to_a_disk_while_workers_run(
    start_program: StartJob, tmp_path: Path, holdfast: Path, way: str
) -> None:
    words = (
        *("--nnodes=2", f"--rdzv-endpoint=localhost:{free_port()}", "--rdzv-id=job"),
        *("--max-restarts=2", f"--snapshot-dir={tmp_path}/record", "--log-dir=logs"),
    )
    nodes: list[Job] = []
    for number in range(2):
        trace = tmp_path / f"trace{number}"
        strace = ("strace", "-f", "-y", "-tt", "-s", "4", "-e", f"trace={CALLS}", "-o", trace)
        command = (*strace, holdfast, "run", *words, way, "program.py")
        nodes.append(start_program(*command, files={"program.py": PROGRAM}))
    for number, node in enumerate(nodes):
        assert node.wait() == 0, node.stderr
        assert "round 2" in node.stderr
        assert names_looked_up(tmp_path / f"trace{number}", loops=True) == []
        assert names_looked_up(tmp_path / f"trace{number}", loops=False), "the endpoint has a name"
        seen = calls_of_the_loop(tmp_path / f"trace{number}")
        assert len(seen) > 20, "it does write to its console"
        found = [line for line in seen if on_a_disk(line)]  # Its console is a file here.
        assert found == [], "\n".join(found[:20])
