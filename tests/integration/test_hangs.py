"""Jobs that hang, and jobs that only look like it, with real processes.

The floor is two seconds here, so that a hang is found soon; what must not be taken for one stays
for several times as long.
"""

from __future__ import annotations

import os
import re
import signal

import pytest

from holdfast.processes.monitoring import debugger

from ..free_ports import free_port

HANG_AFTER_S = 2
QUIET_S = 5 * HANG_AFTER_S
STEPS = """
import os, sys, time
import holdfast
rank = int(os.environ["RANK"])
def barrier():
    while not os.path.exists("go"):
        time.sleep(0.05)
for step in range(20):
    holdfast.progress(step)
    time.sleep(0.01)
"""
SOON = f"--hang-after={HANG_AFTER_S}"


def test_a_job_that_hangs_is_told_of_with_where_everybody_is(start_job) -> None:
    script = f"""
{STEPS}
def load_batch():
    os.read(os.pipe()[0], 1)
if rank == 1:
    open("pid", "w").write(str(os.getpid()))
    load_batch()
barrier()
"""
    job = start_job("-n=3", SOON, script=script)
    job.until(lambda: "the job hangs" in job.stderr, "a word of it")
    line = next(line for line in job.stderr.splitlines() if "the job hangs" in line)
    assert "all workers have been stalled for" in line
    assert "ranks 0 and 2 wait in" in line
    assert "rank 1 is in load_batch at program.py:" in line
    assert (job.folder / line.rpartition("their stacks: ")[2]).read_text().count("rank ") >= 3
    assert job.process.poll() is None, "nothing is done about it"
    assert job.stderr.count("the job hangs") == 1


@pytest.mark.thorough
def test_a_hang_over_two_nodes_is_said_with_where_all_are_and_the_odd_one_is_ended(
    start_job, tmp_path
) -> None:
    script = f"""
{STEPS}
def load_batch():
    os.read(os.pipe()[0], 1)
if os.environ["HOLDFAST_ROUND"] == "1":
    if rank == 2:
        load_batch()
    barrier()
"""
    meet = ("--nnodes=2", f"--rdzv-endpoint=127.0.0.1:{free_port()}", "--rdzv-id=hangs")
    words = ("-n=2", SOON, "--hang=restart", "--max-restarts=1", "--no-warm", *meet)
    nodes = [start_job(*words, script=script) for _ in range(2)]
    assert [node.wait() for node in nodes] == [0, 0]
    said = [line for node in nodes for line in node.stderr.splitlines() if "on 2 nodes" in line]
    assert len(said) == 1, said
    assert "the job hangs: all workers on 2 nodes have been stalled for" in said[0]
    assert re.search(r"; rank 2 on \S+ is in load_batch at program.py:\d+", said[0])
    assert [node.stderr.count("ending rank 2 for it") for node in nodes].count(1) == 1
    assert all(node.stderr.count("their stacks: ") == 1 for node in nodes), "each says its own"
    assert not any("slow, but" in node.stderr for node in nodes), "to be asked is no movement"


SILENT = """
import os, sys, time
rank = int(os.environ["RANK"])
def never_comes():
    os.read(os.pipe()[0], 1)
def barrier():
    os.read(os.pipe()[0], 1)
if os.environ["HOLDFAST_ROUND"] == "1":
"""


@pytest.mark.parametrize(
    ("rank_1", "words"),
    [
        ("never_comes()", "ending rank 1 for it"),
        (
            "sys.exit(0)",
            r"; rank 1 had ended with exit code 0 \d+ s before, and may be what they wait for; ",
        ),
    ],
    ids=["stuck", "ended"],
)
def test_a_job_that_says_nothing_is_tried_again_where_a_cause_is_known(
    run_job, rank_1: str, words: str
) -> None:
    script = SILENT + f"    {rank_1} if rank == 1 else barrier()\n"
    job = run_job("-n=3", SOON, "--hang=restart", "--max-restarts=1", script=script)
    assert job.wait() == 0
    assert job.stderr.count("the job hangs: ") == 1
    assert re.search(words, job.stderr)
    assert "restarting (1 of 1)" in job.stderr


def test_a_job_that_hangs_is_tried_again_if_that_is_wanted(run_job) -> None:
    script = f"""
{STEPS}
if os.environ["HOLDFAST_ROUND"] == "1":
    barrier()
"""
    job = run_job("-n=2", SOON, "--hang=restart", "--max-restarts=1", script=script)
    assert job.wait() == 0
    assert "ending rank 0 for it (--hang restart)" in job.stderr
    assert "the job hung, and it was ended in" in job.stderr
    assert "restarting (1 of 1)" in job.stderr
    path = re.search(r"it was ended in .*; stacks: (.*\.txt)", job.stderr)
    assert path is not None, "the failure names where the stacks are"
    full = (job.folder / path[1]).read_text()
    assert ("With frames of C" in full) == bool(debugger.installed())


def test_a_job_that_goes_on_by_itself_says_so(start_job) -> None:
    script = f"""
{STEPS}
barrier()
for step in range(20, 1000):
    holdfast.progress(step)
    time.sleep(0.01)
    if os.path.exists("end"):
        break
"""
    job = start_job(SOON, script=script)
    job.until(lambda: "the job hangs" in job.stderr, "a word of it")
    (job.folder / "go").touch()
    job.until(lambda: "the workers of this node are progressing again" in job.stderr, "its end")
    (job.folder / "end").touch()
    assert job.wait() == 0


