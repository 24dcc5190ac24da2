"""`holdfast stacks`: real jobs are asked where their workers are, and go on as if nobody had."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.admin.sentences import no_such_job
from holdfast.cli.sentences import in_full
from holdfast.core.policy.stacks import StackGroup, StackLocation, WorkerStack
from holdfast.processes.monitoring import debugger, kernel

from ..free_ports import free_port

PIPE = subprocess.PIPE
READY = "open(f'ready.{os.environ[\"RANK\"]}', 'w').close()\n"
PATH, NODE = r"(/\S+)", r"(\S+)"
WAIT = "while not os.path.exists('go'):\n    time.sleep(0.002)\n"


def asked(holdfast: Path, *words: str) -> str:
    """What the command says, or how it complains."""
    done = subprocess.run(
        [holdfast, "stacks", *words], capture_output=True, text=True, timeout=60, check=False
    )
    return done.stdout + done.stderr


def shows(told: str, function: str, *ranks: int, kernel: str = "") -> bool:
    """Whether it says that these ranks are in this function of the program, or give no stack."""
    location = StackLocation(function, "program.py:1" if function else "", kernel)
    group = StackGroup(location, tuple(WorkerStack(rank) for rank in ranks))
    words = re.escape(group.in_words()).replace("py:1", r"py:\d+")
    return re.search(words, told) is not None


def run_id(request: pytest.FixtureRequest) -> str:
    return f"{request.node.name[:60]}-{os.getpid()}"


@pytest.mark.parametrize("how", ["warm", "--no-warm"])
def test_equal_ones_are_one_group_and_the_odd_one_is_named(
    start_job, holdfast: Path, how: str, request: pytest.FixtureRequest
) -> None:
    script = f"""
import os, time
def barrier():
    {WAIT.replace(chr(10), chr(10) + "    ")}
def load_batch():
    {READY}    os.read(reader, 1)
reader, writer = os.pipe()
if os.environ["RANK"] == "1":
    load_batch()
else:
    {READY}    barrier()
"""
    name = run_id(request)
    options = () if how == "warm" else (how,)
    job = start_job("-n=3", f"--rdzv-id={name}", *options, script=script)
    job.until_files("ready.0", "ready.1", "ready.2")
    told: list[str] = []

    def is_there() -> bool:
        told[:] = [asked(holdfast, name)]
        return shows(told[0], "barrier", 0, 2)

    job.until(is_there, "both in the barrier")
    assert shows(told[0], "load_batch", 1, kernel="waiting for a pipe")
    (path,) = re.findall(rf"^ *{in_full(PATH)}$", told[0], re.MULTILINE)
    full = Path(job.folder, path).read_text()
    assert full.count("most recent call first") == 3
    assert "run_as_main" not in full, "our own frames are not the program's"


def test_a_worker_that_sleeps_with_the_interpreter_locked_shows_its_stack(
    start_job, holdfast: Path, request: pytest.FixtureRequest
) -> None:
    script = f"""
import ctypes, os
reader, writer = os.pipe()
def holds_the_lock():
    {READY}    ctypes.PyDLL(None).read(reader, ctypes.create_string_buffer(1), 1)
holds_the_lock()
"""
    name = run_id(request)
    job = start_job(f"--rdzv-id={name}", script=script)
    job.until_files("ready.0")
    job.until(lambda: shows(asked(holdfast, name), "holds_the_lock", 0), "it in the call")


def test_programs_that_use_faulthandler_themselves_keep_it(
    start_job, holdfast: Path, request: pytest.FixtureRequest
) -> None:
    script = f"""
import os, sys, time
assert "faulthandler" not in sys.modules
import faulthandler
faulthandler.enable()
faulthandler.register(10)
faulthandler.dump_traceback_later(3600)
faulthandler.cancel_dump_traceback_later()
def mine():
    {READY}    {WAIT.replace(chr(10), chr(10) + "    ")}
mine()
os.kill(os.getpid(), 10)
"""
    name = run_id(request)
    job = start_job(f"--rdzv-id={name}", script=script)
    job.until_files("ready.0")
    assert shows(asked(holdfast, name), "mine", 0)
    (job.folder / "go").touch()
    assert job.wait() == 0
    assert "Current thread" in job.stderr


@pytest.mark.parametrize("options", [("--no-stacks",), ("--no-stacks", "--no-warm")])
def test_without_stacks_nothing_is_put_in_and_nothing_is_sent(
    start_job, holdfast: Path, options: tuple[str, ...], request: pytest.FixtureRequest
) -> None:
    name = run_id(request)
    script = f"import os, time\n{READY}{WAIT}"
    job = start_job(f"--rdzv-id={name}", *options, script=script)
    job.until_files("ready.0")
    assert shows(asked(holdfast, name), "", 0)
    (job.folder / "go").touch()
    assert job.wait() == 0


def test_a_plain_command_is_looked_at_and_not_touched(
    start_job, holdfast: Path, request: pytest.FixtureRequest
) -> None:
    name = run_id(request)
    command = "touch ready; until [ -e go ]; do sleep 0.05; done"
    job = start_job(f"--rdzv-id={name}", "--no-python", "sh", "-c", command)
    job.until_files("ready")
    assert "rank 0 " in asked(holdfast, name)
    (job.folder / "go").touch()
    assert job.wait() == 0


def test_a_stopped_worker_is_said_to_be_stopped_and_stays_so(
    start_job, holdfast: Path, request: pytest.FixtureRequest
) -> None:
    name = run_id(request)
    script = f"import os, time\nopen('pid', 'w').write(str(os.getpid()))\n{READY}{WAIT}"
    job = start_job(f"--rdzv-id={name}", script=script)
    job.until_files("ready.0")
    pid = int(job.read("pid"))
    os.kill(pid, signal.SIGSTOP)
    job.until(lambda: state_of(pid) == "T", "it stopped")
    assert shows(asked(holdfast, name), "", 0, kernel="stopped by a signal")
    assert state_of(pid) == "T"
    os.kill(pid, signal.SIGCONT)
    (job.folder / "go").touch()
    assert job.wait() == 0


def state_of(pid: int) -> str:
    view = kernel.view_of(pid)
    return view.state if view is not None else ""


def test_the_program_sees_nothing_of_it_but_one_descriptor(start_job) -> None:
    script = """
