"""Jobs that hang, and jobs that only look like it, with real processes.

The floor is two seconds here, so that a hang is found soon; what must not be taken for one stays
for several times as long.
"""

from __future__ import annotations

import os
import re
import signal

import pytest

from holdfast.core.coordinator_io import Explain
from holdfast.core.node_io import DeadlineMissed, StallFound, StragglerFound
from holdfast.core.policy import sentences, stacks
from holdfast.core.policy.sentences import HANGS
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


def grouped(stall: StallFound) -> tuple[stacks.StackGroup, ...]:
    """The locations that a stall was found with."""
    return stacks.grouped_by(
        (stacks.told_location(each), stacks.WorkerStack(rank))
        for each in stall.locations
        for rank in each.ranks
    )


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
    job.until(lambda: HANGS in job.stderr, "a word of it")
    (stall,) = job.events(StallFound)
    assert sentences.hang_here(stall.words, [], 0.0, stall.file) in job.stderr
    assert stall.stalled_s >= HANG_AFTER_S
    assert [(each.ranks, each.function) for each in stall.locations] == [
        ((0, 2), "barrier"),
        ((1,), "load_batch"),
    ]
    assert stall.locations[1].where.startswith("program.py:")
    assert stacks.in_words(grouped(stall)) in stall.words
    assert (job.folder / stall.file).read_text().count("rank ") >= 3
    assert job.process.poll() is None, "nothing is done about it"
    assert job.stderr.count(HANGS) == 1


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
    texts = [(node, effect.text) for node in nodes for effect in node.effects(Explain)]
    (host, told) = next((node, text) for node, text in texts if text.startswith(HANGS))
    assert sum(node.stderr.count(told) for node in nodes) == host.stderr.count(told) == 1
    stalls = [node.events(StallFound)[0] for node in nodes]
    (odd,) = [each for stall in stalls for each in stall.locations if 2 in each.ranks]
    assert (odd.ranks, odd.function) == ((2,), "load_batch")
    (stalled_s,) = re.findall(r" (\d+) s: ", told)
    assert int(stalled_s) >= HANG_AFTER_S
    before, where = sentences.hang_of_nodes(2, int(stalled_s), "|", []).split("|")
    assert told.startswith(before)
    assert told.endswith(where)
    location = re.escape(stacks.told_location(odd).in_words(is_one=True))
    assert re.search(rf"; rank 2 on \S+ {location}", told)
    ending = sentences.ending_for_hang(2)
    assert sorted(node.stderr.count(ending) for node in nodes) == [0, 1]
    for node, stall in zip(nodes, stalls, strict=True):
        own = sentences.hang_here(stall.words, [], 0.0, stall.file)
        assert node.stderr.count(own) == 1, "each says its own"
        assert node.stderr.count(HANGS) == (2 if node is host else 1)
        assert node.events(StragglerFound, some=False) == [], "to be asked is no movement"


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
    ("rank_1", "has_ended"),
    [("never_comes()", False), ("sys.exit(0)", True)],
    ids=["stuck", "ended"],
)
def test_a_job_that_says_nothing_is_tried_again_where_a_cause_is_known(
    run_job, rank_1: str, has_ended: bool
) -> None:
    script = SILENT + f"    {rank_1} if rank == 1 else barrier()\n"
    job = run_job("-n=3", SOON, "--hang=restart", "--max-restarts=1", script=script)
    assert job.wait() == 0
    assert job.stderr.count(HANGS) == 1
    stall = job.events(StallFound)[-1]
    if has_ended:
        around = re.escape(sentences.hang_here(stall.words, [1], 4321.0, stall.file))
        assert re.search(around.replace("4321", r"\d+"), job.stderr)
    else:
        assert sentences.ending_for_hang(1) in job.stderr
    assert sentences.restarting(0.0, 1, 1) in job.stderr


def test_a_job_that_hangs_is_tried_again_if_that_is_wanted(run_job) -> None:
    script = f"""
{STEPS}
if os.environ["HOLDFAST_ROUND"] == "1":
    barrier()
"""
    job = run_job("-n=2", SOON, "--hang=restart", "--max-restarts=1", script=script)
    assert job.wait() == 0
    assert sentences.ending_for_hang(0) in job.stderr
    assert sentences.restarting(0.0, 1, 1) in job.stderr
    (stall,) = job.events(StallFound)
    where = next(stacks.told_location(each) for each in stall.locations if 0 in each.ranks)
    why = sentences.ended_for_hang(where.shortly(), stall.file)
    assert why in job.stderr, "the failure names where the stacks are"
    assert where.function
    full = (job.folder / stall.file).read_text()
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
    job.until(lambda: HANGS in job.stderr, "a word of it")
    (job.folder / "go").touch()
    job.until(lambda: sentences.RESUMED in job.stderr, "its end")
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
    assert HANGS not in job.stderr


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
    assert HANGS not in job.stderr
    os.kill(worker, signal.SIGCONT)
    (job.folder / "go").touch()
    assert job.wait() == 0


def test_with_hang_off_nobody_looks(run_job) -> None:
    script = f"{STEPS}{LONG}\nwhile lasts():\n    time.sleep(0.1)"
    job = run_job(SOON, "--hang=off", script=script)
    assert job.wait() == 0
    assert HANGS not in job.stderr


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
    (missed,) = job.events(DeadlineMissed)
    assert missed.deadline == sentences.scope_deadline("loading")
    assert (missed.local_rank, missed.location) == (1, "in load at program.py:5")
    words = sentences.deadline_missed(missed.deadline, missed.location)
    assert sentences.ending_for_deadline(1, words, missed.file) in job.stderr
    assert "in load" in (job.folder / missed.file).read_text()


def test_a_worker_without_a_first_step_in_time_is_ended(run_job) -> None:
    script = "import time\ndef compiles():\n    time.sleep(1000)\ncompiles()"
    job = run_job("--first-step-timeout=1", script=script)
    assert job.wait() == 1
    deadline = sentences.first_step_time(1.0)
    assert sentences.deadline_missed(deadline, "in compiles at program.py:3") in job.stderr


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
    assert job.stderr.count(HANGS) == 1
    assert sentences.restarting(0.0, 1, 1) in job.stderr