LONG = f"""
began = time.monotonic()
def lasts():
    return time.monotonic() < began + {QUIET_S}
"""
HEALTHY = {
    "evaluation on rank 0 while the others wait": """
        if rank == 0:
            while lasts():
                sum(range(10000))
            open("go", "w").close()
        barrier()
        """,
    "a first checkpoint": """
        with holdfast.phase("checkpoint"):
            while lasts():
                time.sleep(0.1)
        """,
    "a computation that holds the interpreter": """
        import hashlib
        while lasts():
            sum(range(10**7))
        """,
    "a start without a sign": "",
    "an upload in a thread of rank 0": """
        import socket, threading
        if rank == 0:
            listening = socket.create_server(("127.0.0.1", 0))
            if os.fork() == 0:
                slow, _ = listening.accept()
                while slow.recv(1000):
                    time.sleep(0.1)
                os._exit(0)
            def upload():
                with socket.create_connection(listening.getsockname()) as sending:
                    while lasts():
                        sending.sendall(bytes(1000))
                        time.sleep(0.1)
            uploading = threading.Thread(target=upload)
            uploading.start()
            uploading.join()
            open("go", "w").close()
        barrier()
        """,
    "data loading by rank 0": """
        if rank == 0:
            while lasts():
                open("data", "wb").write(bytes(1 << 21))
                time.sleep(0.1)
            open("go", "w").close()
        barrier()
        """,
}


@pytest.mark.thorough
@pytest.mark.parametrize("what", HEALTHY)
def test_what_is_healthy_is_not_told_of(run_job, what: str) -> None:
    import textwrap

    steps = STEPS
    if what == "a start without a sign":
        steps = f"import time\ntime.sleep({QUIET_S})\n" + STEPS
    job = run_job("-n=2", SOON, script=steps + LONG + textwrap.dedent(HEALTHY[what]))
    assert job.wait() == 0
    assert "the job hangs" not in job.stderr


def test_a_stopped_worker_is_not_told_of(start_job) -> None:
    script = (
        f"{STEPS}\nopen('new', 'w').write(str(os.getpid()))\nos.rename('new', 'pid')\nbarrier()"
    )
    job = start_job(SOON, script=script)
    job.until_files("pid")
    worker = int(job.read("pid"))
    os.kill(worker, signal.SIGSTOP)
    looks = f"/proc/{job.process.pid}/status"

    def switches() -> int:
        with open(looks) as file:
            return sum(int(line.split()[1]) for line in file if "voluntary_ctxt" in line)

    before = switches()
    job.until(lambda: switches() > before + 60, "many looks at it")
    assert "the job hangs" not in job.stderr
    os.kill(worker, signal.SIGCONT)
    (job.folder / "go").touch()
    assert job.wait() == 0


def test_with_hang_off_nobody_looks(run_job) -> None:
    script = f"{STEPS}{LONG}\nwhile lasts():\n    time.sleep(0.1)"
    job = run_job(SOON, "--hang=off", script=script)
    assert job.wait() == 0
    assert "the job hangs" not in job.stderr


def test_a_scope_that_takes_too_long_ends_its_worker_with_its_stack_kept(run_job) -> None:
    script = """
import os, time
import holdfast
def load():
    time.sleep(1000)
with holdfast.expires(1000, "all of it"):
    if os.environ["RANK"] == "0":
        time.sleep(1000)
    with holdfast.expires(0.1, "loading"):
        load()
"""
    job = run_job("-n=2", "--heartbeat=0.5", script=script)
    assert job.wait() == 1
    assert (
        "rank 1: the deadline of loading ran out while it was in load at program.py:" in job.stderr
    )
    line = next(line for line in job.stderr.splitlines() if "its stack: " in line)
    assert "in load" in (job.folder / line.rpartition("its stack: ")[2]).read_text()


def test_a_worker_without_a_first_step_in_time_is_ended(run_job) -> None:
    script = "import time\ndef compiles():\n    time.sleep(1000)\ncompiles()"
    job = run_job("--first-step-timeout=1", script=script)
    assert job.wait() == 1
    assert "--first-step-timeout 1) ran out while it was in compiles at program.py:3" in job.stderr


def test_a_worker_that_steps_in_time_is_not(run_job) -> None:
    script = "import time, holdfast\nholdfast.progress(0)\ntime.sleep(4)"
    job = run_job("--first-step-timeout=2", script=script)
    assert job.wait() == 0


OPTIMIZER = """
import os, time, torch
weight = torch.nn.Parameter(torch.zeros(2))
optimizer = torch.optim.SGD([weight], lr=0.1)
for step in range(40):
    weight.grad = torch.ones(2)
    optimizer.step()
    time.sleep(0.05)
    if step == 30 and os.environ["HOLDFAST_ROUND"] == "1":
        os.read(os.pipe()[0], 1)
"""


@pytest.mark.parametrize("how", ["--preload=torch", "--no-warm"])
def test_where_nobody_reports_steps_those_of_optimizers_show_a_hang(run_job, how: str) -> None:
    job = run_job("-n=2", SOON, "--hang=restart", "--max-restarts=1", how, script=OPTIMIZER)
    assert job.wait() == 0, job.stderr
    assert job.stderr.count("the job hangs") == 1
    assert "restarting (1 of 1)" in job.stderr
