"""What others' systems have taken for a hang and was none, with real processes.

Each job does the healthy thing first, for several times as long as a job may stand still, and
nobody may be told of anything. Then it hangs indeed, in a way that looks much the same, and that
has to be told: so a watch that does not watch fails here, too.

The real hang comes in a phase of its own, in which steps were short: what the healthy part took
allows five times as much of the same phase.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import textwrap
import time
from pathlib import Path

import pytest

from ..waiting import until as wait_until
from .conftest import Job, StartJob
from .disks import stalling_disk

HANG_AFTER_S = 2
QUIET_S = 3 * HANG_AFTER_S
SOON = f"--hang-after={HANG_AFTER_S}"
HEAD = f"""
import ctypes, os, sys, time
import holdfast
rank, number = int(os.environ["RANK"]), os.environ["HOLDFAST_ROUND"]
began = time.monotonic()
def lasts():
    return time.monotonic() < began + {QUIET_S}
def barrier(name):
    open(f"{{name}}.{{number}}.{{rank}}", "w").close()
    while not all(os.path.exists(f"{{name}}.{{number}}.{{one}}") for one in (0, 1)):
        time.sleep(0.05)
def steps():
    for step in range(20):
        holdfast.progress(step)
        time.sleep(0.01)
def never_comes():
    os.read(os.pipe()[0], 1)