import os, sys
print(sorted(int(fd) for fd in os.listdir("/proc/self/fd"))[-1] >= 960)
print("HOLDFAST_STACKS" in os.environ, "faulthandler" in sys.modules)
child = os.popen("ls /proc/self/fd").read().split()
print(max(map(int, child)) >= 960)
"""
    for options in ((), ("--no-warm",)):
        job = start_job("--redirects=0", *options, script=script)
        assert job.wait() == 0
        assert job.stdout.split() == ["True", "False", "False", "False"]


def test_a_job_that_is_not_there_is_a_mistake_that_names_those_that_are(
    start_job, holdfast: Path, request: pytest.FixtureRequest
) -> None:
    name = run_id(request)
    job = start_job(f"--rdzv-id={name}", script=f"import os, time\n{READY}{WAIT}")
    job.until_files("ready.0")
    told = asked(holdfast, "no-such-job")
    assert no_such_job("no-such-job", []) in told
    assert name in told
    (job.folder / "go").touch()
    assert job.wait() == 0


@pytest.mark.skipif(not debugger.installed(), reason="needs py-spy")
def test_a_worker_that_gives_no_stack_is_looked_at_with_py_spy(
    start_job, holdfast: Path, request: pytest.FixtureRequest
) -> None:
    name = run_id(request)
    script = f"import os, time\ndef mine():\n    {READY}    os.read(0, 1)\nmine()"
    command = ("--no-python", sys.executable, "-I", "program.py")
    job = start_job(f"--rdzv-id={name}", *command, files={"program.py": script}, stdin=PIPE)
    job.until_files("ready.0")
    job.until(lambda: shows(asked(holdfast, name), "mine", 0), "its place")
    job.process.stdin.close()


@pytest.mark.skipif(shutil.which("strace") is None, reason="needs strace")
@pytest.mark.parametrize("how", ["--preload=json", "--no-warm"])
def test_workers_let_their_agent_look_into_them_and_nobody_else(
    start_program, holdfast: Path, how: str
) -> None:
    script = """
        import os
        open("pid", "w").write(str(os.getpid()))
        spawner = open(f"/proc/{os.getppid()}/stat").read()
        open("agent", "w").write(spawner.rpartition(")")[2].split()[1])
        """
    traced = ("strace", "-f", "-qq", "-e", "trace=prctl", "-o", "calls")
    run = (str(holdfast), "run", how, "--log-dir=logs", "program.py")
    job = start_program(*traced, *run, files={"program.py": script})
    assert job.wait() == 0
    calls = [line.split(None, 1) for line in job.read("calls").splitlines()]
    permitted = [(pid, call) for pid, call in calls if "PR_SET_PTRACER" in call]
    assert [pid for pid, _ in permitted] == [job.read("pid")]
    assert f"PR_SET_PTRACER, {job.read('agent')})" in permitted[0][1]


def test_the_workers_of_all_nodes_are_in_one_answer(
    start_job, holdfast: Path, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    script = f"""
import os, time
os.chdir({str(tmp_path)!r})
def barrier():
    {READY}    {WAIT.replace(chr(10), chr(10) + "    ")}
def load_batch():
    {READY}    os.read(reader, 1)
reader, writer = os.pipe()
load_batch() if os.environ["RANK"] == "2" else barrier()
"""
    name = run_id(request)[-40:].strip("-")
    meet = ("--nnodes=2", f"--rdzv-endpoint=127.0.0.1:{free_port()}", f"--rdzv-id={name}")
    nodes = [start_job("-n=2", "--no-warm", *meet, script=script) for _ in range(2)]
    ready = [tmp_path / f"ready.{rank}" for rank in range(4)]
    nodes[0].until(lambda: all(path.exists() for path in ready), "all workers")
    told: list[str] = []

    def is_there() -> bool:
        told[:] = [asked(holdfast, name)]
        location = StackLocation("barrier", "program.py:", "").in_words(is_one=False)
        return location in told[0] and "load_batch" in told[0]

    nodes[0].until(is_there, "their places")
    location = StackLocation("load_batch", "program.py:", "").in_words(is_one=True)
    odd = re.search(rf"; rank 2 on (\S+) {location}\d+, ", told[0])
    assert odd is not None, told[0]
    kept = re.findall(rf"^ *{in_full(PATH, NODE)}$", told[0], re.MULTILINE)
    assert len(kept) == 2
    assert odd[1] in {node for node, _ in kept}
    (tmp_path / "go").touch()


@pytest.mark.parametrize("words", [("--nonsense",), ("one", "two")])
def test_what_is_no_request_is_a_mistake(holdfast: Path, words: tuple[str, ...]) -> None:
    done = subprocess.run(
        [holdfast, "stacks", *words], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 2
    assert done.stderr.startswith("holdfast: ")
    assert done.stdout == ""
