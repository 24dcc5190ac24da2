"""Real PyTorch groups over gloo: they form, add up, and come back after a loss."""

from __future__ import annotations

import json
import os
import signal

import pytest

from .conftest import Job, StartJob, command_of

pytestmark = pytest.mark.torch

# Every attempt forms a group, adds up, and leaves a key in the group's store; rank 1 is killed
# in the middle of the first so many attempts, when all others wait for it in a collective.
ADD_UP = """
import json, os, signal, sys
import torch
import torch.distributed as dist

losses = int(sys.argv[1])
rank, attempt = int(os.environ["RANK"]), int(os.environ["TORCHELASTIC_RESTART_COUNT"])
dist.init_process_group("gloo")
total = torch.tensor([rank + 1])
dist.all_reduce(total)
store = dist.distributed_c10d._get_default_store()
others = [number for number in range(20) if number != attempt]
stale = [number for number in others if store.check([f"attempt {number}"])]
store.set(f"attempt {attempt}", "was here")
dist.barrier()
found = {"sum": int(total), "size": dist.get_world_size(), "stale": stale}
found["own"] = bool(store.check([f"attempt {attempt}"]))
with open(f"found.{attempt}.{rank}", "w") as file:
    json.dump(found, file)
dist.barrier()
if attempt < losses:
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    dist.all_reduce(total)
dist.destroy_process_group()
"""
AT_ONCE = ("--restart-backoff=0",)


def expect_sums(job: Job, nproc: int, attempts: int) -> None:
    """Every rank of every attempt had the right sum, and saw no key of another attempt."""
    right = {"sum": nproc * (nproc + 1) // 2, "size": nproc, "stale": [], "own": True}
    for attempt in range(attempts):
        for rank in range(nproc):
            assert json.loads(job.read(f"found.{attempt}.{rank}")) == right


@pytest.mark.thorough
def test_a_group_comes_back_from_five_losses_in_a_row(run_job: StartJob) -> None:
    words = ("--nproc-per-node=2", "--max-restarts=5", *AT_ONCE)
    job = run_job(*words, script=ADD_UP, args=("5",))
    assert job.process.returncode == 0, job.stderr
    expect_sums(job, nproc=2, attempts=6)
    assert job.stderr.count("SIGKILL") >= 5


@pytest.mark.thorough(but=("4---preload=json",))
@pytest.mark.parametrize(
    ("nproc", "way"), [(4, "--preload=json"), (2, "--no-warm"), (2, "--worker-store")]
)
def test_a_group_adds_up_and_comes_back_in_each_way_of_starting(
    run_job: StartJob, nproc: int, way: str
) -> None:
    words = (way, f"--nproc-per-node={nproc}", "--max-restarts=1", *AT_ONCE)
    job = run_job(*words, script=ADD_UP, args=("1",))
    assert job.process.returncode == 0, job.stderr
    expect_sums(job, nproc, attempts=2)


@pytest.mark.thorough
def test_the_loss_of_the_process_that_serves_the_store_is_survived(start_job: StartJob) -> None:
    script = """
        import os, sys, time
        import torch
        import torch.distributed as dist
        attempt = os.environ["TORCHELASTIC_RESTART_COUNT"]
        dist.init_process_group("gloo")
        total = torch.tensor([1])
        dist.all_reduce(total)
        open(f"ready.{attempt}.{os.environ['RANK']}", "w").write(str(int(total)))
        while not os.path.exists("go"):
            time.sleep(0.002)
        if attempt == "0":
            sys.exit(3)
        open(f"served.{os.environ['RANK']}", "w").write(os.environ["TORCHELASTIC_USE_AGENT_STORE"])
        dist.barrier()
        dist.destroy_process_group()
    """
    job = start_job("--nproc-per-node=2", "--max-restarts=1", *AT_ONCE, script=script)
    job.until_files("ready.0.0", "ready.0.1")
    os.kill(store_host_of(job), signal.SIGKILL)
    job.until(lambda: "serves the store" in job.stderr, "the agent to notice")
    (job.folder / "go").touch()
    assert job.wait() == 0, job.stderr
    assert job.read("ready.1.0") == job.read("ready.1.1") == "2"
    assert job.read("served.0") == job.read("served.1") == "False"
    job.expect_nothing_left()


def test_a_traceback_that_pytorch_prints_with_its_rank_is_reported_once(run_job: StartJob) -> None:
    script = """
        import os, time
        import torch.distributed as dist
        dist.init_process_group("gloo")
        if dist.get_rank() == 0:
            open("ready", "w").close()
            while True:
                time.sleep(0.01)
        while not os.path.exists("ready"):
            time.sleep(0.002)
        def inner():
            raise ValueError("the loss is not a number")
        inner()
    """
    job = run_job("--nproc-per-node=2", script=script)
    assert job.process.returncode == 1
    before, found, report = job.stderr.partition("holdfast: the job failed:")
    assert "[rank1]: ValueError: the loss is not a number" in before
    assert found
    assert report.count("in inner") == 1
    assert report.count("Traceback") == 1


def store_host_of(job: Job) -> int:
    """The process whose command names its own script."""
    for pid in job.running():
        if b"store_host.py" in command_of(pid):
            return pid
    raise AssertionError("nobody serves the store")
