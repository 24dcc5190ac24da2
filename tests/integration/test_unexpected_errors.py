"""An exception that nobody expected ends the process that it reached, says why, and leaves nothing.

It is planted: a process puts something that raises in the place of one function, and then does what
the command does.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from holdfast.runtime.sentences import another_error, own_error

from .conftest import Job, StartJob

WAITING = """
import os, time
if os.fork() == 0:
    os.setsid()
open("began." + os.environ["RANK"], "a").close()
while not os.path.exists("finish"):
    time.sleep(0.02)
"""
# What is planted goes in the middle.
PLANTED = """
import os, sys, time
import holdfast.agent.agent
from holdfast.cli.main import main
from holdfast.agent.agent import Agent
from holdfast.agent.health_port import HealthPort
from holdfast.observe.journal_file import JournalFile
from holdfast.processes.supervisor import NodeSupervisor
from holdfast.runtime import failing

def fail(*args, **more):
    raise LookupError("it was planted")

def never_end(*args):
    time.sleep(600)

{planted}
sys.argv = ["holdfast", *sys.argv[1:]]
main()
"""
# As soon as the workers run, and `fail` is there.
IN_THE_LOOP = """
def look(self):
    if os.path.exists("fail"):
        fail()
    self._lag_timer = self._loop.call_later(0.02, self._look_at_lag)
HealthPort._look_at_lag = look
"""
IN_A_LANE = """
append = JournalFile.append
JournalFile.append = lambda self, line: fail() if os.path.exists("fail") else append(self, line)
"""
REASON = own_error("LookupError: it was planted")[0]


def start(start_program: StartJob, planted: str, *words: str) -> Job:
    run = ("run", "--log-dir", "logs", "-n=2", "--health-port=0", "--no-warm", *words)
    return start_program(
        sys.executable, "planted.py", *run, "program.py",
        files={"planted.py": PLANTED.format(planted=planted), "program.py": WAITING},
    )  # fmt: skip


def last_line(job: Job) -> dict[str, object]:
    journal = job.journal()
    assert journal is not None
    return json.loads(journal.read_bytes().splitlines()[-1])


@pytest.mark.parametrize("nodes", [(), ("--nnodes=1:2", "--rdzv-backend=file")])
def test_in_a_call_of_the_loop(
    start_program: StartJob, tmp_path: Path, nodes: tuple[str, ...]
) -> None:
    more = (f"--rdzv-endpoint={tmp_path}", "--rdzv-id=x", "--last-call=0.1") if nodes else ()
    job = start(start_program, IN_THE_LOOP, *nodes, *more)
    job.until_files("began.0", "began.1")
    (job.folder / "fail").touch()
    assert job.wait() == 1
    assert REASON in job.stderr
    assert "Traceback" in job.stderr
    assert last_line(job)["machine"] == "failure"
    assert last_line(job)["reason"] == "LookupError: it was planted"
    job.expect_nothing_left()


def test_in_a_lane_of_the_disk(start_program: StartJob) -> None:
    job = start(start_program, IN_A_LANE, "--heartbeat=1")
    job.until_files("began.0", "began.1")
    (job.folder / "fail").touch()
    (job.folder / "finish").touch()
    assert job.wait() == 1
    assert REASON in job.stderr
    job.expect_nothing_left()


@pytest.mark.parametrize("place", ["NodeSupervisor.close", "Agent._finish_files"])
def test_in_the_clean_up_of_a_job_that_went_well(start_program: StartJob, place: str) -> None:
    job = start(start_program, f"{place} = fail")
    job.until_files("began.0", "began.1")
    (job.folder / "finish").touch()
    assert job.wait() == 1
    assert REASON in job.stderr
    job.expect_nothing_left()


def test_in_the_clean_up_after_another(start_program: StartJob) -> None:
    planted = f"{IN_THE_LOOP}\nNodeSupervisor.close = lambda self: [][0]"
    job = start(start_program, planted)
    job.until_files("began.0", "began.1")
    (job.folder / "fail").touch()
    assert job.wait() == 1
    assert REASON in job.stderr
    assert another_error("IndexError") in job.stderr
    job.expect_nothing_left()


def test_a_clean_up_that_never_ends_is_ended(start_program: StartJob) -> None:
    planted = f"{IN_THE_LOOP}\nfailing.LAST_S = 1\nNodeSupervisor.close = never_end"
    job = start(start_program, planted)
    job.until_files("began.0", "began.1")
    (job.folder / "fail").touch()
    assert job.wait() != 0
    assert last_line(job)["machine"] == "failure"
    job.expect_nothing_left()


LAUNCHED = """
import holdfast, os, sys, time

def wait():
    open("began", "a").close()
    while True:
        time.sleep(1)

try:
    holdfast.launch(wait, nproc=2)
except holdfast.HoldfastError as error:
    print("told:", error)
    sys.exit(7)
"""
IN_THE_AGENT_OF_A_CALL = """
import os, sys
if "holdfast.agent.function_job" in sys.orig_argv:
    from holdfast.agent.agent import Agent
    begin = Agent.post
    def post(self, event):
        if type(event).__name__ == "WorkerStarted" or os.path.exists("began"):
            raise LookupError("it was planted")
        begin(self, event)
    Agent.post = post
"""


def test_in_the_agent_of_a_function(start_program: StartJob) -> None:
    job = start_program(
        sys.executable, "caller.py", env={"PYTHONPATH": "."},
        files={"caller.py": LAUNCHED, "sitecustomize.py": IN_THE_AGENT_OF_A_CALL},
    )  # fmt: skip
    assert job.wait() == 7
    assert "told:" in job.stdout
    assert REASON in job.stderr
    job.expect_nothing_left()