"""
HANGS_TOO = """
open(f"healthy.{rank}", "w").close()
holdfast.phase("later")
steps()
"""
CASES = {
    "evaluation on rank 0 while the others wait": (
        """
        steps()
        if rank == 0:
            while lasts():
                sum(range(10000))
        barrier("evaluated")
        """,
        """
        def evaluate():
            never_comes()
        if rank == 0:
            evaluate()
        barrier("evaluated again")
        """,
        ("rank 0 is in never_comes", "rank 1 waits in barrier"),
    ),
    "an evaluation that waits more than it computes": (
        """
        steps()
        def sample(depth):
            return sample(depth - 1) if depth else time.sleep(0.2)
        depth = 0
        while rank == 0 and lasts():
            sample(depth := depth + 1)
        barrier("evaluated")
        """,
        """
        if rank == 0:
            never_comes()
        barrier("evaluated again")
        """,
        ("rank 0 is in never_comes", "rank 1 waits in barrier"),
    ),
    "storage that sends a little at a time": (
        """
        steps()
        def read_slowly():
            while lasts():
                open("data", "wb").write(b"a little")
                time.sleep(0.3)
        if rank == 0:
            read_slowly()
        barrier("loaded")
        """,
        """
        if rank == 0:
            never_comes()
        barrier("loaded again")
        """,
        ("rank 0 is in never_comes", "rank 1 waits in barrier"),
    ),
    "a checkpoint on rank 0 while the others wait": (
        """
        steps()
        if rank == 0:
            with holdfast.phase("checkpoint"):
                time.sleep(6)
        barrier("saved")
        """,
        """
        if rank == 0:
            with holdfast.phase("checkpoint 2"):
                steps()
                never_comes()
        barrier("saved again")
        """,
        ("stalled for", " in checkpoint 2/later", "rank 0 is in never_comes"),
    ),
    "a first step that compiles": (
        """
        holdfast.progress(0)
        while lasts():
            time.sleep(0.1)
        holdfast.progress(1)
        """,
        "never_comes()",
        ("ranks 0 and 1 are in never_comes",),
    ),
    "a start without a sign": (
        """
        while lasts():
            time.sleep(0.1)
        """,
        "never_comes()",
        ("ranks 0 and 1 are in never_comes",),
    ),
    "data that rank 0 loads while the others wait": (
        """
        steps()
        while rank == 0 and lasts():
            open("data", "wb").write(bytes(1 << 21))
            time.sleep(0.1)
        barrier("loaded")
        """,
        """
        if rank == 0:
            never_comes()
        barrier("loaded again")
        """,
        ("rank 0 is in never_comes", "rank 1 waits in barrier"),
    ),
    "data that rank 0 reads in a silent start while the others wait": (
        """
        zeros = open("/dev/zero", "rb")
        while rank == 0 and lasts():
            zeros.read(1 << 16)
            time.sleep(0.05)
        barrier("read")
        """,
        """
        if rank == 0:
            never_comes()
        barrier("read again")
        """,
        ("rank 0 is in never_comes", "rank 1 waits in barrier"),
    ),
    "a computation that holds the interpreter": (
        """
        steps()
        while rank == 0 and lasts():
            sum(range(3 * 10**6))
        barrier("computed")
        """,
        """
        def holds_the_lock():
            reader, writer = os.pipe()
            ctypes.PyDLL(None).read(reader, ctypes.create_string_buffer(1), 1)
        holds_the_lock()
        """,
        ("ranks 0 and 1 are in holds_the_lock",),
    ),
    "a begin whose end was lost in a restart": (
        """
        if number == "1":
            steps()
            holdfast.phase("checkpoint").__enter__()
            steps()
            sys.exit(3)
        while lasts():
            time.sleep(0.1)
        steps()
        """,
        "never_comes()",
        ("been stalled for", " in later, where", "ranks 0 and 1 are in never_comes"),
    ),
}


def program(healthy: str, hung: str) -> str:
    return HEAD + textwrap.dedent(healthy) + HANGS_TOO + textwrap.dedent(hung)


def expect_silence_then_a_word(job: Job, *words: str, ranks: int = 2) -> None:
    """Nobody is told of the healthy part, and everybody of what comes after it."""
    job.until_files(*(f"healthy.{rank}" for rank in range(ranks)))
    assert "the job hangs" not in job.stderr
    job.until(lambda: "the job hangs" in job.stderr, "a word of the hang")
    line = next(line for line in job.stderr.splitlines() if "the job hangs" in line)
    for word in words:
        assert word in line


@pytest.mark.thorough(
    but=(
        "evaluation on rank 0 while the others wait",
        "a checkpoint on rank 0 while the others wait",
        "a first step that compiles",
    )
)
@pytest.mark.parametrize("what", CASES)
def test_what_is_healthy_is_not_told_of_and_a_hang_after_it_is(start_job, what: str) -> None:
    healthy, hung, words = CASES[what]
    job = start_job("-n=2", SOON, "--max-restarts=1", script=program(healthy, hung))
    expect_silence_then_a_word(job, *words)


HELD = program(
    """
    holdfast.phase("held")
    open("new", "w").write(str(os.getpid()))
    os.rename("new", "pid")
    while not os.path.exists("go"):
        holdfast.progress(int(time.monotonic()))
        time.sleep(0.01)
    """,
    "never_comes()",
)


def test_a_machine_that_was_paused_and_resumed(start_job: StartJob) -> None:
    job = start_job(SOON, script=HELD)
    job.until_files("pid")
    paused = job.running()
    for pid in paused:
        os.kill(pid, signal.SIGSTOP)
    until = time.monotonic() + QUIET_S
    wait_until(lambda: time.monotonic() > until, "a long pause")
    for pid in [job.process.pid, *paused]:  # The agent looks before anybody moves.
        os.kill(pid, signal.SIGCONT)
    (job.folder / "go").touch()
    expect_silence_then_a_word(job, "rank 0 is in never_comes", ranks=1)


@pytest.mark.skipif(shutil.which("gdb") is None, reason="needs gdb")
def test_a_debugger_that_holds_a_worker(start_job: StartJob) -> None:
    job = start_job(SOON, script=HELD)
    job.until_files("pid")
    hold = "shell touch attached; until [ -e detach ]; do sleep 0.05; done"
    debugger = subprocess.Popen(
        ["gdb", "-nx", "-batch", "-p", job.read("pid"), "-ex", hold, "-ex", "detach"],
        cwd=job.folder,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        job.until_files("attached")
        until = time.monotonic() + QUIET_S
        wait_until(lambda: time.monotonic() > until, "a long session")
        assert debugger.poll() is None, "it held nobody"
    finally:
        (job.folder / "detach").touch()
        debugger.wait(60)
    (job.folder / "go").touch()
    expect_silence_then_a_word(job, "rank 0 is in never_comes", ranks=1)


@pytest.mark.root
def test_a_worker_whose_disk_stalls(start_job: StartJob, tmp_path: Path, holdfast: Path) -> None:
    healthy = """
        steps()
        def save():
            open("trying", "w").close()
            os.write(descriptor, bytes(1 << 16))
        descriptor = os.open(os.environ["PLACE"] + "/model.bin", os.O_CREAT | os.O_WRONLY)
        while not os.path.exists("stalled"):
            time.sleep(0.01)
        save()
    """
    with stalling_disk(tmp_path) as disk:
        name = f"stalled-{os.getpid()}"
        words = (SOON, f"--rdzv-id={name}")
        place = {"PLACE": str(disk.folder)}
        job = start_job(*words, script=program(healthy, "never_comes()"), env=place)
        job.until((disk.folder / "model.bin").exists, "its file")
        disk.stall()
        (job.folder / "stalled").touch()
        job.until_files("trying")
        until = time.monotonic() + QUIET_S
        wait_until(lambda: time.monotonic() > until, "a long stall")
        assert "the job hangs" not in job.stderr
        asked = [str(holdfast), "stacks", name]
        told = subprocess.run(asked, capture_output=True, text=True, timeout=60, check=True).stdout
        assert f"waiting for a file on {disk.folder}" in told
        full = Path(job.folder, told.partition("in full: ")[2].strip()).read_text()
        assert f"({disk.folder}/model.bin)" in full
        disk.answer()
        expect_silence_then_a_word(job, "rank 0 is in never_comes", ranks=1)
        job.clean_up()
