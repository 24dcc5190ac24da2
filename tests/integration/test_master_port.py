"""The master's port: free for the job's own rank 0, and for nobody else."""

from __future__ import annotations

import pytest

from ..free_ports import free_port
from .conftest import StartJob

# Rank 0 serves at the master's port as any server does, the others call it.
MEET = """
import os, socket, time

address = (os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
me = f"{os.environ['TORCHELASTIC_RUN_ID']} {os.environ['HOLDFAST_ROUND']}"
if os.environ["RANK"] == "0":
    with socket.create_server(address) as server:
        for _ in range(int(os.environ["WORLD_SIZE"]) - 1):
            connection, _ = server.accept()
            with connection:
                connection.sendall(me.encode())
else:
    while True:
        try:
            with socket.create_connection(address) as connection:
                found = connection.makefile().read()
            break
        except ConnectionRefusedError:
            time.sleep(0.01)
    assert found == me, f"{me} met {found}"
"""
LAUNCHES = 16
"""At once, on a machine that may have two cores."""


@pytest.mark.thorough
def test_many_launches_at_once_never_meet_each_other(start_job: StartJob) -> None:
    jobs = [start_job("--nproc-per-node=2", script=MEET) for _ in range(LAUNCHES)]
    for job in jobs:
        assert job.wait() == 0, job.stderr
    for job in jobs:
        job.expect_nothing_left()


@pytest.mark.parametrize("start", ["--preload=json", "--no-warm"])
def test_every_attempt_finds_its_port_free(run_job: StartJob, start: str) -> None:
    script = MEET + "\nraise SystemExit(int(os.environ['TORCHELASTIC_RESTART_COUNT']) < 4)"
    words = (start, "--nproc-per-node=3", "--max-restarts=4", "--restart-backoff=0")
    job = run_job(*words, script=script)
    assert job.process.returncode == 0, job.stderr


def test_a_port_that_the_user_names_is_free_again_for_the_next_attempt(run_job: StartJob) -> None:
    script = MEET + "\nraise SystemExit(int(os.environ['TORCHELASTIC_RESTART_COUNT']) < 2)"
    words = ("--nproc-per-node=2", "--max-restarts=2", "--restart-backoff=0")
    job = run_job(*words, f"--master-port={free_port()}", script=script)
    assert job.process.returncode == 0, job.stderr


def test_the_port_of_an_attempt_is_closed_when_the_next_one_runs(run_job: StartJob) -> None:
    """A worker of the new attempt can never speak with one of the old."""
    script = """
        import os, signal, socket, sys, time
        port = int(os.environ["MASTER_PORT"])
        if os.environ["HOLDFAST_ROUND"] == "1":
            if os.environ["RANK"] == "0":
                server = socket.create_server(("127.0.0.1", port))
                if os.fork() == 0:
                    signal.signal(signal.SIGTERM, signal.SIG_IGN)
                    os.setsid()
                    while True:
                        signal.pause()
                open("new", "w").write(str(port))
                os.rename("new", "port")
                signal.pause()
            while not os.path.exists("port"):
                time.sleep(0.002)
            sys.exit(3)
        old = int(open("port").read())
        assert old != port
        try:
            socket.create_connection(("127.0.0.1", old)).close()
        except ConnectionRefusedError:
            pass
        else:
            raise AssertionError("the old attempt still listens")
    """
    job = run_job("--nproc-per-node=2", "--max-restarts=1", script=script)
    assert job.process.returncode == 0, job.stderr
